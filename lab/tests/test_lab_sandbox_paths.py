"""Mount paths of a container lead into its own root, whatever links the host has."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus_lab.node.sandbox import inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var" / "run").symlink_to("/run")
    (tmp_path / "var" / "lock").symlink_to("../run/lock")
    (tmp_path / "loop").symlink_to("/loop")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/var/run/secrets/kubernetes.io", "run/secrets/kubernetes.io"),
        ("/var/lock/x", "run/lock/x"),
        ("/etc/config", "etc/config"),
        ("/../../etc", "etc"),
        ("/var/run/../../x", "x"),
        ("/", ""),
    ],
)
def test_links_and_dots_stay_within_the_root(root: Path, path: str, found: str) -> None:
    assert inside(root, path) == root / found


def test_a_link_to_itself_ends(root: Path) -> None:
    assert inside(root, "/loop") == root / "loop"
