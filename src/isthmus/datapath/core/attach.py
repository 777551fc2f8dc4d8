"""Load, pin, attach, detach.

``<pin>/v<layout>-<max_entries>/`` holds the maps, ``<pin>/links/`` the links. A process that starts takes the maps it
finds, loads its own programs over them, and puts them into the links in the place of the old: no call is without a
program, and nothing detaches because a process ends.

Where maps of another layout or size are found, the programs that use them stay in the links while new maps are filled
beside them; ``take_over`` then replaces the programs and removes the old maps. Maps that refer to no number of another
map (sockets' rewritten destinations, ``alive``) are carried over where their shape is the same: replies to old sockets
and DNS go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from isthmus.datapath.core import btf, libbpf, manifest
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.manifest import Map, Program
from isthmus.datapath.core.shapes import Shape, check
from isthmus.datapath.core.tc import Attachment, PodLinks, remove_filters

OBJECT: Final = Path(__file__).parent.with_name("isthmus.bpf.o")
CGROUP_SOCK_ADDR: Final = 18
CONSTANTS: Final = Shape("constants", has_set_retval="I", has_mptcp="I")
HELPERS: Final = (187, 196)
"""Of bpf_set_retval and bpf_skc_to_mptcp_sock, in the order of the constants that say whether this kernel has them."""


def directory(pin: str, *, max_entries: int) -> Path:
    """Where maps of this layout and size are pinned."""
    return Path(pin) / f"v{manifest.LAYOUT}-{max_entries}"


def pinned(pin: str) -> Path:
    """Where maps of this layout are pinned, whatever their size; the newest where there are several."""
    found = [where for where in _entries(Path(pin)) if where.name.startswith(f"v{manifest.LAYOUT}-")]
    return max(found, key=lambda where: where.stat().st_mtime, default=Path(pin) / f"v{manifest.LAYOUT}")


def links(pin: str) -> Path:
    """Where the links are pinned."""
    return Path(pin) / "links"


class Loaded:
    """Programs and maps in the kernel. ``waiting``: maps of another layout are still what calls are answered from.

    It holds the links' descriptors, so a program stays attached when its pin is deleted.
    """

    def __init__(self, opened: libbpf.Object, programs: Sequence[Program], *, where: Path, cgroup: str) -> None:
        self._opened = opened
        self.programs = tuple(program.name for program in programs if program.kind == "cgroup")
        self._every = tuple(programs)
        self.where = where
        """The directory of the maps."""
        self._pin = str(where.parent)
        self._cgroup = cgroup
        self._links: dict[str, int] = {}
        self._programs: dict[str, int] = {}
        """The kernel's ids of the programs that we attached, by name."""
        self.waiting = bool(others(where))
        self.maps = {name: opened.map_fd(pointer) for name, pointer in opened.maps().items()}

    def take_over(self) -> None:
        """Attach, replacing the programs attached before, and remove the maps of other layouts."""
        with _said():
            self._attach()
            for where in others(self.where):
                _unpin(where)
        self.waiting = False

    def program_fd(self, name: str) -> int:
        """The descriptor of one of our programs, to attach it elsewhere than to the cgroup."""
        return self._opened.program_fd(name)

    def superseded(self) -> str:
        """That another agent replaced our programs, as a sentence; empty when none did."""
        found = [(libbpf.link_info(fd), self._programs[name]) for name, fd in self._links.items()]
        others = any(cgroup and program != ours for (cgroup, program), ours in found)
        return f"another agent's programs are attached to {self._cgroup}" if others else ""

    def repair(self) -> list[str]:
        """Pin or attach again the programs that were unpinned or detached; returns their names.

        DatapathError, and nothing repaired, where another agent has replaced our programs.
        """
        if why := self.superseded():
            raise DatapathError(why)
        with _said():
            cgroup, where = cgroup_id(self._cgroup, field="cgroup"), links(self._pin)
            holds = {name: libbpf.link_info(fd)[0] == cgroup for name, fd in self._links.items()}
            lost = [name for name, held in holds.items() if not held or not (where / name).exists()]
            for name in lost:
                if holds[name]:
                    where.mkdir(parents=True, exist_ok=True)
                    libbpf.pin(self._links[name], where / name)
            if not all(holds.values()):
                self._attach()
        return lost

    def _attach(self) -> None:
        where = links(self._pin)
        where.mkdir(parents=True, exist_ok=True)
        _attach(self._opened, self.programs, cgroup=self._cgroup, where=where)
        self._let_go()
        self._links = {name: libbpf.open_pinned(where / name) for name in self.programs}
        self._programs = {name: libbpf.link_info(fd)[1] for name, fd in self._links.items()}

    def _let_go(self) -> None:
        for fd in self._links.values():
            os.close(fd)
        self._links = {}

    def pod_links(self, announce: Callable[[int, int | None], object]) -> PodLinks:
        """What keeps the programs of pods' interfaces attached; its ``keep()`` is a task of the process."""
        found = [
            Attachment(each.name, each.kind, self._opened.program_fd(each.name))
            for each in self._every
            if each.kind != "cgroup"
        ]
        return PodLinks(found, pins=links(self._pin), announce=announce)

    def close(self) -> None:
        """Free libbpf's memory; what is attached stays."""
        self._let_go()
        self._opened.close()


