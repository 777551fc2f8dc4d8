"""Labs of an ordinary user: the main job by name, with nftables in place of BPF, and nothing left behind.

The commands run as a user without any privilege; the tests themselves, as all of labs, as root.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from labs.lab_running import until
from labs.users_pair import CLUSTER, IMPORT, UsersPair, demo_of
from machine.ordinary_user import OrdinaryUser

from isthmus_lab import privileges

pytestmark = [pytest.mark.lab, pytest.mark.slow]


@pytest.fixture(scope="module")
def user(own_host: None) -> Iterator[OrdinaryUser]:
    ordinary = OrdinaryUser()
    yield ordinary
    for name in ("demo", "pair"):
        ordinary.isthmus("lab", "down", "--lab", name, code=None)


class Pair(UsersPair):
    """A lab of an ordinary user, as its commands show it."""

    def call(self, script: str, *, cluster: str = "c1") -> str:
        """Output of a shell script in the client's pod."""
        return self.run("sh", "-c", script, cluster=cluster)

    def answers(self, count: int, *, cluster: str = "c1") -> list[str]:
        """Make calls one after the other; return the clusters that answer."""
        said = self.call(f"for n in $(seq {count}); do curl -s --max-time 5 {IMPORT}; echo; done", cluster=cluster)
        return [json.loads(line)["cluster"] for line in said.splitlines() if line]

    def ready(self) -> Any:
        """Output of `isthmus status` once all is ready, else ``None``."""
        found = json.loads(self.user.isthmus("status", *CLUSTER, "-o", "json", code=None).stdout)
        return found if found["ready"] else None

    def state(self, process: str) -> str:
        """State of one of its processes."""
        done = self.user.isthmus("lab", "status", "--lab", "pair", "-o", "json")
        states = {row["name"]: str(row["state"]) for row in json.loads(done.stdout)["programs"]}
        return states[process]


@pytest.fixture(scope="module")
def pair(user: OrdinaryUser) -> Pair:
    made = Pair(user)
    until(lambda: made.answers(1) and made.answers(1, cluster="c2"), what="both clusters call the import")
    return made


@pytest.mark.needs("kubectl")
def test_a_lab_says_what_it_is_without(pair: Pair) -> None:
    assert "without privileges: nftables in place of BPF" in pair.up.stderr
    status = until(pair.ready)
    assert status["processes"]["agent"]["translated"] == privileges.IN_PLACE
    assert (status["missing"], status["degraded"]) == ([], "")
    assert all(not each["problems"] for each in status["processes"].values())


@pytest.mark.needs("kubectl")
def test_an_exported_service_is_called_by_name_and_every_cluster_answers(pair: Pair) -> None:
    for cluster in ("c1", "c2"):
        assert set(pair.answers(40, cluster=cluster)) == {"c1", "c2"}


@pytest.mark.needs("kubectl")
def test_servers_see_the_callers_own_address(pair: Pair) -> None:
    own = pair.kubectl("c1", "get", "pod", "-n", "demo", "client", "-o", "jsonpath={.status.podIP}")

    assert {json.loads(pair.call(f"curl -s {IMPORT}"))["caller"] for _ in range(4)} == {own}


@pytest.mark.needs("kubectl")
def test_a_policy_decides_where_calls_go(pair: Pair) -> None:
    policy = {
        "apiVersion": "isthmus.io/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": {"name": "echo", "namespace": "demo"},
        "spec": {
            "targetRef": {"kind": "ServiceImport", "name": "echo"},
            "tiers": [{"clusters": [{"name": "c2"}]}, {"clusters": [{"name": "c1"}]}],
        },
    }
    pair.kubectl("c1", "apply", "-f", "-", stdin=json.dumps(policy))
    until(lambda: set(pair.answers(20)) == {"c2"}, what="all calls go to the first tier")
    pair.kubectl("c1", "delete", "trafficpolicy", "-n", "demo", "echo")
    until(lambda: set(pair.answers(40)) == {"c1", "c2"}, what="calls are spread again")


