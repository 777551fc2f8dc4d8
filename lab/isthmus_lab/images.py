"""Image name → program of the host. Nothing is pulled: what has no stand-in here is a clear error.

An image is known by its name without registry and tag: ``docker.io/library/busybox:1.36`` is ``busybox``. A name of the
user's own may be a pattern (``acme/*``, ``*``), which counts where no name does.
"""

from __future__ import annotations

import fnmatch
import shlex
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from isthmus_lab import own_programs
from isthmus_lab.own_programs import Location

PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IDLE: Final = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"
"""Waits without end, and ends at once on SIGTERM: as process 1, a plain sleep would not."""


class UnknownImage(Exception):  # noqa: N818
    """There is no stand-in for an image; the message has the option that adds one."""


class Image(Struct, frozen=True, forbid_unknown_fields=True):
    """A stand-in for an image: the command, its default arguments, and what it needs of the host."""

    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    needs: str = ""
    """A program without which it cannot run."""
    package: str = ""
    """The Debian package that brings it."""
    stand_in: bool = False
    """Instead of a command of its own: listens on the container's ports and answers (``programs/stand_in.py``)."""
    program: str = ""
    """The lab's own program that it runs, by its file name; ``entrypoint`` is then how its arguments begin."""


STAND_IN: Final = Image(stand_in=True)


def _program(name: str, *arguments: str) -> Image:
    """One of our own small programs."""
    return Image(arguments, program=name)


def _nginx() -> Image:
    """The real one where it is installed, else a page with as much as the tutorials look at."""
    real = shutil.which("nginx", path=PATH) is not None
    return Image(command=("nginx", "-g", "daemon off;")) if real else _program("http_echo.py", "--nginx")


_SHELL: Final = Image(command=("sh",))
_BASH: Final = Image(command=("bash",), needs="bash", package="bash")
_TOOLS: Final = Image(command=("/bin/sh", "-c", IDLE))

BUILT_IN: Final[Mapping[str, Image]] = {
    "isthmus/echo": _program("echo.py"),
    "isthmus/client": _TOOLS,
    "pause": _TOOLS,
    "redis": Image(("redis-server",), ("--protected-mode", "no"), needs="redis-server", package="redis-server"),
    "postgres": Image(program="postgres.sh", needs="pg_lsclusters", package="postgresql"),
    "busybox": _SHELL,
    "alpine": _SHELL,
    "debian": _BASH,
    "ubuntu": _BASH,
    "python": Image(command=("python3",)),
    "curlimages/curl": Image(entrypoint=("curl",), needs="curl", package="curl"),
    "radial/busyboxplus": _SHELL,
    "alpine/curl": Image(entrypoint=("curl",), needs="curl", package="curl"),
    "alpine/socat": Image(entrypoint=("socat",), needs="socat", package="socat"),
    "nicolaka/netshoot": _TOOLS,
    "wbitt/network-multitool": _TOOLS,
    "jonlabelle/network-tools": _TOOLS,
    "e2e-test-images/jessie-dnsutils": _TOOLS,
    "hashicorp/http-echo": _program("http_echo.py"),
    "traefik/whoami": _program("http_echo.py", "--whoami"),
    "nginx": _nginx(),
    "nginxinc/nginx-unprivileged": _program("http_echo.py", "--nginx", "-port=8080"),
}

PACKAGES: Final[Mapping[str, str]] = {
    "curl": "curl",
    "dig": "dnsutils",
    "host": "dnsutils",
    "ip": "iproute2",
    "nc": "netcat-openbsd",
    "nginx": "nginx-light",
    "nslookup": "dnsutils",
    "ping": "iputils-ping",
    "redis-server": "redis-server",
    "socat": "socat",
    "telnet": "telnet",
    "wget": "wget",
}
"""Debian's packages of programs that people expect in the images above."""


def own_program(image: Image) -> bool:
    """True for a program of the lab, which listens on the address in its environment."""
    return image.stand_in or image.program.endswith(".py")


