"""The view of a container: a private, writable one of the host's file system, and none of the host's processes.

In root's labs the root is an overlay over the host's, its changes in memory, and what is mounted below is read-only.
In others' it is an overlay for each of the host's directories; those that have mounts below are read-only as a whole.
Nothing a pod writes outlives it but in volumes. ``/run``, ``/tmp`` and ``/mnt`` are empty, so that the state of the lab
is out of sight, but for the programs that the container's image names there; these are mounted after its volumes, so
that no volume hides them either. Capabilities are those that container runtimes leave.
Runs between fork and exec, as process 1 of the container.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from isthmus.host_user import RUN
from isthmus_lab import kernel, own_programs, privileges

CAPABILITIES: Final = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 29, 31})
"""CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID SETPCAP NET_BIND_SERVICE NET_RAW SYS_CHROOT AUDIT SETFCAP"""
ENTERED: Final = ("net", "mnt", "uts", "ipc")
DEVICES: Final = ("null", "zero", "full", "random", "urandom", "tty")
LINKS: Final = (
    ("fd", "/proc/self/fd"),
    ("stdin", "fd/0"),
    ("stdout", "fd/1"),
    ("stderr", "fd/2"),
    ("ptmx", "pts/ptmx"),
)
QUIET: Final = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
MAX_LINKS: Final = 40
OWN_PROGRAMS: Final = tuple(own_programs.mounts())
VIRTUAL: Final = ("/proc", "/sys", "/dev", "/run", "/tmp", "/mnt")


class Volume(Struct, frozen=True):
    """A file or directory of the host that the container sees at a path."""

    source: str
    target: str
    read_only: bool = False


class Sandbox(Struct, frozen=True):
    """A container's surroundings. ``scratch`` is an empty directory of the host; it stays empty there."""

    scratch: Path
    hostname: str
    files: tuple[tuple[str, str], ...] = ()
    """Paths and what is written there: resolv.conf, hosts."""
    volumes: tuple[Volume, ...] = ()
    programs: tuple[str, ...] = ()
    """Files of the host that the container runs, by absolute paths; shown where its mounts would hide them."""

    def enter(self) -> None:
        """Become the container."""
        kernel.unshare(kernel.CLONE_NEWNS | kernel.CLONE_NEWUTS | kernel.CLONE_NEWIPC)
        kernel.sethostname(self.hostname)
        kernel.mount("", "/", flags=kernel.MS_REC | kernel.MS_PRIVATE)
        root = self._layers() if privileges.CONFINED else _overlay(self.scratch)
        _system(root)
        _devices(root / "dev")
        for path, content in self.files:
            _write(root / path.lstrip("/"), content)
        targets = [_bind(volume, root) for volume in self.volumes]
        for source, target in OWN_PROGRAMS:
            _bind_read_only(source, _made(source, inside(root, str(target))))
        self._show_programs(root, targets)
        for volume, target in zip(self.volumes, targets, strict=True):
            if volume.read_only:  # only now: mounts within a volume need a directory there
                _read_only(target)
        os.chdir(root)
        kernel.pivot_root(".", ".")
        kernel.umount(".")
        os.chdir("/")
        drop_capabilities()

    def _show_programs(self, root: Path, targets: Iterable[Path]) -> None:
        """Mount what hidden programs are in, copy-on-write as all that is the host's."""
        covers = [*(root / path[1:] for path in VIRTUAL), *targets]
        for number, program in enumerate(self.programs):
            for path in (os.path.realpath(program), program):
                where = inside(root, path)
                part = hidden_part(where, covers)
                if part is not None and not where.exists():
                    _show(Path("/", part.relative_to(root)), part, self.scratch / "programs" / str(number))

    def _layers(self) -> Path:
        """A root of overlays, one for each directory of the host's: one over all would uncover what is mounted below.

        The host's directories have no owner in a user namespace, so files can be created in them only where an upper
        directory exists from the start.
        """
        kernel.mount("tmpfs", self.scratch, "tmpfs", data="mode=0755")
        root, upper = self.scratch / "root", self.scratch / "upper"
        root.mkdir()
        kernel.mount("tmpfs", root, "tmpfs", data="mode=0755")
        for path in (*(path for path, _ in self.files), *(each.target for each in self.volumes)):
            (upper / inside(Path("/"), path).parent.relative_to("/")).mkdir(parents=True, exist_ok=True)
        for name in VIRTUAL:
            (root / name[1:]).mkdir()
        for entry in Path("/").iterdir():
            if entry.is_symlink():
                (root / entry.name).symlink_to(entry.readlink())
            elif entry.is_dir() and str(entry) not in VIRTUAL:
                (root / entry.name).mkdir()
                if os.access(entry, os.R_OK | os.X_OK):
                    _layer(entry, root / entry.name, upper / entry.name, self.scratch / "work" / entry.name)
        return root


def enter(pid: int) -> None:
    """Become a part of a running container, but for its process ids, which only a child can have."""
    opened = [os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in ENTERED]
    for descriptor in opened:
        kernel.setns(descriptor)
        os.close(descriptor)
    drop_capabilities()


def drop_capabilities() -> None:
    """Keep what container runtimes leave a root user; takes effect at exec."""
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        if capability not in CAPABILITIES:
            kernel.prctl(kernel.PR_CAPBSET_DROP, capability)


