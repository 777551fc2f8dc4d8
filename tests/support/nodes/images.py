"""Images for real nodes: built by buildah from the repository's Dockerfile, kept as archives in ``.cache/nodes``.

There is no registry here. The image that the Dockerfile begins with is made by debootstrap and committed under its
name, so that the Dockerfile is used as it is. An archive's name has the hash of everything it was made of: a second
run builds nothing.
``python -m nodes.images`` builds what is missing.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from machine import programs

from isthmus import __version__

ROOT: Final = Path(__file__).resolve().parents[3]
CACHE: Final = ROOT / ".cache" / "nodes"
STORE: Final = CACHE / "storage"
"""Layers of earlier builds: after a change below ``src`` only the last ones are made again."""
BASE: Final = "python:3.12-slim-bookworm"
PACKAGES: Final = "python3,python3-venv,python3-pip,ca-certificates"
IMAGE: Final = f"isthmus:{__version__}"
"""What deploy/ runs, and `isthmus install` unless it is given another one."""
ENVOY: Final = f"isthmus-envoy:{__version__}"
"""The same with an Envoy in it."""
PAUSE: Final = "isthmus.test/pause:1"
COREDNS: Final = "isthmus.test/coredns:1"
WAIT: Final = "#include <unistd.h>\nint main(void) { for (;;) pause(); }\n"
LINK: Final = "ln -sf python3 /usr/bin/python"


def build(*, envoy: bool = False) -> list[Path]:
    """Return the archives of all images, after making those that are missing; ``envoy``: the one with an Envoy, too."""
    CACHE.mkdir(parents=True, exist_ok=True)
    etcd, stamp = _etcd_name(), _hash_of(_sources())
    return [
        _kept("isthmus", stamp, lambda to: _build_isthmus(to, IMAGE)),
        *([_kept("envoy", stamp, lambda to: _build_isthmus(to, ENVOY, "--target=envoy"))] if envoy else []),
        _kept("pause", hashlib.sha256(WAIT.encode()).hexdigest()[:16], _build_pause),
        _kept("etcd", _program_stamp("etcd", etcd), lambda to: _of_program("etcd", etcd, to)),
        _kept("coredns", _program_stamp("coredns", COREDNS), lambda to: _of_program("coredns", COREDNS, to)),
    ]


def _etcd_name() -> str:
    """Return the name of the image that ``deploy/`` runs as etcd."""
    lines = (ROOT / "deploy" / "etcd" / "etcd.yaml").read_text().splitlines()
    [name] = {line.split("image:")[1].strip() for line in lines if "image:" in line and "/etcd:" in line}
    return name


def _sources() -> list[str]:
    """Return the Dockerfile, and all files and folders that it copies."""
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copies = [line.split()[1:-1] for line in lines if line.startswith("COPY ") and "--from" not in line]
    return ["Dockerfile", *(name for names in copies for name in names)]


def _kept(name: str, stamp: str, make: Callable[[Path], None]) -> Path:
    archive = CACHE / f"{name}-{stamp}.tar"
    if not archive.exists():
        print(f"nodes: making the image {name}", file=sys.stderr, flush=True)
        part = archive.with_suffix(".part")
        part.unlink(missing_ok=True)
        make(part)
        for old in CACHE.glob(f"{name}-*.tar"):
            old.unlink()
        part.rename(archive)
    return archive


def _hash_of(names: Iterable[str]) -> str:
    """Return a hash of files and of all files below folders, without what a build or an import leaves there."""
    total = hashlib.sha256()
    for name in names:
        path = ROOT / name
        for file in [path] if path.is_file() else sorted(path.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and not file.name.endswith(".bpf.o"):
                total.update(f"{file.relative_to(ROOT)}\0".encode() + file.read_bytes())
    return total.hexdigest()[:16]


def _program_stamp(program: str, image: str) -> str:
    status = Path(programs.path(program)).stat()
    return hashlib.sha256(f"{image} {status.st_size} {status.st_mtime_ns}".encode()).hexdigest()[:16]


def _build_isthmus(archive: Path, image: str, *target: str) -> None:
    base = _kept("base", hashlib.sha256(f"{BASE} {PACKAGES} {LINK}".encode()).hexdigest()[:16], _build_base)
    _buildah("pull", "-q", f"docker-archive:{base}")
    mounts = [
        f"--volume={path}:{path}:ro"
        for path in ("/etc/pip.conf", "/etc/ssl/certs", "/opt/wheels")
        if Path(path).exists()
    ]
    options = ["--isolation=chroot", "--network=host", "--pull-never", "--layers", f"--tag={image}", *target]
    _buildah("bud", *options, *mounts, f"--file={ROOT / 'Dockerfile'}", str(ROOT))
    _buildah("push", "-q", image, f"docker-archive:{archive}:{image}")


def _build_base(archive: Path) -> None:
    debs = CACHE / "debs"
    debs.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        root = Path(folder) / "root"
        options = ["--variant=minbase", f"--include={PACKAGES}", f"--cache-dir={debs}"]
        _alone("debootstrap", *options, "bookworm", str(root), "http://deb.debian.org/debian")  # it mounts /proc there
        _run("chroot", str(root), "sh", "-c", LINK)
        shutil.rmtree(root / "var" / "lib" / "apt" / "lists")
        (root / "var" / "lib" / "apt" / "lists").mkdir()
        container = _buildah("from", "scratch")
        _buildah("add", "-q", container, str(root), "/")
        _buildah("config", "--cmd", "python3", container)
        _buildah("commit", "-q", "--rm", container, BASE)
    _buildah("push", "-q", BASE, f"docker-archive:{archive}:{BASE}")


def _build_pause(archive: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, program = Path(folder) / "pause.c", Path(folder) / "pause"
        source.write_text(WAIT)
        _run(programs.path("musl-gcc"), "-static", "-Os", "-o", str(program), str(source))
        _from_scratch(program, PAUSE, archive)


def _of_program(program: str, image: str, archive: Path) -> None:
    _from_scratch(Path(programs.path(program)), image, archive)


def _from_scratch(program: Path, image: str, archive: Path) -> None:
    """Make an image of one static program, which is its entry point unless a pod names it as its command."""
    container = _buildah("from", "scratch")
    _buildah("copy", "-q", container, str(program), f"/usr/local/bin/{program.name}")
    path = "PATH=/usr/local/bin"
    _buildah("config", "--env", path, "--entrypoint", f'["/usr/local/bin/{program.name}"]', container)
    _buildah("commit", "-q", "--rm", container, image)
    _buildah("push", "-q", image, f"docker-archive:{archive}:{image}")


def _buildah(verb: str, *arguments: str) -> str:
    """Run a command of buildah on the store of this cache, and return what it prints."""
    options = ["--root", str(STORE), "--runroot", str(CACHE / "runroot"), "--storage-driver", "overlay"]
    return _alone("buildah", *options, verb, *arguments).strip()


def _alone(*command: str) -> str:
    """Run a command in a mount namespace of its own, without what others mount below /run.

    buildah's chroot isolation binds all of /run, and a network namespace lives as long as any mount of it.
    """
    private = ["unshare", "--mount", "--propagation", "private", "sh", "-c"]
    return _run(
        *private,
        'awk \'$2 ~ "^/run/" { print $2 }\' /proc/mounts | tac | xargs -r umount -l; exec "$@"',
        "sh",
        *command,
    )


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-3000:]}")
    return done.stdout


if __name__ == "__main__":
    for each in build(envoy=True):
        print(each)