@pytest.mark.needs("kubectl")
def test_what_wants_bpf_refuses_in_one_line(pair: Pair) -> None:
    for words in (["flows"], ["bpf", "maps"]):
        done = pair.user.isthmus(*words, *CLUSTER, code=1)
        assert re.fullmatch(r"Error: .*nftables.*\n", done.stderr), done.stderr
    done = pair.user.isthmus("lab", "demo", "--story", "failover", code=1)
    assert "this story wants BPF" in done.stdout


@pytest.mark.needs("kubectl")
def test_commands_run_in_pods_by_the_supervisor_and_by_the_api_server(pair: Pair) -> None:
    script = ["--", "sh", "-c", "hostname; id -u; exit 7"]
    done = pair.user.isthmus("lab", "exec", "--lab", "pair", "c1", "demo/client", *script, code=7)

    assert done.stdout == "client\n0\n"
    assert pair.kubectl("c1", "exec", "-n", "demo", "client", "--", "hostname") == "client\n"


@pytest.mark.needs("kubectl")
def test_processes_pods_and_links_are_killed_cut_and_started_again(pair: Pair) -> None:
    lab = ("--lab", "pair")
    pair.user.isthmus("lab", "kill", *lab, "c1/agent")
    assert pair.state("c1/n1/agent") == "killed"
    assert set(pair.answers(20)) == {"c1", "c2"}, "rules outlive the agent"
    pair.user.isthmus("lab", "start", *lab, "c1/agent")
    until(lambda: pair.state("c1/n1/agent") == "ready")

    pair.user.isthmus("lab", "pause", *lab, "c2/pod/demo/client")
    assert pair.user.processes(state="T") != []
    pair.user.isthmus("lab", "start", *lab, "c2/pod/demo/client")
    assert pair.user.processes(state="T") == []

    pair.user.isthmus("lab", "kill", *lab, "c1/pod/demo/client")
    until(lambda: len(pair.answers(1)) == 1, what="the pod's node starts it again")

    address = pair.kubectl("c2", "get", "pod", "-n", "demo", "client", "-o", "jsonpath={.status.podIP}")
    before = pair.call(f"curl -s --max-time 1 {address}:8080; echo $?")
    pair.user.isthmus("lab", "cut", *lab, "c1", "c2")
    during = pair.call(f"curl -s --max-time 1 {address}:8080; echo $?")
    pair.user.isthmus("lab", "heal", *lab)
    assert (before, during) == ("7\n", "28\n"), "refused by the pod, then lost on the way"


@pytest.mark.needs("kubectl")
def test_a_container_sees_neither_the_host_nor_what_the_lab_keeps(pair: Pair) -> None:
    seen = pair.call("ls -A /run /mnt /tmp; ls /proc | grep -c '^[0-9]'; touch /etc/mine && echo writes")

    assert seen.split()[:3] == ["/mnt:", "/run:", "/tmp:"]
    assert int(seen.split()[3]) < 10
    assert seen.split()[-1] == "writes"
    assert not Path("/etc/mine").exists()


@pytest.mark.needs("kubectl")
def test_an_image_is_a_program_below_tmp_and_a_volume_there_does_not_hide_it(pair: Pair) -> None:
    container = {
        "name": "shop",
        "image": "acme/shop",
        "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}],
        "readinessProbe": {"exec": {"command": ["test", "-e", "/tmp/open"]}, "periodSeconds": 1, "timeoutSeconds": 30},
    }
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "shop"},
        "spec": {
            "containers": [container],
            "volumes": [{"name": "scratch", "emptyDir": {}}],
            "terminationGracePeriodSeconds": 1,
        },
    }
    with TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        program = Path(folder, "serve")
        program.write_text("#!/bin/sh\ntouch /tmp/open\nsleep 1000\n")
        program.chmod(0o755)
        pair.user.isthmus("lab", "image", "add", "--lab", "pair", f"acme/shop={program}")
        pair.kubectl("c1", "apply", "-f", "-", stdin=json.dumps(body))
        pair.kubectl("c1", "wait", "--for=condition=Ready", "--timeout=50s", "pod/shop")
        pair.kubectl("c1", "delete", "pod", "shop")


