"""Probes of paths: which backends they call, and which rows they keep."""

from __future__ import annotations

import asyncio
import errno
import resource
from collections.abc import Mapping

import pytest

from isthmus.identity.paths import Answer, judge
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.signing import SignedTo
from isthmus.processes.path_probes import TRIES, PathProbes, probe
from isthmus.statedb import Database

C2, C3, ECHO = ClusterName("c2"), ClusterName("c3"), ServiceName("demo/echo")
STRIPPED = Answer(errno.EHOSTUNREACH, (3, 10), bytes(12) + b"\x50" + bytes(7))
SILENT, NOTHING, ACCEPTED = Answer(errno.ETIMEDOUT), Answer(errno.ECONNREFUSED), Answer()


class Agent:
    """The tables of an agent whose calls to c2 and c3 are signed, and the answers that backends give."""

    def __init__(self) -> None:
        self.db = Database(tables.SIGNED_TO, tables.BACKENDS, tables.PATHS)
        self.answers: dict[str, Answer] = {}
        self.called: list[tuple[str, int]] = []
        self.signed = {2, 3}
        self.probes = PathProbes(self.db, lambda: self.signed, now=lambda: 7.0, connect=self._connect)

    async def _connect(self, address: str, port: int) -> Answer:
        self.called.append((address, port))
        return self.answers.get(address, ACCEPTED)

    def backend(self, address: str, cluster: ClusterName = C2) -> None:
        with self.db.write() as txn:
            txn.put(tables.SIGNED_TO, SignedTo(ECHO, address, cluster, int(cluster[1:])))
            for number, protocol in ((53, "UDP"), (8080, "TCP")):
                key = BackendKey(ECHO, cluster, address, number, protocol)  # type: ignore[arg-type]
                txn.put(tables.BACKENDS, Backend(key, ("http",)))

    def look(self) -> Mapping[str, tuple[str, str]]:
        """Probe once. Returns state and address by cluster."""
        self.called.clear()
        asyncio.run(self.probes.look())
        return {row.cluster: (row.state, row.address) for row in self.db.snapshot().all(tables.PATHS)}


@pytest.fixture
def agent() -> Agent:
    return Agent()


def test_one_backend_of_each_cluster_is_called_at_a_port_of_tcp(agent: Agent) -> None:
    for number in range(10):
        agent.backend(f"10.2.0.{number}")
    agent.backend("10.3.0.1", C3)
    assert set(agent.look()) == {C2, C3}
    assert len(agent.called) == 2
    assert {port for _, port in agent.called} == {8080}


def test_a_cluster_towards_which_nothing_is_signed_is_not_called_and_loses_its_row(agent: Agent) -> None:
    agent.backend("10.2.0.1")
    assert agent.look() == {C2: ("ok", "10.2.0.1")}
    agent.signed = {3}
    assert agent.look() == {}
    assert agent.called == []


def test_a_few_backends_are_tried_until_one_says_something(agent: Agent) -> None:
    for number in range(10):
        agent.backend(f"10.2.0.{number}")
        agent.answers[f"10.2.0.{number}"] = SILENT
    assert agent.look()[C2][0] == "silent"
    assert len(agent.called) == TRIES


def test_silence_of_one_backend_is_no_silence_of_the_path(agent: Agent) -> None:
    for number in (1, 2):
        agent.backend(f"10.2.0.{number}")
    agent.answers["10.2.0.1"] = SILENT
    agent.answers["10.2.0.2"] = STRIPPED
    assert agent.look() == {C2: ("stripped", "10.2.0.2")}


def test_a_backend_that_refuses_the_connection_has_answered(agent: Agent) -> None:
    for number in (1, 2):
        agent.backend(f"10.2.0.{number}")
    agent.answers = {"10.2.0.1": SILENT, "10.2.0.2": NOTHING}
    assert agent.look() == {}


def test_a_verdict_stays_while_nothing_else_is_found_out(agent: Agent) -> None:
    agent.backend("10.2.0.1")
    agent.answers["10.2.0.1"] = NOTHING
    assert agent.look() == {}
    agent.answers["10.2.0.1"] = STRIPPED
    assert agent.look() == {C2: ("stripped", "10.2.0.1")}
    agent.answers["10.2.0.1"] = NOTHING
    assert agent.look() == {C2: ("stripped", "10.2.0.1")}


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_a_probe_that_has_no_socket_says_nothing(address: str) -> None:
    """On a node without IPv6, one IPv6 backend of a peer ended the probes of all clusters, for ever."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, before[1]))
    try:
        answer = await probe(address, 80)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert answer == Answer(errno.EMFILE)
    assert judge(answer) is None
