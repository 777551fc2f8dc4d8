"""Labs where there are no user namespaces: the main job by name on loopback addresses, through an Envoy.

The commands run as a user without any privilege, and behind a filter that refuses user namespaces.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.host_processes import with_command
from labs.lab_running import until
from labs.users_pair import CLUSTER, IMPORT, UsersPair, demo_of
from machine.ordinary_user import OrdinaryUser

from isthmus_lab import privileges
from isthmus_lab.own_programs import ON_HOST

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("kubectl", "envoy")]
LOCAL = "echo.demo.svc.cluster.local"


@pytest.fixture(scope="module")
def user(own_host: None) -> Iterator[OrdinaryUser]:
    ordinary = OrdinaryUser(namespaces=False)
    yield ordinary
    for name in ("demo", "pair"):
        ordinary.isthmus("lab", "down", "--lab", name, code=None)


class Pair(UsersPair):
    """A lab on loopback addresses, with the answers to its calls."""

    def answers(self, count: int, *, cluster: str = "c1", name: str = IMPORT, by: str = "cluster") -> Counter[str]:
        """Count consecutive calls by the cluster, or pod, that answers; '' counts calls without an answer."""
        caller = ("python3", "-I", "-S", str(ON_HOST.programs / "caller.py"), name, "80", "--count", str(count))
        calls = [json.loads(line) for line in self.run(*caller, cluster=cluster, code=None).splitlines()]
        return Counter(call["answer"][by] if call["ok"] else "" for call in calls)

    def spread(self, policy: dict[str, Any]) -> None:
        """Apply a policy of the import in c1."""
        spec = {"targetRef": {"kind": "ServiceImport", "name": "echo"}, **policy}
        body = {
            "apiVersion": "isthmus.io/v1alpha1",
            "kind": "TrafficPolicy",
            "metadata": {"name": "echo"},
            "spec": spec,
        }
        self.kubectl("c1", "apply", "-n", "demo", "-f", "-", stdin=json.dumps(body))


@pytest.fixture(scope="module")
def pair(user: OrdinaryUser) -> Pair:
    made = Pair(user)
    until(
        lambda: all(set(made.answers(4, cluster=each)) == {"c1", "c2"} for each in ("c1", "c2")),
        what="both clusters call the import",
    )
    return made


def test_a_lab_says_which_kind_it_is_and_why(pair: Pair) -> None:
    assert "without user namespaces (Operation not permitted: a container or sandbox may forbid them" in pair.up.stderr
    assert "loopback addresses and Envoy" in pair.up.stderr
    status = json.loads(pair.user.isthmus("status", *CLUSTER, "-o", "json").stdout)
    assert status["processes"]["agent"]["translated"] == privileges.BY_ENVOY
    assert (status["missing"], status["degraded"]) == ([], "")


def test_an_exported_service_is_called_by_name_and_every_pod_has_its_share(pair: Pair) -> None:
    for cluster in ("c1", "c2"):
        assert pair.answers(40, cluster=cluster) == {"c1": 20, "c2": 20}
    assert "c1 50%, c2 50%" in pair.user.isthmus("explain", "demo/echo", *CLUSTER).stdout


def test_a_plain_service_stays_in_its_cluster(pair: Pair) -> None:
    assert pair.answers(10, cluster="c2", name=LOCAL) == {"c2": 10}


def test_a_client_stays_with_a_pod_where_the_service_wants_that(pair: Pair) -> None:
    def pods() -> int:
        return len(pair.answers(20, cluster="c2", name=LOCAL, by="pod"))

    service = ("patch", "service", "-n", "demo", "echo", "-p")
    pair.kubectl("c2", *service, '{"spec": {"sessionAffinity": "ClientIP"}}')
    until(lambda: pods() == 1, what="one pod answers the client")
    pair.kubectl("c2", *service, '{"spec": {"sessionAffinity": "None"}}')
    until(lambda: pods() == 2, what="both answer again")


def test_a_name_that_is_not_known_has_no_address(pair: Pair) -> None:
    assert pair.run("getent", "hosts", IMPORT).split()[1] == IMPORT
    assert pair.run("getent", "hosts", f"no-{IMPORT}", code=2) == ""
    assert pair.kubectl("c1", "exec", "-n", "demo", "client", "--", "getent", "hosts", IMPORT) != ""


def test_a_policy_decides_where_calls_go(pair: Pair) -> None:
    pair.spread({"tiers": [{"clusters": [{"name": "c1", "weight": 1}, {"name": "c2", "weight": 3}]}]})
    until(lambda: pair.answers(40) == {"c1": 10, "c2": 30}, what="calls have the policy's weights")
    pair.spread({"tiers": [{"clusters": [{"name": "c2"}]}, {"clusters": [{"name": "c1"}]}]})
    until(lambda: set(pair.answers(20)) == {"c2"}, what="all calls go to the first tier")
    pair.kubectl("c1", "delete", "trafficpolicy", "-n", "demo", "echo")
    until(lambda: set(pair.answers(20)) == {"c1", "c2"}, what="calls are spread again")


def test_pods_that_go_are_called_no_more_and_called_again_when_they_are_back(pair: Pair) -> None:
    pair.kubectl("c2", "scale", "-n", "demo", "deploy/echo", "--replicas=0")
    until(lambda: pair.answers(20) == {"c1": 20}, what="c1 answers alone")
    pair.kubectl("c2", "scale", "-n", "demo", "deploy/echo", "--replicas=2")
    until(lambda: pair.answers(20) == {"c1": 10, "c2": 10}, what="all answer again")


def test_processes_are_killed_and_started_again_and_calls_go_on_without_the_agent(pair: Pair) -> None:
    pair.user.isthmus("lab", "kill", "--lab", "pair", "c1/agent")
    assert set(pair.answers(20)) == {"c1", "c2"}
    pair.user.isthmus("lab", "start", "--lab", "pair", "c1/agent")
    pair.user.isthmus("lab", "pause", "--lab", "pair", "c2/pod/demo/client")
    assert pair.user.processes(state="T") != []
    pair.user.isthmus("lab", "start", "--lab", "pair", "c2/pod/demo/client")
    assert pair.user.processes(state="T") == []


def test_a_cluster_that_is_killed_comes_back(pair: Pair) -> None:
    pair.user.isthmus("lab", "kill", "--lab", "pair", "c2")
    until(lambda: pair.answers(10) == {"c1": 10}, what="c1 answers alone")
    pair.user.isthmus("lab", "start", "--lab", "pair", "c2")
    until(lambda: pair.answers(20) == {"c1": 10, "c2": 10}, what="all answer again")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("lab", "cut", "--lab", "pair", "c1", "c2"), "has no network to cut"),
        (("flows", *CLUSTER), "flows are not recorded here: calls are translated by an Envoy of the lab"),
        (("bpf", "maps", *CLUSTER), "there are no BPF maps"),
        (("lab", "up", "--lab", "other", "--network", "island"), "--network island: a lab on loopback addresses"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(pair: Pair, words: tuple[str, ...], why: str) -> None:
    done = pair.user.isthmus(*words, code=1)

    assert why in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("container", "why"),
    [
        ({"image": "nginx", "ports": [{"containerPort": 80}]}, "port 80 is root's: use one from 1024"),
        ({"image": "redis", "ports": [{"containerPort": 6379}]}, "only programs of the lab can listen"),
        ({"image": "busybox", "volumeMounts": [{"name": "v", "mountPath": "/v"}]}, "so no volumes"),
    ],
)
def test_a_pod_that_wants_a_network_or_files_of_its_own_waits_with_the_reason(
    pair: Pair, container: dict[str, Any], why: str
) -> None:
    spec = {"containers": [{"name": "main", **container}], "volumes": [{"name": "v", "emptyDir": {}}]}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "odd"}, "spec": spec}
    pair.kubectl("c1", "apply", "-f", "-", stdin=json.dumps(body))
    path = "jsonpath={.status.containerStatuses[0].state.waiting.message}"
    until(lambda: why in pair.kubectl("c1", "get", "pod", "odd", "-o", path))
    pair.kubectl("c1", "delete", "pod", "odd")


def test_all_processes_end_with_the_supervisor_and_down_removes_the_files(pair: Pair) -> None:
    mine = (
        pid for pid in with_command("isthmus_lab.supervisor pair") if Path(f"/proc/{pid}").stat().st_uid == pair.user.id
    )
    os.kill(next(pid for pid in mine if os.getsid(pid) == pid), signal.SIGKILL)
    until(lambda: pair.user.processes() == [])

    assert "has died" in pair.user.isthmus("lab", "status", "--lab", "pair", code=None).stderr
    pair.user.isthmus("lab", "down", "--lab", "pair")
    assert not pair.user.directory.exists()


def test_the_demo_tells_the_main_job_and_leaves_nothing(user: OrdinaryUser) -> None:
    assert "loopback addresses and Envoy" in demo_of(user)
