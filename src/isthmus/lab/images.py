"""Image name → program of the host. Nothing is pulled: what has no stand-in here is a clear error.

An image is known by its name without registry and tag: ``docker.io/library/busybox:1.36`` is ``busybox``.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

PROGRAMS: Final = Path(__file__).parent / "programs"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IDLE: Final = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
"""Waits without end, and ends at once when told: as process 1, a plain sleep would not."""


class UnknownImage(Exception):  # noqa: N818
    """There is no stand-in for an image; the message says what to do."""


class Image(Struct, frozen=True):
    """What stands in for an image: what it runs, with what unless told otherwise, and what it needs of the host."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    needs: str = ""
    """A program without which it cannot run."""
    package: str = ""
    """The Debian package that brings it."""


def _python() -> str:
    """The interpreter under the virtual environment: starts faster and sees none of its packages."""
    return os.path.realpath(sys.executable)


BUILT_IN: Final[Mapping[str, Image]] = {
    "isthmus/echo": Image((_python(), "-I", "-S", str(PROGRAMS / "echo.py"))),
    "isthmus/client": Image(command=("/bin/sh", "-c", IDLE)),
    "busybox": Image(command=("sh",)),
    "alpine": Image(command=("sh",)),
    "debian": Image(command=("bash",), needs="bash", package="bash"),
    "ubuntu": Image(command=("bash",), needs="bash", package="bash"),
    "python": Image(command=("python3",)),
    "pause": Image(command=("/bin/sh", "-c", IDLE)),
    "curlimages/curl": Image(entrypoint=("curl",), needs="curl", package="curl"),
    "alpine/socat": Image(entrypoint=("socat",), needs="socat", package="socat"),
    "nginx": Image(command=("nginx", "-g", "daemon off;"), needs="nginx", package="nginx-light"),
}


def canonical(name: str) -> str:
    """An image's name without registry, tag and digest."""
    name = name.partition("@")[0]
    head, slash, tail = name.rpartition("/")
    name = head + slash + tail.partition(":")[0]
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        name = rest
    return name.removeprefix("library/")


def find(name: str, *, own: Mapping[str, Image] | None = None) -> Image:
    """The stand-in: the user's own table first, by full name or canonical, then what is built in."""
    short = canonical(name)
    for table in (own or {}, BUILT_IN):
        if (image := table.get(name) or table.get(short)) is not None:
            if image.needs and shutil.which(image.needs, path=PATH) is None:
                raise UnknownImage(f"image {name!r}: its stand-in needs {image.needs}: apt-get install {image.package}")
            return image
    raise UnknownImage(f"image {name!r} has no stand-in; known: {', '.join(sorted({*(own or {}), *BUILT_IN}))}")


def environment() -> dict[str, str]:
    """What every container starts from."""
    return {"PATH": f"{PATH}:{Path(_python()).parent}", "HOME": "/root", "LANG": "C.UTF-8"}


def command(image: Image, command: list[str] | None, args: list[str] | None) -> list[str]:
    """What is run: the container's command replaces the entrypoint and, with it, the image's own arguments."""
    if command:
        return [*command, *(args or ())]
    return [*image.entrypoint, *(args or image.command)]
