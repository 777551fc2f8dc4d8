"""Build the images of a release, from the commit that is checked out, as OCI archives: for amd64 and arm64, by buildah.

The times of files are the commit's; built again from the same base and Debian packages, an image has the same digest.
Another architecture than this machine's needs an emulator that the kernel starts (qemu-user-static, binfmt_misc).

    python tools/images.py FOLDER --base python:3.12-slim-bookworm@sha256:… [--arch amd64 --arch arm64]

Options that it does not know go to `buildah bud`.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

import dist

TARGETS = {"isthmus": [], "isthmus-envoy": ["--target=envoy"]}
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
"""As images name them, and as this machine names its own."""


def build(tree: Path, name: str, arch: str, folder: Path, *, base: str, build_base: str, options: list[str]) -> str:
    """Build one image into an archive; return the digest of its manifest."""
    epoch = dist.git("log", "-1", "--format=%ct")
    version = dist.git("describe", "--always")
    tag = f"{name}:{version}-{arch}"
    own = next(name for name, machine in ARCHITECTURES.items() if machine == platform.machine())
    given = {"BASE": base, "BUILD_BASE": build_base, "BUILDPLATFORM": f"linux/{own}", "SOURCE_DATE_EPOCH": epoch}
    arguments = [f"--build-arg={key}={value}" for key, value in given.items()]
    command = ["buildah", "bud", f"--platform=linux/{arch}", f"--timestamp={epoch}", f"--tag={tag}", *arguments]
    subprocess.run([*command, *TARGETS[name], *options, str(tree)], check=True)
    digest, archive = folder / f"{name}-{arch}.digest", folder / f"{name}-{arch}.oci.tar"
    subprocess.run(["buildah", "push", "-q", f"--digestfile={digest}", tag, f"oci-archive:{archive}:{tag}"], check=True)
    return digest.read_text().strip()


def main() -> None:
    """Fill a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--base", required=True, help="image to begin with, by digest")
    parser.add_argument("--build-base", help="the same for this machine's architecture, where BASE is another's alone")
    parser.add_argument("--arch", action="append", choices=list(ARCHITECTURES))
    parser.add_argument("--image", action="append", choices=list(TARGETS))
    given, options = parser.parse_known_args()
    if changed := dist.git("status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"images: a release is a commit; commit or take back first:\n{changed}")
    given.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        dist.export(Path(name))
        for image in given.image or TARGETS:
            for arch in given.arch or ARCHITECTURES:
                bases = {"base": given.base, "build_base": given.build_base or given.base}
                print(f"{build(Path(name), image, arch, given.folder, **bases, options=options)}  {image} {arch}")


if __name__ == "__main__":
    main()
