"""The lab's own programs and their interpreter: their paths on this host and in containers.

A container's mounts may hide any path of the host: /tmp is its own, and a volume may lie over the checkout, or over the
interpreter. So containers have both below :data:`RESERVED`, a directory of the root, where they are mounted after all
else. Without namespaces (:func:`privileges.on_loopback`) containers see the host's files where they are.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final, NamedTuple

from isthmus_lab import privileges

RESERVED: Final = Path("/.isthmus")
_NAME: Final = f"python{sys.version_info.major}.{sys.version_info.minor}"


class Location(NamedTuple):
    """Directories of the interpreter (as ``sys.base_prefix``) and of the programs."""

    prefix: Path
    programs: Path

    @property
    def binaries(self) -> Path:
        """Directory of the interpreter itself, as an entry of PATH."""
        return self.prefix / "bin"

    def command(self, program: str, *arguments: str) -> list[str]:
        """The words that run a program of the lab, by its file name."""
        path = str(self.programs / program)
        if path.endswith(".sh"):
            return ["/bin/sh", path, *arguments]
        # -I -S: starts faster, and sees neither the environment's packages nor the user's
        return [str(self.binaries / _NAME), "-I", "-S", path, *arguments]


ON_HOST: Final = Location(Path(sys.base_prefix), Path(__file__).parent / "programs")
"""The interpreter is the one below the virtual environment."""
IN_CONTAINER: Final = Location(RESERVED / "python", RESERVED / "programs")


def location() -> Location:
    """Location inside the containers of this process's labs."""
    return ON_HOST if privileges.on_loopback() else IN_CONTAINER


def mounts() -> list[tuple[Path, Path]]:
    """Bind mounts of every container, as paths of this host and of the container."""
    library = _shared_library()
    shared = [(library, _libraries() / library.name)] if library else []
    return [*zip(ON_HOST, IN_CONTAINER, strict=True), *shared]


def environment() -> dict[str, str]:
    """Environment of a container that runs a program of the lab: the interpreter's library is found by it.

    Empty if the interpreter was linked without one. Else that library has an absolute path, which a mount may hide. The
    directory contains nothing else, so other programs find their own libraries as ever.
    """
    return {"LD_LIBRARY_PATH": str(_libraries())} if location() is IN_CONTAINER and _shared_library() else {}


def _libraries() -> Path:
    return RESERVED / "lib"


def _shared_library() -> Path | None:
    """The libpython that this process has mapped; None if the interpreter was linked without one."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        _, slash, path = line.partition("/")
        if Path(path).name.startswith(f"lib{_NAME}"):
            return Path(slash + path)
    return None
