"""Users, roles and permissions of an etcd. The caller needs the user ``root``.

Every function is idempotent: it changes what differs from the wanted state. Permissions that stay are never revoked in
between, so a client that keeps a right is not denied meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from isthmus.etcd import wire
from isthmus.etcd.errors import Denied
from isthmus.etcd.session import Session
from isthmus.etcd.values import encode, end_of

ROOT: Final = "root"

Right = Literal["read", "write", "readwrite"]
_RIGHTS: Final[tuple[Right, ...]] = ("read", "write", "readwrite")


class Grant(NamedTuple):
    """A permission on one key, or on every key with that prefix."""

    right: Right
    key: str
    prefix: bool = False

    @property
    def range(self) -> tuple[bytes, bytes]:
        """First key and the key after the last; the latter is empty for a single key."""
        return encode(self.key), end_of(self.key) if self.prefix else b""


async def ensure_role(session: Session, role: str, grants: Iterable[Grant]) -> None:
    """Create or change a role to have exactly these permissions; new ones are granted before old ones are revoked."""
    if role not in await roles(session):
        await session.call(wire.ROLE_ADD, wire.Named(name=role))
    if role == ROOT:
        return  # etcd gives it everything: newer ones list that as a permission, which cannot be revoked
    granted = (await session.call(wire.ROLE_GET, wire.Named(name=role))).permissions
    have = {(each.key, each.range_end): each.right for each in granted}
    want = {grant.range: _RIGHTS.index(grant.right) for grant in grants}
    for (key, end), right in want.items():
        if have.get((key, end)) != right:
            permission = wire.Permission(right=right, key=key, range_end=end)
            await session.call(wire.ROLE_GRANT, wire.RolePermission(name=role, permission=permission))
    for key, end in have.keys() - want.keys():
        await session.call(wire.ROLE_REVOKE, wire.RoleRange(role=role, key=key, range_end=end))


async def ensure_user(session: Session, user: str, password: str, role: str) -> None:
    """Create or change a user to have this password and this role.

    Setting a password, even the same one, ends every token of the user.
    """
    request = wire.UserPassword(name=user, password=password)
    await session.call(wire.USER_PASSWORD if user in await users(session) else wire.USER_ADD, request)
    await session.call(wire.USER_GRANT, wire.UserRole(user=user, role=role))


async def users(session: Session) -> set[str]:
    """The names of all users."""
    return set((await session.call(wire.USER_LIST, wire.Nothing())).names)


async def roles(session: Session) -> set[str]:
    """The names of all roles."""
    return set((await session.call(wire.ROLE_LIST, wire.Nothing())).names)


async def drop_user(session: Session, user: str) -> bool:
    """Delete a user; whether it existed."""
    if exists := user in await users(session):
        await session.call(wire.USER_DELETE, wire.Named(name=user))
    return exists


async def drop_role(session: Session, role: str) -> bool:
    """Delete a role; whether it existed."""
    if exists := role in await roles(session):
        await session.call(wire.ROLE_DELETE, wire.Named(name=role))
    return exists


async def enabled(session: Session) -> bool:
    """True if requests need authentication. The session's user is ``root``, which need not exist yet."""
    try:
        await users(session)
    except Denied as error:
        if "not enabled" not in str(error):
            raise
        return False
    return True


async def enable(session: Session) -> None:
    """Refuse requests without authentication from now on. Needs a user ``root`` that has the role ``root``."""
    await session.call(wire.AUTH_ENABLE, wire.Nothing())
