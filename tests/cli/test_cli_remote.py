"""Admin sockets through a command's standard streams, as ``--context`` reaches those of pods."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rows.admin_world import serving

from isthmus.admin.query import NoTable, Socket, Unreachable
from isthmus.cli import remote, root
from isthmus.cli.remote import Exec
from isthmus.model.services import Namespace
from isthmus.model.tables import NAMESPACES


class Counting(Exec):
    """Counts how often it dials."""

    def __init__(self, path: Path) -> None:
        super().__init__([sys.executable, "-m", "isthmus", "relay", str(path)])
        self.dialled = 0

    def __call__(self, timeout: float) -> Any:
        self.dialled += 1
        return super().__call__(timeout)


async def test_all_questions_of_a_command_go_over_one_connection(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    dial = Counting(path)
    asked = Socket(path, dial=dial, timeout=30)

    def ask() -> list[Any]:
        with pytest.raises(NoTable):
            asked.table("nosuch")
        found = [asked.status()["ready"], asked.tables()["namespaces"]["rows"], asked.table("namespaces").rows]
        asked.close()
        return found

    async with serving(path) as process:
        process.put(NAMESPACES, *(Namespace(f"ns-{n}") for n in range(2_000)))
        ready, count, rows = await asyncio.to_thread(ask)
    assert (ready, count, len(rows)) == (True, 2_000, 2_000)
    assert dial.dialled == 2  # one ended with the refusal


async def test_a_table_is_followed_through_a_command(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    async with serving(path) as process:
        followed = Socket(path, dial=Counting(path), timeout=30)
        lines = followed.follow("namespaces")
        first = await asyncio.to_thread(next, lines)
        process.put(NAMESPACES, Namespace("late"))
        second = await asyncio.to_thread(next, lines)
        await asyncio.to_thread(lines.close)
    assert first.list is not None
    assert [event.key for event in second.events] == ["late"]


def test_a_command_that_ends_at_once_is_no_process_at_the_socket(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"none\.sock"):
        Socket(tmp_path / "none.sock", dial=Exec(["false"])).status()


def test_why_a_command_ended_is_the_reason(tmp_path: Path) -> None:
    dial = Exec(["sh", "-c", "echo 'Error from server (Forbidden): no pods/exec' >&2; exit 1"])
    with pytest.raises(Unreachable, match=r"^Error from server \(Forbidden\): no pods/exec$"):
        Socket(tmp_path / "agent.sock", dial=dial, ended=dial.ended).status()


@pytest.mark.parametrize("command", [["status"], ["diagnose"], ["explain", "demo/echo"], ["gather"], ["flows"]])
def test_a_context_is_asked_whatever_lab_the_environment_names(command: list[str]) -> None:
    environment = {"ISTHMUS_LAB": "nowhere", "KUBECONFIG": "/nowhere"}
    done = CliRunner().invoke(root, ["--context", "c9", *command], env=environment)
    assert done.exit_code == 1
    assert "context c9: " in done.stderr or "kubectl is not in PATH" in done.stderr


@pytest.mark.parametrize("option", ["--lab", "--cluster", "--socket"])
def test_a_context_and_another_choice_of_a_process_exclude_each_other(option: str) -> None:
    done = CliRunner().invoke(root, ["--context", "c9", "status", option, "c1"])
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, f"Error: --context and {option} exclude each other")


KUBECTL = """#!/bin/sh
case "$*" in
*" get pods "*) cat "$(dirname "$0")/pods.json" ;;
*) while [ "$1" != -- ]; do shift; done; shift; shift; exec {python} -m isthmus "$@" ;;
esac
"""
"""kubectl of a cluster whose pods share this machine's files."""


async def test_the_status_of_a_context_has_the_process_that_keeps_its_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = [
        {
            "metadata": {"name": f"isthmus-{name}-1", "labels": {"app.kubernetes.io/name": f"isthmus-{name}"}},
            "spec": {"nodeName": "n1", "containers": [{"name": name}]},
            "status": {"phase": "Running"},
        }
        for name in ("operator", "keys")
    ]
    (tmp_path / "pods.json").write_text(json.dumps({"items": pods}))
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(KUBECTL.format(python=sys.executable))
    kubectl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(remote, "RUN", tmp_path)
    async with serving(tmp_path / "operator.sock"), serving(tmp_path / "keys.sock"):
        command = ["--context", "c1", "status", "-o", "json"]
        done = await asyncio.to_thread(CliRunner().invoke, root, command)
    assert done.exit_code in (0, 1), done.output
    assert json.loads(done.stdout)["processes"].keys() == {"operator", "keys"}


PODS_AS_FILES = """#!/bin/sh
here=$(dirname "$0")
case "$*" in
*" get pods "*) echo listed >>"$here/lists"; cat "$here/pods.json" ;;
*) grep -q "\\"$7\\"" "$here/pods.json" || {{
     echo "Error from server (NotFound): pods \\"$7\\" not found" >&2
     exit 1
   }}
   while [ "$1" != -- ]; do shift; done; shift; shift; exec {python} -m isthmus "$@" ;;
esac
"""
"""kubectl of a cluster that has the pods of a file."""


class Cluster:
    """A cluster of one node, whose pods are replaced under other names."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._directory = directory
        kubectl = directory / "kubectl"
        kubectl.write_text(PODS_AS_FILES.format(python=sys.executable))
        kubectl.chmod(0o755)
        monkeypatch.setenv("PATH", str(directory), prepend=os.pathsep)
        monkeypatch.setattr(remote, "RUN", directory)

    def runs(self, **pods: str) -> None:
        """Names of the running pods by process."""
        items = [
            {
                "metadata": {"name": name, "labels": {"app.kubernetes.io/name": f"isthmus-{process}"}},
                "spec": {"nodeName": "n1", "containers": [{"name": process}]},
                "status": {"phase": "Running"},
            }
            for process, name in pods.items()
        ]
        (self._directory / "pods.json").write_text(json.dumps({"items": items}))

    @property
    def lists(self) -> int:
        """Number of times that its pods were listed."""
        return len((self._directory / "lists").read_text().splitlines())


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


@pytest.mark.parametrize("process", ["agent", "operator"])
async def test_a_pod_that_was_replaced_is_found_again(cluster: Cluster, tmp_path: Path, process: str) -> None:
    cluster.runs(**{process: "pod-1"})
    with click.Context(click.Command("ui")):
        [asked] = remote.find("c1")
    async with serving(tmp_path / f"{process}.sock"):
        cluster.runs(**{process: "pod-2"})
        with pytest.raises(Unreachable, match='pods "pod-1" not found'):
            await asyncio.to_thread(asked.status)
        assert (await asyncio.to_thread(asked.status))["ready"]
        await asyncio.to_thread(asked.close)


async def test_the_pods_of_a_cluster_are_not_listed_for_each_attempt(cluster: Cluster, tmp_path: Path) -> None:
    cluster.runs(agent="pod-1")
    with click.Context(click.Command("ui")):
        [asked] = remote.find("c1")
    cluster.runs()
    readers = [asked.clone() for _ in range(3)]
    for reader in readers * 2:
        with pytest.raises(Unreachable, match='pods "pod-1" not found'):
            await asyncio.to_thread(reader.status)
    assert cluster.lists == 2  # one of the command, one of all readers
