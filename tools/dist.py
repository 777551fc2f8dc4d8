"""Build what a release publishes, from the commit that is checked out: wheels, sdist, manuals, krew, SBOM, checksums.

Everything is made from `git archive` of the commit, by programs that requirements/*.lock pin, with the commit's time in
place of today's: built again, anywhere, the files have the same digests.

    .cache/dist/bin/python tools/dist.py FOLDER        `make dist` sets that interpreter up
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OBJECT = "src/isthmus/datapath/isthmus.bpf.o"
CHECKSUMS = "SHA256SUMS"
URL = os.environ.get("ISTHMUS_RELEASES", "https://releases.invalid/isthmus")
"""Where releases are published, each version in a folder of its own; without it krew's manifest names no real host."""


def run(*command: str | Path, cwd: Path, epoch: str) -> None:
    """Run a program of the build; its output is shown only if it fails."""
    env = {**os.environ, "SOURCE_DATE_EPOCH": epoch, "PYTHONHASHSEED": "0", "TZ": "UTC"}
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"dist: {' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")


def git(*words: str) -> str:
    """Return what git prints."""
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def export(tree: Path) -> None:
    """Write the files of the commit, and nothing that is not committed."""
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)


def build(tree: Path, to: Path, epoch: str) -> None:
    """Build the files of a release from a tree."""
    python = sys.executable
    run(python, "tools/build_bpf.py", OBJECT, "--pinned", cwd=tree, epoch=epoch)
    run(python, "-m", "hatchling", "build", "-t", "sdist", "-t", "wheel", "-d", to, cwd=tree, epoch=epoch)
    run(python, "-m", "hatchling", "build", "-t", "wheel", "-d", to, cwd=tree / "lab", epoch=epoch)
    options = ("--pyproject", "pyproject.toml", "--mc-type", "application", "--output-reproducible")
    name = next(to.glob("isthmus-*.tar.gz")).name.removesuffix(".tar.gz")
    inputs = ("requirements", "requirements/run.lock", *options, "-o", to / f"{name}.cdx.json")
    run(python, "-m", "cyclonedx_py", *inputs, cwd=tree, epoch=epoch)
    share(tree, to, name, epoch)
    krew(tree, to, name, epoch)


def pack(folder: Path, archive: Path, epoch: str) -> None:
    """Write a folder's files as a tar archive that depends on nothing but their names, contents and modes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size, entry.mtime = path.stat().st_size, int(epoch)
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            with path.open("rb") as file:
                tar.addfile(entry, file)
    archive.write_bytes(gzip.compress(packed.getvalue(), mtime=int(epoch)))


def share(tree: Path, to: Path, name: str, epoch: str) -> None:
    """Pack manual pages and completions."""
    folder = tree / "dist-share"
    run("env", "PYTHONPATH=src", sys.executable, "tools/manuals.py", folder, cwd=tree, epoch=epoch)
    pack(folder, to / f"{name}-share.tar.gz", epoch)


def krew(tree: Path, to: Path, name: str, epoch: str) -> None:
    """Pack the plugin of kubectl, and write the manifest by which krew installs it."""
    folder, archive = tree / "dist-krew", to / f"{name}-krew.tar.gz"
    folder.mkdir()
    for each in (*to.glob(f"{name}-*.whl"), tree / "requirements/run.lock", tree / "LICENSE"):
        shutil.copy(each, folder)
    shutil.copy(tree / "tools/krew/kubectl-isthmus", folder)
    pack(folder, archive, epoch)
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    manifest = (tree / "tools/krew/isthmus.yaml").read_text()
    version = name.removeprefix("isthmus-")
    (to / f"{name}.krew.yaml").write_text(
        manifest.format(version=version, url=URL, archive=archive.name, digest=digest)
    )


def main(folder: Path) -> None:
    """Fill a folder, which is replaced, and name what is in it."""
    if changed := git("status", "--porcelain", "--untracked-files=no"):
        raise SystemExit(f"dist: a release is a commit; commit or take back first:\n{changed}")
    epoch = git("log", "-1", "--format=%ct")
    with tempfile.TemporaryDirectory() as name:
        tree, to = Path(name) / "tree", Path(name) / "dist"
        for each in (tree, to):
            each.mkdir()
        export(tree)
        build(tree, to, epoch)
        lines = [f"{hashlib.sha256(each.read_bytes()).hexdigest()}  {each.name}\n" for each in sorted(to.iterdir())]
        (to / CHECKSUMS).write_text("".join(lines))
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(to, folder)
    print("".join(lines), end="")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    main(Path(sys.argv[1]).resolve())
