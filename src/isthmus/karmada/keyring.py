"""The keys of a member, as files of :class:`isthmus.clusterset.Folder`, kept in a Secret of the control plane.

The Secret stands in a namespace that Karmada never propagates. A member gets of it what its processes need, by Works;
the key of its authority never leaves the control plane.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from isthmus.clusterset import Folder, pki, remote_user
from isthmus.model.names import ClusterName

SERVER_NAMES: Final = ("isthmus-etcd", "isthmus-etcd.isthmus-system.svc", "localhost", "127.0.0.1")
"""What the certificate of a member's etcd is for, beside its addresses."""
DAYS: Final = 365
MEMBER: Final = "isthmus.io/member"
"""Label of such a Secret: whose keys these are."""
PASSWORD: Final = ".password"
NAMES: Final = frozenset(
    f"{name}{ending}"
    for names, endings in ((("ca", "server", "peer", *pki.CLIENTS), (".crt", ".key")), (pki.USERS, (PASSWORD,)))
    for name in names
    for ending in endings
)
"""What every member has, beside the passwords of its peers."""


class Keys(Struct, frozen=True):
    """Files by name."""

    member: ClusterName
    id: int
    files: Mapping[str, bytes]

    def __repr__(self) -> str:
        return f"<Keys of {self.member}>"

    def some(self, *names: str) -> dict[str, bytes]:
        """Files of these names."""
        return {name: self.files[name] for name in names}

    def password(self, user: str) -> str:
        """That of a user of the member's etcd."""
        return self.files[user + PASSWORD].decode().strip()


def ensure(
    member: ClusterName,
    before: Mapping[str, bytes],
    *,
    id: int,
    hosts: Iterable[str],
    readers: Iterable[ClusterName],
) -> Keys:
    """What a member needs, with as much as possible of what there was: certificates for its hosts that last, and the
    passwords with which its peers read its etcd; those of former peers are dropped."""
    users = {remote_user(each) + PASSWORD for each in readers}
    with tempfile.TemporaryDirectory(prefix="isthmus-keys-") as path:
        folder = Folder(Path(path))
        for name, content in before.items():
            if name in users or not name.startswith(remote_user(ClusterName(""))):
                folder.save(name, content)
        folder.ensure(member, [*SERVER_NAMES, *hosts], days=DAYS)
        for name in sorted(users - before.keys()):
            folder.save(name, secrets.token_urlsafe(24).encode())
        return Keys(member, id, {each.name: each.read_bytes() for each in sorted(Path(path).iterdir())})


def complete(files: Mapping[str, bytes], *, hosts: Iterable[str], readers: Iterable[ClusterName]) -> bool:
    """Whether a member has what it needs, though some of it may be due for renewal. Makes nothing."""
    users = {name for name in files if name.startswith(remote_user(ClusterName("")))}
    return (
        files.keys() >= NAMES
        and users == {remote_user(each) + PASSWORD for each in readers}
        and pki.covers(files["server.crt"], [*SERVER_NAMES, *hosts])
    )