@pytest.mark.needs("kubectl")
def test_a_lab_whose_namespaces_end_is_gone_but_for_its_files_and_down_removes_those(pair: Pair) -> None:
    first = json.loads((pair.user.directory / "namespaces" / "pair.json").read_text())["pid"]
    os.kill(first, signal.SIGKILL)
    until(lambda: pair.user.processes() == [])

    assert (
        "the supervisor of lab pair has died" in pair.user.isthmus("lab", "status", "--lab", "pair", code=None).stderr
    )
    pair.user.isthmus("lab", "down", "--lab", "pair")
    assert not pair.user.directory.exists()


def test_the_demo_tells_the_main_job_and_leaves_nothing(user: OrdinaryUser) -> None:
    assert "without privileges: nftables in place of BPF" in demo_of(user)


@pytest.mark.parametrize("kind", ["user", "cgroup", "uts"])
def test_what_wants_a_kind_of_namespace_that_is_switched_off_is_one_line_that_has_what_to_do(
    user: OrdinaryUser, kind: str
) -> None:
    none = f"echo 0 > /proc/sys/user/max_{kind}_namespaces"
    done = user.run(["unshare", "-Ur", "sh", "-c", f"{none} && {user.python} -m isthmus lab up --nodes 2"])

    assert done.returncode == 1
    assert done.stderr.count("\n") == 1, done.stderr
    assert f"user.max_{kind}_namespaces=0" in done.stderr
    assert "raise these by sysctl, or run this as root" in done.stderr


def test_a_directory_that_another_user_made_is_believed_by_no_command(user: OrdinaryUser, tmp_path: Path) -> None:
    kept = tmp_path / "demo"
    kept.mkdir()
    group = user.directory / "groups" / "isthmus-demo"
    group.mkdir(parents=True)
    (group / "namespace").symlink_to("/proc/self/ns/cgroup")
    (user.directory / "labs").symlink_to(tmp_path)
    session = subprocess.Popen(["sleep", "60"], user=user.id, group=user.id, extra_groups=[])
    try:
        for words in (
            ("lab", "down"),
            ("lab", "up"),
            ("lab", "status"),
            ("lab", "demo"),
            ("status", "--cluster", "c1"),
        ):
            done = user.isthmus(*words, code=1)
            assert "is not a directory that you alone may write" in done.stderr, (words, done.stderr)
        assert session.poll() is None
        assert kept.exists()
    finally:
        session.kill()
        session.wait()
        shutil.rmtree(user.directory, ignore_errors=True)


def test_of_two_commands_that_make_the_same_lab_one_does(user: OrdinaryUser) -> None:
    command = ["lab", "up", "--lab", "pair", "--clusters", "1", "--without-isthmus"]
    with ThreadPoolExecutor() as threads:
        one, other = threads.map(lambda _: user.isthmus(*command, code=None), range(2))
    codes, refused = sorted((one.returncode, other.returncode)), one if one.returncode else other

    assert codes == [0, 1], one.stderr + other.stderr
    assert re.search(
        "^Error: (another command is about to make lab pair|lab pair is there already)", refused.stderr, re.M
    )
    assert "c1/n1/node" in user.isthmus("lab", "status", "--lab", "pair").stdout
    user.isthmus("lab", "down", "--lab", "pair")
    assert (user.processes(), user.directory.exists()) == ([], False)


def test_namespaces_of_a_command_that_was_killed_before_it_made_the_lab_end(user: OrdinaryUser) -> None:
    """The record of it is what such a command leaves: its namespaces live, and there is no lab."""
    user.isthmus("lab", "up", "--lab", "pair", "--clusters", "1", "--without-isthmus")
    record = (user.directory / "namespaces" / "pair.json").read_bytes()
    for made in ("labs", "groups", "netns"):
        shutil.rmtree(user.directory / made)
    user.isthmus("lab", "up", "--lab", "pair", "--clusters", "1", "--without-isthmus")

    assert (user.directory / "namespaces" / "pair.json").read_bytes() != record
    first = Path("/proc", str(json.loads(record)["pid"]))
    until(lambda: not first.exists(), what="it has ended and its parent has seen that")
    user.isthmus("lab", "down", "--lab", "pair")
    assert (user.processes(), user.directory.exists()) == ([], False)
