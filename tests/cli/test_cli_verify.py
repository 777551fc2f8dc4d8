"""``isthmus verify`` with a kubectl that refuses: what is printed, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from isthmus.cli import root

FORBIDDEN = "Error from server (Forbidden): User viewer cannot"


def verify(folder: Path, monkeypatch: pytest.MonkeyPatch, kubectl: str) -> Result:
    """With a shell script for kubectl; its third word is what it is asked to do."""
    (folder / "kubectl").write_text(f"#!/bin/sh\n{kubectl}\n")
    (folder / "kubectl").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return CliRunner().invoke(root, ["verify", "--context", "c1", "--context", "c2"])


def test_what_failed_first_is_the_error_and_what_may_be_left_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = verify(tmp_path, monkeypatch, f'[ "$2" = c1 ] || {{ echo "{FORBIDDEN} $3" >&2; exit 1; }}')
    lines = done.stderr.splitlines()
    assert done.exit_code == 1
    assert lines[-1] == f"Error: c2: {FORBIDDEN} apply"
    assert lines[-2].startswith("namespace isthmus-verify-")
    assert lines[-2].endswith(f" may be left: c2: {FORBIDDEN} delete")


def test_a_pod_that_does_not_become_ready_has_its_reason_in_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
    pod = {
        "metadata": {"name": "verify", "namespace": "x"},
        "status": {"containerStatuses": [{"name": "verify", "ready": False, "state": {"waiting": waiting}}]},
    }
    (tmp_path / "pod.json").write_text(json.dumps(pod))
    kubectl = f"""case "$*" in
        *" wait "*pod/verify*) echo "error: timed out waiting for the condition on pods/verify" >&2; exit 1;;
        *" get pod verify "*) cat {tmp_path}/pod.json;;
    esac"""
    done = verify(tmp_path, monkeypatch, kubectl)
    reason = "verify: ImagePullBackOff: Back-off pulling image"
    assert f"timed out waiting for the condition on pods/verify: {reason}" in done.stderr
