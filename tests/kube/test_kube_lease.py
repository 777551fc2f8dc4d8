"""Leader election on virtual time, against an API server on real sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import pytest
from clusters.fake_apiserver import FakeApiServer, running, status

from isthmus import kube
from isthmus.kube.access import Access
from isthmus.kube.lease import DEADLINE, Election, lead
from isthmus.kube.transport import Transport

pytestmark = pytest.mark.looptime

LEASE = "/apis/coordination.k8s.io/v1/namespaces/isthmus-system/leases/operator"


class Replica:
    """A candidate with a client of its own, and when it led."""

    def __init__(self, client: kube.Client, name: str) -> None:
        self.election = Election(client, name="operator", namespace="isthmus-system", identity=name)
        self.began: list[float] = []
        self.ended: list[float] = []
        self.finish = asyncio.Event()
        self.task = asyncio.create_task(self.election.run(self.work))

    async def work(self) -> None:
        self.began.append(now())
        try:
            await self.finish.wait()
        finally:
            self.ended.append(now())

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


class Cluster:
    """A server and replicas of the operator."""

    def __init__(self, server: FakeApiServer, stack: AsyncExitStack) -> None:
        self.server = server
        self._stack = stack

    async def replica(self, name: str) -> Replica:
        client = await self._stack.enter_async_context(
            kube.Client(Transport(Access(server=self.server.url, token=name)))
        )
        replica = Replica(client, name)
        self.server.cut_off.discard(name)
        self._stack.push_async_callback(replica.stop)
        return replica

    async def kill(self, replica: Replica) -> None:
        """As SIGKILL: it sends nothing more."""
        self.server.cut_off.add(replica.election.identity)
        await replica.stop()

    @property
    def spec(self) -> dict[str, object]:
        spec: dict[str, object] = self.server.objects[LEASE]["spec"]
        return spec


@asynccontextmanager
async def serving() -> AsyncIterator[Cluster]:
    """Not a fixture: time is virtual within a test only, and what ends after it would wait in vain."""
    async with running() as server, AsyncExitStack() as stack:
        yield Cluster(server, stack)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_the_first_candidate_leads_at_once_and_the_second_waits() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(1)
        second = await cluster.replica("b")
        await asyncio.sleep(600)
        assert len(first.began) == 1
        assert (second.began, first.ended) == ([], [])
        assert second.election.holder == "a"
        assert cluster.spec["holderIdentity"] == "a"
        assert cluster.spec["leaseTransitions"] == 0


async def test_a_clean_stop_hands_over_within_three_seconds() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(1)
        second = await cluster.replica("b")
        await asyncio.sleep(30)
        stopped = now()
        await first.stop()
        assert "holderIdentity" not in cluster.spec
        await asyncio.sleep(5)
        assert second.began[0] - stopped < 3
        assert cluster.spec["holderIdentity"] == "b"
        assert cluster.spec["leaseTransitions"] == 1


async def test_a_renewal_on_its_way_does_not_keep_the_lease_at_a_clean_stop() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(1)
        cluster.server.fail(status(409, "Conflict"), on=lambda request: request.method == "PUT")
        await first.stop()
        assert not cluster.server.faults
        assert "holderIdentity" not in cluster.spec


async def test_a_leader_that_dies_is_followed_within_twenty_seconds() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(1)
        second = await cluster.replica("b")
        await asyncio.sleep(30)
        died = now()
        await cluster.kill(first)
        assert cluster.spec["holderIdentity"] == "a"
        await asyncio.sleep(30)
        assert 10 < second.began[0] - died < 20


async def test_a_leader_cut_off_stops_before_another_starts() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(1)
        second = await cluster.replica("b")
        await asyncio.sleep(30)
        cluster.server.cut_off.add("a")
        await asyncio.sleep(60)
        assert first.ended[0] < second.began[0]
        assert first.election.terms == 1


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_leader_whose_server_hangs_stops_before_another_starts(method: str) -> None:
    """A request that is never answered must not be waited for beyond the time for which the lease is ours."""
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(1)
        second = await cluster.replica("b")
        await asyncio.sleep(30)
        renewed = now()  # or up to RETRY before
        token = "Bearer a"
        cluster.server.hangs = lambda request: (request.headers["authorization"], request.method) == (token, method)
        await asyncio.sleep(60)
        assert first.ended[0] < second.began[0]
        assert first.ended[0] - renewed <= DEADLINE
        assert len(first.began) == 1
        cluster.server.hangs = lambda request: False
        await asyncio.sleep(60)
        assert (len(second.began), second.ended) == (1, [])


async def test_a_server_that_hangs_for_less_than_the_deadline_costs_no_leadership() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        second = await cluster.replica("b")
        await asyncio.sleep(30)
        cluster.server.hangs = lambda request: request.headers["authorization"] == "Bearer a"
        await asyncio.sleep(3)
        cluster.server.hangs = lambda request: False
        await asyncio.sleep(60)
        assert (len(first.began), first.ended, second.began) == (1, [], [])


async def test_a_short_failure_of_the_server_costs_no_leadership() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(10)
        for _ in range(2):
            cluster.server.fail(status(500, "InternalError"))
        await asyncio.sleep(60)
        assert (len(first.began), first.ended) == (1, [])
        assert not cluster.server.faults


async def test_a_leader_whose_lease_was_taken_stops() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(10)
        cluster.server.put(LEASE, spec={"holderIdentity": "someone", "leaseDurationSeconds": 12})
        await asyncio.sleep(3)
        assert first.ended
        await asyncio.sleep(20)
        assert len(first.began) == 2, "who took it and never renews it loses it again"


async def test_a_restarted_process_of_the_same_identity_leads_at_once() -> None:
    async with serving() as cluster:
        first = await cluster.replica("a")
        await asyncio.sleep(10)
        await cluster.kill(first)
        again = await cluster.replica("a")
        await asyncio.sleep(1)
        assert again.began


async def test_the_clock_of_another_machine_does_not_matter() -> None:
    async with serving() as cluster:
        old = {"holderIdentity": "z", "leaseDurationSeconds": 12, "renewTime": "1999-01-01T00:00:00.000000Z"}
        cluster.server.put(LEASE, spec=old)
        started = now()
        replica = await cluster.replica("a")
        await asyncio.sleep(30)
        assert 12 <= replica.began[0] - started < 15


async def test_work_that_ends_gives_the_lease_away_and_returns() -> None:
    async with serving() as cluster:
        async with kube.Client(Transport(Access(server=cluster.server.url))) as client:

            async def work() -> None:
                await asyncio.sleep(5)

            await lead(client, name="operator", namespace="isthmus-system", identity="a", while_leading=work)
        assert "holderIdentity" not in cluster.spec


async def test_a_failure_of_the_work_comes_out_and_gives_the_lease_away() -> None:
    async with serving() as cluster:
        async with kube.Client(Transport(Access(server=cluster.server.url))) as client:

            async def work() -> None:
                await asyncio.sleep(5)
                raise ValueError("broken")

            with pytest.raises(ValueError, match="broken"):
                await lead(client, name="operator", namespace="isthmus-system", identity="a", while_leading=work)
        assert "holderIdentity" not in cluster.spec


async def test_many_candidates_have_one_leader() -> None:
    async with serving() as cluster:
        replicas = [await cluster.replica(f"r{n}") for n in range(5)]
        await asyncio.sleep(20)
        assert sum(len(replica.began) for replica in replicas) == 1
        while any(replicas):
            [leader] = [replica for replica in replicas if replica.election.leading]
            replicas.remove(leader)
            await leader.stop()
            await asyncio.sleep(3)
            if not replicas:
                break
            assert sum(len(replica.began) for replica in replicas) == 1
