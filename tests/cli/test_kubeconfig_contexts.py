"""Commands that reach clusters by kubeconfig contexts name the context and its server when something is wrong."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from aiohttp import web
from click.testing import CliRunner, Result
from machine import programs

from isthmus.cli import proxied
from isthmus.cli.check import check
from isthmus.cli.install import install
from isthmus.cli.uninstall import uninstall

pytestmark = pytest.mark.needs("kubectl")


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{Path(programs.path('kubectl')).parent}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def silent() -> Iterator[str]:
    """URL of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"


def kubeconfig(folder: Path, server: str) -> str:
    body = {
        "current-context": "c1",
        "contexts": [{"name": "c1", "context": {"cluster": "c1", "user": "c1"}}],
        "clusters": [{"name": "c1", "cluster": {"server": server}}],
        "users": [{"name": "c1", "user": {"token": "t"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(body))
    return str(path)


def called(command: object, folder: Path, server: str, *words: str) -> Result:
    return CliRunner().invoke(command, ["--kubeconfig", kubeconfig(folder, server), *words])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "command", [install, pytest.param(uninstall, marks=pytest.mark.slow), pytest.param(check, marks=pytest.mark.slow)]
)
def test_a_server_that_never_answers_is_waited_for_visibly_and_named_with_its_context(
    command: object, tmp_path: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxied, "ANSWER", 1.0)
    monkeypatch.setattr(proxied, "QUIET", 0.0)
    done = called(command, tmp_path, silent, "--context", "c1")
    assert done.exit_code == 1
    assert f"waiting for context c1 ({silent})" in done.output
    assert f"Error: context c1 ({silent}): GET /version: the API server does not answer" in done.output
    assert "localhost" not in done.output


def test_an_answer_in_time_is_waited_for_silently(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    done = called(uninstall, tmp_path, f"https://127.0.0.1:{port}")
    assert done.exit_code == 1
    assert "waiting" not in done.output
    assert f"Error: context c1 (https://127.0.0.1:{port}): " in done.output
    assert "connection refused" in done.output


@pytest.mark.parametrize("command", [install, uninstall, check])
def test_an_unknown_context_is_named_once(command: object, tmp_path: Path) -> None:
    done = called(command, tmp_path, "https://127.0.0.1:1", "--context", "nope")
    assert done.exit_code == 1
    assert done.output.strip() == "Error: context nope is not in the kubeconfig: kubectl config get-contexts"


def test_a_server_that_fails_in_the_middle_of_a_survey_is_one_line(tmp_path: Path) -> None:
    async def act() -> str:
        async def version(request: web.Request) -> web.Response:
            return web.json_response({"gitVersion": "v1.34.0"})

        async def failing(request: web.Request) -> web.Response:
            return web.Response(status=503, text="etcd has no leader")

        app = web.Application()
        app.router.add_get("/version", version)
        app.router.add_route("*", "/{rest:.*}", failing)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            return (await asyncio.to_thread(called, install, tmp_path, url)).output
        finally:
            await runner.cleanup()

    output = asyncio.run(act())
    assert output.startswith("Error: context c1 (http://127.0.0.1:")
    assert output.endswith("503 error: etcd has no leader\n")
    assert len(output.splitlines()) == 1
