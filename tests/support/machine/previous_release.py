"""Install the previous release into an environment of its own: what tests of upgrades run beside today's code.

RELEASE.md names its commit. The wheel is built from `git archive` of that commit, with the BPF object that its own
tools/build_bpf.py compiles, and its packages are those of its own requirements/run.lock.

``python -m machine.previous_release`` installs it and prints its interpreter; its exit
code is 77 where the commit is not here.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "releases"
OBJECT = "src/isthmus/datapath/isthmus.bpf.o"
ROW = re.compile(r"^\| (\d+\.\d+\.\d+\S*) \| `([0-9a-f]{40})` \|", re.MULTILINE)
IMPOSSIBLE = 77


class Release(NamedTuple):
    """A row of RELEASE.md."""

    version: str
    commit: str

    @property
    def folder(self) -> Path:
        """Folder of its environment."""
        return CACHE / self.commit

    @property
    def python(self) -> Path:
        """Interpreter in whose environment it is installed."""
        return self.folder / "bin" / "python"


def previous() -> Release:
    """Return the release that today's code follows: the last row of the table."""
    rows = ROW.findall((ROOT / "RELEASE.md").read_text())
    if not rows:
        raise SystemExit("previous_release: RELEASE.md names no commit below 'Released'")
    return Release(*rows[-1])


def missing(release: Release) -> str:
    """Return why a release cannot be built here; empty if it can."""
    command = ["git", "cat-file", "-e", f"{release.commit}^{{commit}}"]
    if subprocess.run(command, cwd=ROOT, capture_output=True, check=False).returncode == 0:
        return ""
    return f"{release.version} is commit {release.commit[:8]}, which this copy of the repository does not have"


def run(*command: str | Path, cwd: Path) -> None:
    """Run a program of the build; its output is shown only if it fails."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"previous_release: {' '.join(map(str, command))}:\n{done.stdout}{done.stderr}")


def install(release: Release) -> None:
    """Make the environment of a release; the file ``complete`` in it is the last thing that is made."""
    CACHE.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(release.folder, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        archive = subprocess.run(["git", "archive", release.commit], cwd=ROOT, capture_output=True, check=True).stdout
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive, check=True)
        run(sys.executable, "tools/build_bpf.py", OBJECT, cwd=tree)
        run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", Path(name), cwd=tree)
        [wheel] = Path(name).glob("isthmus-*.whl")
        run(sys.executable, "-m", "venv", release.folder, cwd=tree)
        pip = (release.python, "-m", "pip", "install", "-q", "--disable-pip-version-check")
        run(*pip, "--require-hashes", "-r", "requirements/run.lock", cwd=tree)
        run(*pip, "--no-deps", wheel, cwd=tree)
    (release.folder / "complete").touch()


def main() -> int:
    """Install what is missing, and print the interpreter."""
    release = previous()
    if not (release.folder / "complete").exists():
        if why := missing(release):
            print(f"not run: {why}", file=sys.stderr)
            return IMPOSSIBLE
        print(f"previous release: installing {release.version} from {release.commit[:8]}", file=sys.stderr)
        install(release)
    print(release.python)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
