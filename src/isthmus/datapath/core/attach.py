"""Load, pin, attach, detach.

``<pin>/v<layout>-<max_entries>/`` holds the maps, ``<pin>/links/`` the links. A new process reuses the pinned maps,
loads its own programs over them, and replaces the programs of the links: every call meets a program, and no program is
detached because a process ends.

If maps of another layout or size are pinned, the programs that use them stay in the links while new maps are filled
beside them; ``take_over`` then replaces the programs and removes the old maps. Maps that refer to no number of another
map (sockets' rewritten destinations, ``alive``) are carried over if their shape is the same, so that replies to old
sockets and DNS continue.
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
CONNECT4: Final = 10
"""BPF_CGROUP_INET4_CONNECT: the hook at which another agent's program is looked for."""
CONSTANTS: Final = Shape("constants", has_set_retval="I", has_mptcp="I")
HELPERS: Final = (187, 196)
"""Numbers of bpf_set_retval and bpf_skc_to_mptcp_sock, in the order of the fields of CONSTANTS."""


def directory(pin: str, *, max_entries: int) -> Path:
    """Directory in which maps of this layout and size are pinned."""
    return Path(pin) / f"v{manifest.LAYOUT}-{max_entries}"


def pinned(pin: str) -> Path:
    """Newest directory in which maps of this layout are pinned, whatever their size."""
    candidates = [where for where in _entries(Path(pin)) if where.name.startswith(f"v{manifest.LAYOUT}-")]
    return max(candidates, key=lambda where: where.stat().st_mtime, default=Path(pin) / f"v{manifest.LAYOUT}")


def links(pin: str) -> Path:
    """Directory in which the links are pinned."""
    return Path(pin) / "links"


class Loaded:
    """Programs and maps in the kernel. ``waiting`` is true while calls still use maps of another layout.

    Holds the links' descriptors, so that a program stays attached when its pin is deleted.
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
        """The kernel's ids of the attached programs, by name."""
        self.waiting = bool(other_directories(where))
        self.maps = {name: opened.map_fd(pointer) for name, pointer in opened.maps().items()}

    def take_over(self) -> None:
        """Attach our programs in place of the old ones, and remove the maps of other layouts."""
        with _kernel_errors():
            self._attach()
            for where in other_directories(self.where):
                _unpin(where)
        self.waiting = False

    def program_fd(self, name: str) -> int:
        """Descriptor of one of our programs, to attach it elsewhere than to the cgroup."""
        return self._opened.program_fd(name)

    def superseded(self) -> str:
        """Error message if another agent replaced our programs, otherwise empty."""
        attached = [(libbpf.link_info(fd), self._programs[name]) for name, fd in self._links.items()]
        replaced = any(cgroup and program != expected for (cgroup, program), expected in attached)
        return f"another agent's programs are attached to {self._cgroup}" if replaced else ""

    def rival(self) -> str:
        """Error message if another agent, with maps of its own, has programs at the same cgroup, otherwise empty.

        Each would translate what the other has translated.
        """
        own = {*self._programs.values()}
        with _kernel_errors():
            fd = os.open(self._cgroup, os.O_RDONLY | os.O_DIRECTORY)
            try:
                programs = libbpf.cgroup_programs(fd, CONNECT4)
            finally:
                os.close(fd)
        rivals = [number for number, name in programs if name == "connect4" and number not in own]
        if not rivals:
            return ""
        return (
            f"two agents run on this node: program {rivals[0]} of another one is attached to {self._cgroup}, too: "
            "remove one installation"
        )

    def repair(self) -> list[str]:
        """Restore programs that were unpinned or detached. Returns their names.

        Raises DatapathError, and repairs nothing, if another agent has replaced our programs.
        """
        if reason := self.superseded():
            raise DatapathError(reason)
        with _kernel_errors():
            cgroup, where = cgroup_id(self._cgroup, field="cgroup"), links(self._pin)
            holds = {name: libbpf.link_info(fd)[0] == cgroup for name, fd in self._links.items()}
            lost = [name for name, attached in holds.items() if not attached or not (where / name).exists()]
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
        """Attachment of programs to the pods' interfaces; run its ``keep()`` as a task."""
        attachments = [
            Attachment(each.name, each.kind, self._opened.program_fd(each.name))
            for each in self._every
            if each.kind != "cgroup"
        ]
        return PodLinks(attachments, pins=links(self._pin), announce=announce)

    def close(self) -> None:
        """Free libbpf's memory; attached programs stay."""
        self._let_go()
        self._opened.close()


def load(maps: Mapping[str, Map], programs: Sequence[Program], *, pin: str, cgroup: str, max_entries: int) -> Loaded:
    """Load the programs over the maps pinned at ``pin``, and attach them unless maps of another layout are in use."""
    _require_bpffs(Path(pin))
    if not OBJECT.exists():
        raise DatapathError(f"{OBJECT} is missing: compile it with `make bpf`")
    with _kernel_errors():
        loaded = _load(maps, programs, pin=pin, cgroup=cgroup, max_entries=max_entries)
        try:
            if not loaded.waiting:
                loaded.take_over()
        except BaseException:
            loaded.close()
            raise
        return loaded


@contextmanager
def _kernel_errors() -> Iterator[None]:
    """Turn an OSError, of the kernel or of a missing libbpf, into a DatapathError."""
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
    """Flags for the newer helpers that this kernel has. The verifier skips calls of a missing one by its constant."""
    return CONSTANTS.pack(*(libbpf.has_helper(CGROUP_SOCK_ADDR, helper) for helper in HELPERS))


def other_directories(where: Path) -> list[Path]:
    """Directories beside this one in which maps of another layout or size are pinned."""
    return [each for each in _entries(where.parent) if each.is_dir() and each not in (where, links(str(where.parent)))]


def _carry(where: Path, name: str, *, shape: tuple[int, int, int], any_size: bool) -> None:
    """Share a map with another layout, if its shape is the same there; the other's programs continue to use it."""
    path = where / name
    candidates = [other / name for other in other_directories(where) if (other / name).exists()]
    compared = 2 if any_size else 3
    if candidates and not path.exists() and pinned_info(candidates[-1])[:compared] == shape[:compared]:
        path.hardlink_to(candidates[-1])


def _prepare(opened: libbpf.Object, pointer: int, path: Path, *, entries: int) -> None:
    """Pin a map, or reuse the pinned one; a map that was carried over keeps its size."""
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
    """The kernel's id of a cgroup. Raises DatapathError with the name of the option if there is no such cgroup."""
    try:
        return Path(cgroup).stat().st_ino
    except OSError as error:
        raise DatapathError(f"datapath.{field} {cgroup}: {error.strerror}") from None


def pinned_cgroup(path: Path) -> int:
    """Id of the cgroup to which a pinned link is attached."""
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
                libbpf.detach_link(path)  # from a deleted cgroup, or that of another configuration
                path.unlink()
            opened.attach_cgroup(program, fd, path)
    finally:
        os.close(fd)


def remove(pin: str) -> None:
    """Detach every program and unpin everything. Idempotent."""
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
