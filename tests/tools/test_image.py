"""The image that the Dockerfile builds: what runs in it has no build tools."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD_TOOLS = {"hatchling", "pip", "setuptools", "wheel", "ziglang", "packaging", "pluggy", "trove-classifiers"}


def locked(name: str) -> set[str]:
    return set(re.findall(r"^([\w.-]+)==", (ROOT / "requirements" / name).read_text(), re.MULTILINE))


def stages() -> dict[str, str]:
    """The text of each stage, by its name; the last one's is empty."""
    text = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
    parts = re.split(r"^FROM (?:--platform=\S+ )?(\S+)(?: AS (\S+))?$", text, flags=re.MULTILINE)[1:]
    return {name or "": body for _, name, body in zip(*[iter(parts)] * 3, strict=True)}


def test_packages_of_the_image_and_of_its_build_are_locked_apart() -> None:
    assert not BUILD_TOOLS & locked("run.lock")
    assert {"hatchling", "trove-classifiers"} <= locked("build.lock")


def test_stages_that_run_have_the_environment_alone_and_no_pip() -> None:
    found = stages()
    assert "--without-pip /opt/isthmus" in found["packages"]
    for name in ("envoy", ""):
        assert re.findall(r"^(?!#)\S.*$", found[name], re.MULTILINE) == [
            f"COPY --from={'packages-with-envoy' if name else 'packages'} /opt/isthmus /opt/isthmus"
        ]
    assert "/usr/local/lib/python3.*/ensurepip" in found["system"]
    assert not re.search(r"pip install|python3?-pip|clang|gcc", found["system"])