def load(maps: Mapping[str, Map], programs: Sequence[Program], *, pin: str, cgroup: str, max_entries: int) -> Loaded:
    """Load the programs over the maps pinned at ``pin``; attach them, unless another layout is still there."""
    _require_bpffs(Path(pin))
    if not OBJECT.exists():
        raise DatapathError(f"{OBJECT} is missing: compile it with `make bpf`")
    with _said():
        loaded = _load(maps, programs, pin=pin, cgroup=cgroup, max_entries=max_entries)
        try:
            if not loaded.waiting:
                loaded.take_over()
        except BaseException:
            loaded.close()
            raise
        return loaded


@contextmanager
def _said() -> Iterator[None]:
    """What the kernel refuses, in our words; also where there is no libbpf to call."""
    try:
        yield
    except OSError as error:
        raise DatapathError(error.strerror or str(error)) from None


def _load(maps: Mapping[str, Map], programs: Sequence[Program], *, pin: str, cgroup: str, max_entries: int) -> Loaded:
    opened = libbpf.Object(OBJECT)
    try:
        shapes = [shape for row in maps.values() for shape in (row.key, row.value, *row.parts)]
        check([CONSTANTS, *shapes], btf.layouts(opened.btf()))
        where = directory(pin, max_entries=max_entries)
        where.mkdir(parents=True, exist_ok=True)
        for name, pointer in opened.maps().items():
            row = maps[name]
            if row.carried:
                _carry(where, name, shape=opened.map_shape(pointer), any_size=row.entries is not None)
            _prepare(opened, pointer, where / name, entries=row.entries(max_entries) if row.entries else 0)
        opened.set_constants(constants())
        opened.load()
        return Loaded(opened, programs, where=where, cgroup=cgroup)
    except BaseException:
        opened.close()
        raise


def constants() -> bytes:
    """Which newer helpers this kernel has: without its constant a program that calls one is refused where it is not."""
    return CONSTANTS.pack(*(libbpf.has_helper(CGROUP_SOCK_ADDR, helper) for helper in HELPERS))


def others(where: Path) -> list[Path]:
    """The directories beside this one where maps of another layout or size are pinned."""
    return [each for each in _entries(where.parent) if each.is_dir() and each not in (where, links(str(where.parent)))]


def _carry(where: Path, name: str, *, shape: tuple[int, int, int], any_size: bool) -> None:
    """Take a map over from another layout, if it is the same there; the other's programs go on using it."""
    path = where / name
    found = [other / name for other in others(where) if (other / name).exists()]
    compared = 2 if any_size else 3
    if found and not path.exists() and pinned_info(found[-1])[:compared] == shape[:compared]:
        path.hardlink_to(found[-1])


def _prepare(opened: libbpf.Object, pointer: int, path: Path, *, entries: int) -> None:
    """Pin a map, or take the one that is pinned; one that was carried over keeps its size."""
    if entries and path.exists():
        entries = pinned_info(path)[2]
    if entries:
        opened.resize(pointer, entries)
    opened.pin_map(pointer, path)


def pinned_info(path: Path) -> tuple[int, int, int]:
    """(key size, value size, entries) of a pinned map."""
    fd = libbpf.open_pinned(path)
    try:
        return libbpf.map_info(fd)
    finally:
        os.close(fd)


def cgroup_id(cgroup: str, *, field: str) -> int:
    """What the kernel calls a cgroup; DatapathError names the field where there is none."""
    try:
        return Path(cgroup).stat().st_ino
    except OSError as error:
        raise DatapathError(f"datapath.{field} {cgroup}: {error.strerror}") from None


def pinned_cgroup(path: Path) -> int:
    """The id of the cgroup that a pinned link is attached to."""
    fd = libbpf.open_pinned(path)
    try:
        return libbpf.link_info(fd)[0]
    finally:
        os.close(fd)


def _attach(opened: libbpf.Object, programs: Iterable[str], *, cgroup: str, where: Path) -> None:
    try:
        fd = os.open(cgroup, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise DatapathError(f"datapath.cgroup {cgroup}: {error.strerror}") from None
    try:
        for name in programs:
            program, path = opened.program(name), where / name
            if path.exists():
                if pinned_cgroup(path) == os.fstat(fd).st_ino:
                    libbpf.update_link(path, program)
                    continue
                libbpf.detach_link(path)  # from a cgroup that is gone, or that another configuration named
                path.unlink()
            opened.attach_cgroup(program, fd, path)
    finally:
        os.close(fd)


def remove(pin: str) -> None:
    """Detach every program and unpin everything; nothing there is nothing to do."""
    if Path(pin).is_dir():
        remove_filters()
    for path in _entries(links(pin)):
        try:
            libbpf.detach_link(path)
        except libbpf.BpfError as error:
            raise DatapathError(str(error.strerror)) from None
    for where in (links(pin), *_entries(Path(pin))):
        if where.is_dir():
            _unpin(where)
    if Path(pin).is_dir():
        Path(pin).rmdir()


def _unpin(where: Path) -> None:
    for path in _entries(where):
        path.unlink()
    where.rmdir()


def _entries(where: Path) -> list[Path]:
    return sorted(where.iterdir()) if where.is_dir() else []


def _require_bpffs(pin: Path) -> None:
    mount, kind = Path("/"), ""
    existing = next(path for path in (pin, *pin.parents) if path.exists()).resolve()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        point, fstype = Path(fields[4]), fields[fields.index("-") + 1]
        if existing.is_relative_to(point) and point.is_relative_to(mount):
            mount, kind = point, fstype
    if kind != "bpf":
        raise DatapathError(f"datapath.pin {pin} is not on a BPF file system: mount -t bpf bpf {pin.parent}")
