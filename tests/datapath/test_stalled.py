"""Connections that stall, by what the kernel knows of them: real calls over a router whose links lose packets."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from clusters.apiserver_world import until
from datapath_worlds.narrow_path import PORT, SERVER, NarrowPath

from isthmus.datapath import cgroup_root
from isthmus.datapath.failures import stalled
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.stalls import Stall
from isthmus.netlink.sock_diag import Progress
from isthmus.statedb import Database

pytestmark = [pytest.mark.bpf, pytest.mark.needs("nft")]

PROGRAM = Path(__file__).parents[1] / "support" / "datapath_worlds" / "sized_answers.py"
ECHO = ServiceName("demo/echo")
C1, C2 = ClusterName("c1"), ClusterName("c2")
SMALL, LARGE = "100,100", "5000,100"


class Pods:
    """A caller's and a server's pods: processes in cgroups of their own, on both sides of a router."""

    def __init__(self, path: NarrowPath, callers: Path, servers: Path) -> None:
        self.path = path
        self.callers, self.servers = callers, servers
        (servers / "cgroup.procs").write_text(str(path.process.pid))

    @contextmanager
    def call(self, *pairs: str, how: str = "call") -> Iterator[tuple[IO[str], IO[str]]]:
        """Calls of these sizes on one connection; its input, and its output with a line for each answer."""
        command = ["ip", "netns", "exec", self.path.caller, sys.executable, str(PROGRAM), how, SERVER, *pairs]
        procs = self.callers / "cgroup.procs"
        with subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: [procs.write_text(str(os.getpid())), None][1],
        ) as process:  # fmt: skip
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                yield process.stdin, process.stdout
            finally:
                process.kill()

    def stalls(self, cluster: ClusterName = C1, *, gateway: bool = False) -> list[Stall]:
        """What the agent of a cluster lists; ``gateway``: the server is a gateway of c2, and no backend."""
        db = Database(tables.BACKENDS, tables.CLUSTERS)
        with db.write() as txn:
            if gateway:
                txn.put(tables.CLUSTERS, Cluster(name=C2, gateways=("gw.example:15443", f"{SERVER}:{PORT}")))
            else:
                key = BackendKey(ServiceName("demo/derived-x"), C2, SERVER, PORT, "TCP")
                txn.put(tables.BACKENDS, Backend(key=key, port_names=("",), import_of=ECHO))
                txn.put(tables.CLUSTERS, Cluster(name=C2))
        return self._listed(db, cluster)

    def _listed(self, db: Database, cluster: ClusterName) -> list[Stall]:
        cgroup = self.callers if cluster == C1 else self.servers
        return stalled.stalled(stalled.ends(db.snapshot(), cluster), cgroup, now=time.time())


@pytest.fixture
def pods() -> Iterator[Pods]:
    root = cgroup_root()
    assert root is not None
    groups = [root / f"isthmus-stalled-{os.getpid()}-{part}" for part in ("callers", "servers")]
    for group in groups:
        group.mkdir()
    path = NarrowPath([str(PROGRAM), "serve"], "tcp")
    try:
        yield Pods(path, *groups)
    finally:
        path.close()
        for group in groups:
            until(lambda group=group: not (group / "cgroup.procs").read_text())  # type: ignore[misc]
            group.rmdir()


def test_a_call_whose_large_segments_vanish_is_listed_by_its_size(pods: Pods) -> None:
    pods.path.narrow(pods.path.server, silent=True)
    with pods.call(SMALL, LARGE, LARGE) as (_, answers):
        assert answers.readline() == f"{SMALL}\n"
        until(lambda: bool(pods.stalls()))
        [stall] = pods.stalls()
        assert (stall.service, stall.cluster, stall.sends, stall.by_size) == (ECHO, C2, "calls", True)
        assert (stall.connections, stall.segment, stall.path_mtu) == (1, 1448, 1500)
        assert stall.peers == (f"{SERVER}:{PORT}",)
        assert pods.stalls(C2) == []
        assert [(row.service, row.cluster, row.by_size) for row in pods.stalls(gateway=True)] == [("", C2, True)]


def test_a_first_call_that_is_large_is_listed_by_its_size(pods: Pods) -> None:
    pods.path.narrow(pods.path.server, silent=True)
    with pods.call("1500,100"):
        until(lambda: bool(pods.stalls()))
        assert [stall.by_size for stall in pods.stalls()] == [True]


def test_calls_that_are_given_up_after_a_second_are_listed(pods: Pods) -> None:
    """Each times out twice within that second, as a connect of Envoy whose TLS hello is large."""
    pods.path.narrow(pods.path.server, silent=True)
    with pods.call("1470,100", how="try"):
        until(lambda: any(stall.by_size for stall in pods.stalls()))


@pytest.mark.parametrize(
    ("timeouts", "later", "stalls"), [(1, True, False), (2, True, True), (2, False, False), (3, False, True)]
)
def test_less_time_is_needed_where_a_small_segment_arrived_behind_the_lost_one(
    timeouts: int, later: bool, stalls: bool
) -> None:
    progress = Progress(1448, 1476, later, 0.0, 0.5, timeouts, 1500)
    assert stalled.is_stalled(progress) is stalls


def test_an_answer_whose_large_segments_vanish_is_listed_where_it_is_sent(pods: Pods) -> None:
    pods.path.narrow(pods.path.caller, silent=True)
    with pods.call(SMALL, "100,5000") as (_, answers):
        assert answers.readline() == f"{SMALL}\n"
        until(lambda: bool(pods.stalls(C2)))
        [stall] = pods.stalls(C2)
        assert (stall.service, stall.cluster, stall.sends, stall.by_size) == (ECHO, C2, "answers", True)
        assert [peer.rpartition(":")[0] for peer in stall.peers] == ["10.77.1.2"]
        assert pods.stalls() == []


@pytest.mark.slow
@pytest.mark.parametrize("last", [SMALL, LARGE])
def test_a_path_that_loses_everything_is_not_told_by_the_size(pods: Pods, last: str) -> None:
    with pods.call(*[LARGE] * 3, "-", last) as (start, answers):
        assert [answers.readline() for _ in range(3)] == [f"{LARGE}\n"] * 3
        pods.path.cut()
        start.write("\n")
        start.flush()
        until(lambda: bool(pods.stalls()))
        assert [(stall.sends, stall.by_size) for stall in pods.stalls()] == [("calls", False)]


@pytest.mark.slow
def test_small_segments_that_are_lost_are_not_told_by_the_size(pods: Pods) -> None:
    with pods.call(SMALL, "-", SMALL) as (start, answers):
        answers.readline()
        pods.path.cut()
        start.write("\n")
        start.flush()
        until(lambda: bool(pods.stalls()))
        assert [stall.by_size for stall in pods.stalls()] == [False]


def test_calls_over_a_bottleneck_that_is_reported_are_not_listed(pods: Pods) -> None:
    pods.path.narrow(pods.path.server, silent=False)
    with pods.call(SMALL, LARGE, LARGE) as (_, answers):
        assert [answers.readline() for _ in range(3)] == [f"{SMALL}\n", f"{LARGE}\n", f"{LARGE}\n"]
        assert pods.stalls() == pods.stalls(C2) == []


def test_a_server_that_does_not_read_is_not_listed(pods: Pods) -> None:
    """Its window is closed: the caller's timer is that of its probes."""
    pods.path.process.send_signal(signal.SIGSTOP)
    with pods.call(f"{8 << 20},1"):
        until(lambda: "timer:(persist" in pods.path.inside(pods.path.caller, "ss", "-tno"))
        assert pods.stalls() == []
    pods.path.process.send_signal(signal.SIGCONT)
