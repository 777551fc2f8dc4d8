"""In a member, beside its etcd: users and rights by the keys that Karmada brought.

No process of a cluster but this one has the etcd's root. It reads a folder that a Secret is mounted at, and acts when
that changes: a password anew would end every session of its user, so nothing is set that did not change.
"""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Final

from isthmus import logs
from isthmus.clusterset import JoinError, OwnCluster, PkiError, joining, remote_user
from isthmus.etcd import EtcdError
from isthmus.karmada.keyring import PASSWORD
from isthmus.model.names import ClusterName
from isthmus.reflector import Expired, Transient

log = logs.get("karmada")

EVERY: Final = 1.0
"""Seconds between two looks at the folder."""


class Granting:
    """Keeps the users of one etcd."""

    def __init__(self, home: OwnCluster) -> None:
        self._home = home
        self._done = ""
        self._granted: dict[ClusterName, str] = {}
        self._failure = ""

    def __repr__(self) -> str:
        return f"<Granting in {self._home.name}: {', '.join(self._granted) or 'nobody'}>"

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> bool:
        """Apply what changed; whether the etcd has the users of the folder. A failure is logged once."""
        try:
            entries = read(self._home.folder.path)
            digest = hashlib.sha256(repr(sorted(entries.items())).encode()).hexdigest()
            if digest == self._done:
                return True
            passwords = {
                ClusterName(name.removesuffix(PASSWORD).removeprefix(remote_user(ClusterName("")))): content
                for name, content in entries.items()
                if name.startswith(remote_user(ClusterName(""))) and name.endswith(PASSWORD)
            }
            if not self._done:
                await joining.guard(self._home)
            await joining.grant(
                self._home, {peer: each.decode().strip() for peer, each in passwords.items()}, self._granted
            )
        except (JoinError, PkiError, EtcdError, Transient, Expired, OSError) as error:
            if str(error) != self._failure:
                log.warning("users of the etcd are not as they should be", why=str(error))
            self._failure = str(error)
            return False
        self._done, self._failure = digest, ""
        log.info("users of the etcd are as they should be", readers=sorted(self._granted))
        return True


def read(folder: Path) -> dict[str, bytes]:
    """The files of a folder; hidden ones are the machinery of mounted Secrets."""
    return {each.name: each.read_bytes() for each in sorted(folder.iterdir()) if each.name[0] != "." and each.is_file()}
