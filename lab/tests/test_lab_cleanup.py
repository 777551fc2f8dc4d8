"""A lab leaves no trace when it ends, also after faults."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from labs.lab_running import Running
from labs.lab_traces import existing, host_network, others, pinned, shared, traces

from isthmus_lab import cgroups, startup
from isthmus_lab.cli.lab import group
from isthmus_lab.layout import Lab
from isthmus_lab.node.sandbox import drop_capabilities

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.usefixtures("own_host")]

MANIFEST = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "client"},
    "spec": {"containers": [{"name": "client", "image": "isthmus/client"}]},
}


def gone(running: Running) -> bool:
    return not any(traces(running.lab).values())


def test_after_down_the_machine_is_as_it_was(spare: Running, tmp_path: Path, until: Callable[..., Any]) -> None:
    before, common = host_network(), shared()
    (tmp_path / "pod.json.yaml").write_text(json.dumps(MANIFEST))
    spare.cli("up", "--clusters", "1", "--from", str(tmp_path))
    until(lambda: "Running 1/1" in spare.cli("status").stdout, what="the pod runs")
    assert host_network() == before, "nothing but loopback listeners is added to the host"
    assert all(traces(spare.lab).values())
    until(lambda: all(pinned(spare.lab.bpffs)[kind] for kind in ("link_id", "map_id")), what="the hooks are attached")
    objects = pinned(spare.lab.bpffs)
    spare.cli("down")
    assert gone(spare), traces(spare.lab)
    assert host_network() == before
    until(lambda: shared() <= common or others(spare.lab), what="what labs share goes with the last one")
    until(lambda: not any(ids & existing(kind) for kind, ids in objects.items()), what="BPF objects are freed")


@pytest.mark.parametrize("moment", [0.05, 0.3, 0.8, 1.6])
def test_a_lab_killed_while_it_comes_up_goes_without_a_trace(spare: Running, moment: float) -> None:
    before = host_network()
    up = subprocess.Popen(
        [sys.executable, "-m", "isthmus", "lab", "up", "--lab", spare.lab.name, "--clusters", "1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    begun = _supervised(spare, up)
    time.sleep(max(0.0, begun + moment - time.monotonic()))
    for pid in cgroups.processes(cgroups.root() / spare.lab.prefix / "supervisor"):
        cgroups.send(pid, signal.SIGKILL)
    up.kill()
    up.wait()
    spare.cli("down")
    assert gone(spare), traces(spare.lab)
    assert host_network() == before


def _supervised(spare: Running, up: subprocess.Popen[bytes]) -> float:
    """Time at which the supervisor started."""
    while not spare.lab.directory.exists():
        assert up.poll() is None
        time.sleep(0.01)
    return time.monotonic()


def test_an_interrupted_down_is_finished_by_the_next(spare: Running) -> None:
    spare.cli("up", "--clusters", "1", "--without-isthmus")
    command = [sys.executable, "-m", "isthmus", "lab", "down", "--lab", spare.lab.name]
    for _ in range(3):
        down = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(random.uniform(0.2, 0.5))
        down.kill()
        down.wait()
    spare.cli("down", code=None)
    assert gone(spare), traces(spare.lab)


def test_what_a_lab_lost_is_down_all_the_same(spare: Running) -> None:
    spare.cli("up", "--clusters", "1", "--without-isthmus")
    (spare.lab.directory / "lab.json").unlink()
    output = spare.cli("exec", "c1", "default/x", "--", "true", code=1).stderr
    assert (
        output == f"Error: there is no lab {spare.lab.name}; there are: {spare.lab.name}\n"
        or "there is no lab" in output
    )
    spare.cli("down")
    assert gone(spare)


def test_a_lab_without_its_supervisor_is_reported_with_what_to_do(spare: Running, until: Callable[..., Any]) -> None:
    spare.cli("up", "--clusters", "1", "--without-isthmus")
    for pid in cgroups.processes(cgroups.root() / spare.lab.prefix / "supervisor"):
        cgroups.send(pid, signal.SIGKILL)
    until(lambda: not cgroups.processes(cgroups.root() / spare.lab.prefix / "supervisor"), what="it is gone")
    todo = f"the supervisor of lab {spare.lab.name} has died: nothing of it is restarted any more; isthmus lab down"
    done = spare.cli("kubeconfig")
    assert done.stdout == f"{spare.lab.kubeconfig}\n"
    assert done.stderr.startswith(todo)
    assert todo in spare.cli("status").stderr
    assert todo in spare.cli("kill", "c1/etcd", code=1).stderr
    spare.cli("down")
    assert gone(spare)


def test_a_lab_that_is_there_is_not_started_again(spare: Running) -> None:
    spare.cli("up", "--clusters", "1", "--without-isthmus")
    output = spare.cli("up", "--clusters", "1", code=1).stderr
    assert output.count("\n") == 1
    assert f"lab {spare.lab.name} is there already" in output


def test_an_interrupted_up_leaves_a_lab_that_was_there(spare: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(lab: Lab, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(startup, "check", interrupted)
    spare.lab.directory.mkdir(parents=True)
    CliRunner().invoke(group, ["up", "--lab", spare.lab.name])
    assert spare.lab.directory.exists()


def test_there_is_nothing_to_take_down(spare: Running) -> None:
    assert f"there is no lab {spare.lab.name}" in spare.cli("down", code=1).stderr


def test_all_that_is_missing_is_listed_at_once(spare: Running) -> None:
    command = [sys.executable, "-m", "isthmus", "lab", "up", "--lab", spare.lab.name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=drop_capabilities)
    assert done.returncode == 1
    assert "this machine cannot run a lab; missing:" in done.stderr
    assert "run as root (sudo)" in done.stderr
    assert "Traceback" not in done.stderr
    assert not spare.lab.directory.exists()


def test_two_labs_stand_side_by_side_and_one_goes_alone(spare: Running) -> None:
    other = Running(Lab(f"{spare.lab.name}b", 1, 1))
    try:
        for each in (spare, other):
            each.cli("up", "--clusters", "1", "--without-isthmus")
        spare.cli("down")
        assert gone(spare)
        assert "c1/n1/node" in other.cli("status").stdout
        assert other.cli("status").stdout.count(" ready ") == 4
    finally:
        other.cli("down", code=None)
    assert gone(other)
