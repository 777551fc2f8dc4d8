"""Who may do what in an etcd: users, roles, and what roles may read and write. For root only.

Everything here says how things should be and may be said again: what is there already is made to fit, and nobody who
keeps a right is without it in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from isthmus.etcd import wire
from isthmus.etcd.session import Session
from isthmus.etcd.values import encode, end_of

ROOT: Final = "root"

Right = Literal["read", "write", "readwrite"]
_RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "readwrite")


class Grant(NamedTuple):
    """A right to one key, or to everything that begins like it."""

    right: Right
    key: str
    below: bool = False

    @property
    def range(self) -> tuple[bytes, bytes]:
        """First key, and the one after the last; empty where one key is meant."""
        return encode(self.key), end_of(self.key) if self.below else b""


async def ensure_role(session: Session, role: str, grants: Iterable[Grant]) -> None:
    """A role with these rights and no others."""
    if role not in await roles(session):
        await session.call(wire.ROLE_ADD, wire.Named(name=role))
    held = (await session.call(wire.ROLE_GET, wire.Named(name=role))).permissions
    have = {(each.key, each.range_end): each.right for each in held}
    want = {grant.range: _RIGHTS.index(grant.right) for grant in grants}
    for (key, end), right in want.items():
        if have.get((key, end)) != right:
            permission = wire.Permission(right=right, key=key, range_end=end)
            await session.call(wire.ROLE_GRANT, wire.RolePermission(name=role, permission=permission))
    for key, end in have.keys() - want.keys():
        await session.call(wire.ROLE_REVOKE, wire.RoleRange(role=role, key=key, range_end=end))


async def ensure_user(session: Session, user: str, password: str, role: str) -> None:
    """A user of this password who has this role."""
    said = wire.UserPassword(name=user, password=password)
    await session.call(wire.USER_PASSWORD if user in await users(session) else wire.USER_ADD, said)
    await session.call(wire.USER_GRANT, wire.UserRole(user=user, role=role))


async def users(session: Session) -> set[str]:
    """The names of all users."""
    return set((await session.call(wire.USER_LIST, wire.Nothing())).names)


async def roles(session: Session) -> set[str]:
    """The names of all roles."""
    return set((await session.call(wire.ROLE_LIST, wire.Nothing())).names)


async def drop_user(session: Session, user: str) -> bool:
    """No such user any more; whether there was one."""
    if found := user in await users(session):
        await session.call(wire.USER_DELETE, wire.Named(name=user))
    return found


async def drop_role(session: Session, role: str) -> bool:
    """No such role any more; whether there was one."""
    if found := role in await roles(session):
        await session.call(wire.ROLE_DELETE, wire.Named(name=role))
    return found


async def enable(session: Session) -> None:
    """From now on nothing is done for those who do not say who they are. Needs a user ``root`` of role ``root``."""
    await session.call(wire.AUTH_ENABLE, wire.Nothing())
