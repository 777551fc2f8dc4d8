"""Users, roles and permissions, as each etcd applies them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from peers.etcd_server import EtcdServer, running

from isthmus.etcd import Credentials, Denied, Session, access
from isthmus.etcd.access import Grant

KEYS = ("a", "a/b", "a/b/c", "b")


@pytest.fixture
async def guarded(etcd_program: Path, tmp_path: Path) -> AsyncIterator[EtcdServer]:
    """An etcd with some keys and the user root."""
    with running(etcd_program, tmp_path / "etcd") as server:
        async with Session([server.endpoint]) as session:
            await server.ready(session)
            for key in KEYS:
                await session.put(key, b"")
            await access.ensure_role(session, access.ROOT, ())
            await access.ensure_user(session, access.ROOT, "secret", access.ROOT)
            await access.enable(session)
        yield server


def user(server: EtcdServer, name: str = access.ROOT, password: str = "secret") -> Session:
    return Session([server.endpoint], credentials=Credentials(name, password))


async def rights(server: EtcdServer) -> dict[str, str]:
    """What the user ``u`` may do with each key: r, w, rw."""
    found = {}
    async with user(server, "u", "hush") as session:
        for key in KEYS:
            allowed = ""
            for letter, attempt in (("r", session.get(key)), ("w", session.put(key, b""))):
                try:
                    await attempt
                except Denied:
                    continue
                allowed += letter
            found[key] = allowed
    return found


async def test_a_grant_is_for_one_key_or_for_a_prefix(guarded: EtcdServer) -> None:
    async with user(guarded) as root:
        await access.ensure_role(root, "role", [Grant("read", "a"), Grant("readwrite", "a/b", prefix=True)])
        await access.ensure_user(root, "u", "hush", "role")
    assert await rights(guarded) == {"a": "r", "a/b": "rw", "a/b/c": "rw", "b": ""}


async def test_a_role_that_is_set_up_again_has_the_new_permissions_and_no_others(guarded: EtcdServer) -> None:
    async with user(guarded) as root:
        await access.ensure_role(root, "role", [Grant("read", "a", prefix=True), Grant("write", "b")])
        await access.ensure_user(root, "u", "hush", "role")
        assert await rights(guarded) == {"a": "r", "a/b": "r", "a/b/c": "r", "b": "w"}
        for _ in range(2):
            await access.ensure_role(root, "role", [Grant("readwrite", "a/b"), Grant("read", "b")])
            assert await rights(guarded) == {"a": "", "a/b": "rw", "a/b/c": "", "b": "r"}


async def test_a_user_that_is_set_up_again_has_the_new_password(guarded: EtcdServer) -> None:
    async with user(guarded) as root:
        await access.ensure_role(root, "role", [Grant("read", "a")])
        await access.ensure_user(root, "u", "before", "role")
        await access.ensure_user(root, "u", "hush", "role")
    assert (await rights(guarded))["a"] == "r"
    async with user(guarded, "u", "before") as session:
        with pytest.raises(Denied):
            await session.get("a")


async def test_what_is_dropped_is_gone_and_dropping_it_again_is_no_error(guarded: EtcdServer) -> None:
    async with user(guarded) as root:
        await access.ensure_role(root, "role", [])
        await access.ensure_user(root, "u", "hush", "role")
        assert (await access.users(root), await access.roles(root)) == ({"root", "u"}, {"root", "role"})
        assert [await access.drop_user(root, "u") for _ in range(2)] == [True, False]
        assert [await access.drop_role(root, "role") for _ in range(2)] == [True, False]
        assert (await access.users(root), await access.roles(root)) == ({"root"}, {"root"})
