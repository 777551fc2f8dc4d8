"""Which processes the page asks, by contexts of a kubeconfig."""

from __future__ import annotations

import os
from pathlib import Path

import click
import pytest

from isthmus.admin.query import Unreachable
from isthmus.cli.ui.command import Choice, _processes

KUBECTL = """#!/bin/sh
[ "$2" = c2 ] && { echo 'Unable to connect to the server: i/o timeout' >&2; exit 1; }
echo '{"items": [{"metadata": {"name": "a", "labels": {"app.kubernetes.io/name": "isthmus-agent"}},
  "spec": {"nodeName": "n1", "containers": [{"name": "agent"}]}, "status": {"phase": "Running"}}]}'
"""


@pytest.fixture(autouse=True)
def kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kubectl"
    path.write_text(KUBECTL)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")


def chosen(*contexts: str) -> list[Choice]:
    with click.Context(click.Command("ui")):
        return list(_processes(contexts, socket=None, cluster=None, lab=None))


def test_a_cluster_whose_api_server_is_away_is_shown_with_the_reason_beside_the_others() -> None:
    found = chosen("c2", "c1")
    assert [(cluster, process) for cluster, process, *_ in found] == [("c2", "agent"), ("c1", "agent")]
    with pytest.raises(Unreachable, match="Unable to connect to the server"):
        found[0][2].clone().status()


def test_without_any_cluster_that_can_be_asked_there_is_no_page() -> None:
    with pytest.raises(click.ClickException, match="Unable to connect"):
        chosen("c2")