def _overlay(scratch: Path) -> Path:
    kernel.mount("tmpfs", scratch, "tmpfs", data="mode=0755")
    for part in ("upper", "work", "root"):
        (scratch / part).mkdir()
    layers = f"lowerdir=/,upperdir={scratch}/upper,workdir={scratch}/work"
    kernel.mount("overlay", scratch / "root", "overlay", data=layers)
    _mounts_below(scratch / "root")
    return scratch / "root"


def _mounts_below(root: Path) -> None:
    """Mount what an overlay over the host's root does not show, as a separate /usr or /home, read-only."""
    for where in kernel.mounts():
        target = root / where[1:]
        if f"/{where.split('/')[1]}" not in ("/", *VIRTUAL) and Path(where).is_dir() and target.is_dir():
            kernel.mount(where, target, flags=kernel.MS_BIND)
            _read_only(target)


def hidden_part(path: Path, covers: Iterable[Path]) -> Path | None:
    """The largest part of the file system with ``path`` in it that lies directly in the innermost mount over it.

    None if none of ``covers``, which are mount points, is above the path.
    """
    above = [cover for cover in covers if cover in path.parents]
    cover = max(above, key=lambda path: len(path.parts), default=None)
    return None if cover is None else cover / path.relative_to(cover).parts[0]


def _show(source: Path, target: Path, layers: Path) -> None:
    """Mount a directory of the host copy-on-write, or a file read-only; never one with what labs keep."""
    if source in (RUN, *RUN.parents) or RUN in source.parents or not source.exists():
        return
    if _made(source, target).is_dir():
        _layer(source, target, layers / "upper", layers / "work")
    else:
        _bind_read_only(source, target)


def _layer(lower: Path, target: Path, upper: Path, work: Path) -> None:
    """An overlay; where something is mounted below, which that may not uncover, the directory as it is, read-only."""
    for made in (upper, work):
        made.mkdir(parents=True, exist_ok=True)
    layers = f"lowerdir={_escaped(lower)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
    try:
        kernel.mount("overlay", target, "overlay", data=layers)
    except OSError:
        _bind_read_only(lower, target)


def _escaped(path: Path) -> str:
    """A path as an option of an overlay, where commas separate options and colons lower directories."""
    return re.sub(r"[\\:,]", lambda sign: f"\\{sign[0]}", str(path))


def _bind_read_only(source: Path, target: Path) -> None:
    """A directory or file of the host, with all that is mounted below."""
    kernel.mount(source, target, flags=kernel.MS_BIND | kernel.MS_REC)
    for where in kernel.mounts():
        if Path(where).is_relative_to(target) and os.access(where, os.F_OK):  # or no container gets there either
            _read_only(Path(where))


def _read_only(target: Path) -> None:
    """Make a bind mount read-only. Flags that a user namespace may not take away are given again."""
    kept = os.statvfs(target).f_flag & (kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)
    kernel.mount("", target, flags=kernel.MS_BIND | kernel.MS_REMOUNT | kernel.MS_RDONLY | kept)


def _system(root: Path) -> None:
    kernel.mount("proc", root / "proc", "proc", QUIET)
    kernel.mount("sysfs", root / "sys", "sysfs", QUIET | kernel.MS_RDONLY)
    for name, mode in (("run", "0755"), ("tmp", "1777"), ("mnt", "0755")):
        if (root / name).is_dir():
            kernel.mount("tmpfs", root / name, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"mode={mode}")


def _devices(dev: Path) -> None:
    kernel.mount("tmpfs", dev, "tmpfs", kernel.MS_NOSUID, "mode=0755")
    for name in DEVICES:
        (dev / name).touch()
        kernel.mount(f"/dev/{name}", dev / name, flags=kernel.MS_BIND)
    for name in ("pts", "shm"):
        (dev / name).mkdir()
    kernel.mount("devpts", dev / "pts", "devpts", kernel.MS_NOSUID, "newinstance,ptmxmode=0666,mode=0620")
    kernel.mount("tmpfs", dev / "shm", "tmpfs", QUIET, "mode=1777")
    for name, target in LINKS:
        (dev / name).symlink_to(target)


def _write(path: Path, content: str) -> None:
    path.unlink(missing_ok=True)  # the host's file may be a dangling link
    path.write_text(content)


def inside(root: Path, path: str) -> Path:
    """Resolve a container path below its future root; symbolic links (/var/run) stay inside the root."""
    where, remaining, links = root, _parts(path), 0
    while remaining:
        step = where / remaining.pop()
        if step.name == "..":
            where = where if where == root else where.parent
        elif step.is_symlink() and links < MAX_LINKS:
            links += 1
            target = str(step.readlink())
            where = root if target.startswith("/") else where
            remaining += _parts(target)
        else:
            where = step
    return where


def _parts(path: str) -> list[str]:
    """The last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _bind(volume: Volume, root: Path) -> Path:
    """Mount a volume where it belongs; the mount point."""
    target = _made(Path(volume.source), inside(root, volume.target))
    kernel.mount(volume.source, target, flags=kernel.MS_BIND | kernel.MS_REC)
    return target


def _made(source: Path, target: Path) -> Path:
    """The target, made a directory or a file as the source is."""
    if source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    return target
