"""The files of one Secret in a directory, written on each event of its watch: a kubelet's mount is a minute late.

The invariant: the directory holds the files of the Secret as it was last read, and no others. Files that refer to
others (a peer's file, whose name has no dot, names its certificates) are written last and removed first. A Secret that
does not exist, or was deleted, changes nothing: peers are withdrawn by taking their files out of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from isthmus import kube, logs, statefile
from isthmus.kube.objects.core import SECRET, Secret, decoded_files
from isthmus.reflector import Event, Reflector

COMPLETE: Final = ".complete"
"""File that shows a later process in the same pod that the directory was filled once."""

log = logs.get("sources")


class SecretFiles:
    """A reflector's sink for one Secret. ``read`` is set once the API server has answered, also without such a Secret.

    OSError where the directory cannot be written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.read = asyncio.Event()
        self.problem = ""
        """Reason why the Secret as it is now is not used; empty if it is."""
        if (directory / COMPLETE).exists():
            self.read.set()

    def __repr__(self) -> str:
        return f"<SecretFiles {self._directory}>"

    async def replace(self, items: Mapping[str, Secret], *, partial: bool) -> None:
        """Write the files of the Secret, if it exists."""
        for secret in items.values():
            self._write(secret)
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        (self._directory / COMPLETE).touch(mode=0o600)
        self.read.set()

    def apply(self, events: Sequence[Event[Secret]]) -> None:
        """Write its files anew; a deleted Secret leaves them."""
        for event in events:
            if event.item is not None:
                self._write(event.item)
            else:
                log.warning("the Secret was deleted: its files stay as they are", directory=str(self._directory))

    def _write(self, secret: Secret) -> None:
        try:
            files = decoded(secret)
        except ValueError as error:
            self.problem = f"Secret {secret.metadata.name}: {error}"
            log.warning("Secret cannot be used", why=str(error), name=secret.metadata.name)
            return
        self.problem = ""
        write(self._directory, files)


def reflector(client: kube.Client, namespace: str, secret: str, files: SecretFiles, *, name: str) -> Reflector[Secret]:
    """Return what keeps files as a Secret is, to be run by the caller; ``name`` is that of the source."""
    return Reflector(client.store(SECRET, namespace, field_selector=f"metadata.name={secret}"), files, name=name)


def decoded(secret: Secret) -> dict[str, bytes]:
    """The files of a Secret; ValueError names one that is not valid base64, or whose name is none of a file."""
    files = decoded_files(secret.data)
    if bad := [name for name in files if name.startswith(".") or "/" in name]:
        raise ValueError(f"{bad[0]!r} is not the name of a file")
    return files


def write(directory: Path, files: Mapping[str, bytes]) -> None:
    """Make a directory hold these files and no others, each replaced whole, its owner's only."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    existing = {path.name for path in directory.iterdir() if not path.name.startswith(".")}
    for name in sorted(existing - files.keys(), key=_refers_to_none):
        (directory / name).unlink()
    for name in sorted(files, key=_refers_to_none, reverse=True):
        if name not in existing or (directory / name).read_bytes() != files[name]:
            statefile.replace(directory / name, files[name])


def _refers_to_none(name: str) -> bool:
    return "." in name
