"""What a container sees: a private, writable view of the host's file system, and none of the host's processes.

In root's labs the root is an overlay over the host's, its changes in memory, and what is mounted below is read-only.
In others' it is an overlay for each of the host's directories; those that have mounts below are read-only as a whole.
Nothing a pod writes outlives it but in volumes. ``/run`` and ``/tmp`` are empty, so that the state of the lab is out of
sight; capabilities are those that container runtimes leave.
Runs between fork and exec, as process 1 of the container.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from msgspec import Struct

from isthmus_lab import kernel, privileges

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
        for volume in self.volumes:
            _bind(volume, root)
        os.chdir(root)
        kernel.pivot_root(".", ".")
        kernel.umount(".")
        os.chdir("/")
        drop_capabilities()

    def _layers(self) -> Path:
        """A root of overlays, one for each directory of the host's: one over all would uncover what is mounted below.

        The host's directories have no owner in a user namespace, and so nothing can be made in them but where an upper
        directory is there from the start.
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
    """What an overlay over the host's root does not show: a separate /usr or /home, read-only."""
    for where in kernel.mounts():
        target = root / where[1:]
        if f"/{where.split('/')[1]}" not in ("/", *VIRTUAL) and Path(where).is_dir() and target.is_dir():
            kernel.mount(where, target, flags=kernel.MS_BIND)
            _read_only(target)


def _layer(lower: Path, target: Path, upper: Path, work: Path) -> None:
    """An overlay; where something is mounted below, which that may not uncover, the directory as it is, read-only."""
    for made in (upper, work):
        made.mkdir(parents=True, exist_ok=True)
    try:
        kernel.mount("overlay", target, "overlay", data=f"lowerdir={lower},upperdir={upper},workdir={work}")
    except OSError:
        kernel.mount(lower, target, flags=kernel.MS_BIND | kernel.MS_REC)
        for where in kernel.mounts():
            if Path(where).is_relative_to(target) and os.access(where, os.F_OK):  # or no container gets there either
                _read_only(Path(where))


def _read_only(target: Path) -> None:
    """Of a bind mount. Flags that a user namespace may not take away are given again."""
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
    path.unlink(missing_ok=True)  # the host's may be a link to somewhere that is not there
    path.write_text(content)


def inside(root: Path, path: str) -> Path:
    """Where a path of the container is before it is the root: links on the way (/var/run) lead within it."""
    where, left, links = root, _parts(path), 0
    while left:
        step = where / left.pop()
        if step.name == "..":
            where = where if where == root else where.parent
        elif step.is_symlink() and links < MAX_LINKS:
            links += 1
            target = str(step.readlink())
            where = root if target.startswith("/") else where
            left += _parts(target)
        else:
            where = step
    return where


def _parts(path: str) -> list[str]:
    """The last first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _bind(volume: Volume, root: Path) -> None:
    target = inside(root, volume.target)
    if Path(volume.source).is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    kernel.mount(volume.source, target, flags=kernel.MS_BIND | kernel.MS_REC)
    if volume.read_only:
        _read_only(target)
