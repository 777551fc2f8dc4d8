"""Files in which a process keeps what it knew, to begin with it the next time: with a version and a checksum.

A file that cannot be used never keeps a process from starting. It is set aside under another name, where it can be
looked at, and the process goes on as if there were none. What is written replaces the file as a whole.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import Final

from isthmus import bounds

MAGIC: Final = b"isthmus-state"
MAX_SIZE: Final = 256 * 1024 * 1024
"""Bytes of a file that is read: four times the records of a peer."""
MAX_HEADER: Final = 128
KEPT: Final = 3
"""Files set aside in the place of one that are kept: the newest."""
ASIDE: Final = ".unusable-"
"""Between the name of a file and the number under which it is set aside."""
MAX_NUMBER: Final = 999_999_999


class Unusable(Exception):  # noqa: N818 about the file
    """A file cannot be used; the message has the reason."""


def read(path: Path, *, version: int) -> bytes | None:
    """What :func:`write` wrote; ``None`` if there is no file. Unusable where it is not, or was written by another
    version."""
    content = contents(path)
    if content is None:
        return None
    header, _, body = content.partition(b"\n")
    if header != _header(body, version=version):
        raise Unusable(_difference(header, version=version))
    return body


def contents(path: Path) -> bytes | None:
    """The bytes of a regular file; ``None`` if there is no file. Unusable where it cannot be read, or is none."""
    try:
        # A FIFO would be waited for, for ever.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise Unusable("it is not a regular file")
            content = file.read(MAX_SIZE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Unusable(f"it cannot be read: {error.strerror}") from None
    if len(content) > MAX_SIZE:
        raise Unusable(f"it is larger than {MAX_SIZE} bytes")
    return content


def stamp(path: str | Path) -> tuple[int, ...]:
    """Return what changes with a file's content, to compare; empty for a file that is not there."""
    try:
        stat = os.stat(path)  # noqa: PTH116 twice a second for each file of hundreds of peers
    except OSError:
        return ()
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino, stat.st_dev)


def write(path: Path, body: bytes, *, version: int) -> None:
    """Write a file for :func:`read`."""
    replace(path, b"%b\n%b" % (_header(body, version=version), body))


def replace(path: Path, content: bytes) -> None:
    """Write a file of mode 0600, whole or not at all; OSError if it cannot be written.

    What is not a regular file and stands in its place is set aside. One process writes a file: the name of what is not
    whole yet is always the same, so that what a killed process leaves is overwritten.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    for each in (path, part):
        if each.is_dir() and not each.is_symlink():
            set_aside(each)
    try:
        part.unlink(missing_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(content)
        part.replace(path)
    except OSError:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise


def set_aside(path: Path) -> Path | None:
    """Rename a file that cannot be used, and delete the oldest of those that were set aside in its place.

    ``None`` if it stays where it is, since the directory cannot be written.
    """
    others = aside(path)
    number = max((_number(file) for file in others), default=0) + 1
    target = path.with_name(f"{path.name}{ASIDE}{number}")
    try:
        path.rename(target)
    except OSError:
        return None
    for file in others[: max(0, len(others) + 1 - KEPT)]:
        with suppress(OSError):  # a directory stays: what is in it is not ours
            file.unlink()
    return target


def aside(path: Path) -> list[Path]:
    """The files that were set aside in the place of one, oldest first."""
    files = [each for each in path.parent.glob(f"{path.name}{ASIDE}*") if _number(each)]
    return sorted(files, key=_number)


def _number(path: Path) -> int:
    """The number under which a file was set aside; 0 for any other name."""
    try:
        return bounds.count(path.name.rpartition(ASIDE)[2], most=MAX_NUMBER)
    except bounds.OutOfBounds:
        return 0


def _header(body: bytes, *, version: int) -> bytes:
    return b"%b %d %b" % (MAGIC, version, blake2b(body, digest_size=16).hexdigest().encode())


def _difference(header: bytes, *, version: int) -> str:
    fields = header[:MAX_HEADER].split(b" ")
    if len(fields) != 3 or fields[0] != MAGIC:
        return "it was not written by this version"
    if fields[1] != b"%d" % version:
        return f"it is of version {fields[1].decode('ascii', 'replace')[:8]}, want {version}"
    return "its checksum is wrong"