def untagged(name: str) -> str:
    """An image's name without tag and digest."""
    head, slash, tail = name.partition("@")[0].rpartition("/")
    return head + slash + tail.partition(":")[0]


def canonical(name: str) -> str:
    """An image's name without registry, tag and digest."""
    name = untagged(name)
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost"):
        name = rest
    return name.removeprefix("library/")


def find(name: str, *, own: Mapping[str, Image] | None = None) -> Image:
    """The stand-in: the user's own by full name, without tag, then canonical; then built in; then a pattern."""
    names, own = (name, untagged(name), canonical(name)), own or {}
    lacks = ""
    for table in (own, BUILT_IN, _matching(names, own)):
        if (image := next((table[each] for each in names if each in table), None)) is not None:
            if not image.needs or shutil.which(image.needs, path=PATH) is not None:
                return image
            lacks = lacks or f"image {name!r}: its stand-in needs {image.needs}: apt-get install {image.package}"
    raise UnknownImage(lacks or f"image {name!r} has no stand-in: isthmus lab image add {untagged(name)}=COMMAND…")


def _matching(names: Sequence[str], own: Mapping[str, Image]) -> dict[str, Image]:
    """The image of the first pattern that matches one of an image's names, by that name."""
    patterns = (pattern for pattern in own if any(sign in pattern for sign in "*?["))
    return next(({matches[0]: own[each]} for each in patterns if (matches := fnmatch.filter(names, each))), {})


def stand_in(name: str, ports: Iterable[str], *, own: Location) -> list[str]:
    """The command that stands in for an image: ``ports`` as in ``tcp:80``; ``own``: where the lab's programs are."""
    return own.command("stand_in.py", name, *ports)


def shown(image: Image) -> str:
    """Command of an image, on one line."""
    return "listens and answers" if image.stand_in else shlex.join(command(image, None, None))


def missing(program: str) -> str:
    """Message about a program that this host lacks."""
    package = PACKAGES.get(program.rpartition("/")[2])
    return f"{program}: not on this host" + (f": apt-get install {package}" if package else "")


def parse_option(text: str) -> tuple[str, Image]:
    """``NAME=COMMAND…`` as on the command line; ValueError has the reason."""
    name, equals, words = text.partition("=")
    try:
        command = shlex.split(words)
    except ValueError as error:
        raise ValueError(f"--image {text}: {error}") from None
    if not name or not equals or not command:
        raise ValueError(f"--image {text}: want NAME=COMMAND…, as in --image acme/shop='python3 /srv/shop.py'")
    return name, Image(tuple(command))


def of_file(path: Path) -> dict[str, Image]:
    """Read a file that maps names to a command or to the fields of :class:`Image`. ValueError names the file."""
    try:
        raw = yaml.safe_load(path.read_text())
        entries = raw["images"] if isinstance(raw, dict) and "images" in raw else raw
        return {name: _entry(value) for name, value in msgspec.convert(entries, dict[str, Any]).items()}
    except (OSError, ValueError, yaml.YAMLError, msgspec.ValidationError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None


def _entry(value: Any) -> Image:
    return Image(tuple(shlex.split(value))) if isinstance(value, str) else msgspec.convert(value, Image)


def environment() -> dict[str, str]:
    """Base environment of every container."""
    return {"PATH": f"{PATH}:{own_programs.location().binaries}", "HOME": "/root", "LANG": "C.UTF-8"}


def command(
    image: Image, command: list[str] | None, args: list[str] | None, *, own: Location | None = None
) -> list[str]:
    """Words to run: the container's command replaces the entrypoint and, with it, the image's own arguments.

    ``own``: location of the lab's programs; ``None`` selects their paths in containers.
    """
    if command:
        return [*command, *(args or ())]
    words = [*image.entrypoint, *(args or image.command)]
    return (own or own_programs.location()).command(image.program, *words) if image.program else words


def named_programs(image: Image) -> tuple[str, ...]:
    """Files of this host that an image's words name by absolute paths: its program, and what an interpreter runs."""
    return tuple(word for word in (*image.entrypoint, *image.command) if word[:1] == "/" and Path(word).is_file())
