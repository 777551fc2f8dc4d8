"""Peers' files from a Secret: a directory follows it, at a real API server of the lab."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from clusters.apiserver_world import TOKEN, ApiServer, serving

from isthmus import kube, statefile
from isthmus.kube.access import Access
from isthmus.kube.objects.core import SECRET, Secret
from isthmus.kube.objects.meta import Meta
from isthmus.kube.transport import Transport
from isthmus.reflector import Event, Reflector
from isthmus.sources import secret_files
from isthmus.sources.secret_files import SecretFiles

PEER = {"c2": "endpoints: []", "c2.ca.crt": "ca", "c2.crt": "certificate", "c2.key": "key"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with serving(tmp_path_factory.mktemp("api")) as server:
        yield server


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[kube.Client]:
    async with kube.Client(Transport(Access(server=server.url, tls=server.trust, token=TOKEN))) as client:
        yield client


def encoded(files: dict[str, str]) -> dict[str, str]:
    return {name: base64.b64encode(text.encode()).decode() for name, text in files.items()}


def secret(files: dict[str, str]) -> Secret:
    return Secret(metadata=Meta(name="isthmus-peers"), data=encoded(files))


def listed(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir() if not path.name.startswith(".")}


async def until(directory: Path, files: dict[str, str]) -> None:
    async with asyncio.timeout(60):
        while listed(directory) != files:  # noqa: ASYNC110 another process writes them
            await asyncio.sleep(0.02)


@asynccontextmanager
async def following(client: kube.Client, name: str, directory: Path) -> AsyncIterator[SecretFiles]:
    files = SecretFiles(directory)
    store = client.store(SECRET, "default", field_selector=f"metadata.name={name}")
    task = asyncio.create_task(Reflector(store, files, name="secrets", first_delay=0.01).run())
    try:
        async with asyncio.timeout(60):
            await files.read.wait()
        yield files
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_a_directory_follows_its_secret_and_no_other(client: kube.Client, tmp_path: Path) -> None:
    for name, files in (("one", PEER), ("other", {"c9": "x"})):
        await client.create(SECRET, "default", {"metadata": {"name": name}, "data": encoded(files)})
    async with following(client, "one", tmp_path / "peers"):
        assert listed(tmp_path / "peers") == PEER
        await client.patch(SECRET, "default", "one", {"data": {**encoded({"c3": "endpoints:"}), "c2.key": None}})
        await until(tmp_path / "peers", {**{k: v for k, v in PEER.items() if k != "c2.key"}, "c3": "endpoints:"})
        assert all(path.stat().st_mode & 0o77 == 0 for path in (tmp_path / "peers").iterdir())


async def test_without_the_secret_it_is_complete_and_empty_until_there_is_one(
    client: kube.Client, tmp_path: Path
) -> None:
    async with following(client, "later", tmp_path):
        assert listed(tmp_path) == {}
        await client.create(SECRET, "default", {"metadata": {"name": "later"}, "data": encoded(PEER)})
        await until(tmp_path, PEER)


async def test_a_deleted_secret_withdraws_no_peer(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path)
    await files.replace({"isthmus-peers": secret(PEER)}, partial=False)
    files.apply([Event("isthmus-peers", None)])
    await files.replace({}, partial=False)
    assert listed(tmp_path) == PEER


async def test_a_later_process_of_the_pod_begins_with_what_is_there(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path)
    assert not files.read.is_set()
    await files.replace({"isthmus-peers": secret(PEER)}, partial=False)
    assert SecretFiles(tmp_path).read.is_set()


@pytest.mark.parametrize("name", ["../c2", "a/b", ".complete", ".."])
async def test_a_name_that_is_no_files_costs_the_version_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    files = SecretFiles(tmp_path)
    await files.replace({"isthmus-peers": secret(PEER)}, partial=False)
    files.apply([Event("isthmus-peers", secret({name: "x"}))])
    assert listed(tmp_path) == PEER
    assert files.problem
    files.apply([Event("isthmus-peers", secret({"c3": "x"}))])
    assert (listed(tmp_path), files.problem) == ({"c3": "x"}, "")


async def test_what_is_not_base64_costs_the_version(tmp_path: Path) -> None:
    files = SecretFiles(tmp_path)
    await files.replace({"x": Secret(metadata=Meta(name="x"), data={"c2": "%"})}, partial=False)
    assert (listed(tmp_path), files.problem) == ({}, "Secret x: c2: is not valid base64")


def test_a_peers_file_is_written_after_those_that_it_names_and_removed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    replace = statefile.replace

    def noted(path: Path, content: bytes) -> None:
        written.append(path.name)
        replace(path, content)

    monkeypatch.setattr(statefile, "replace", noted)
    secret_files.write(tmp_path, {name: text.encode() for name, text in PEER.items()})
    assert (written[-1], len(written)) == ("c2", 4)
    secret_files.write(tmp_path, {name: text.encode() for name, text in PEER.items()})
    assert len(written) == 4
    secret_files.write(tmp_path, {})
    assert listed(tmp_path) == {}
