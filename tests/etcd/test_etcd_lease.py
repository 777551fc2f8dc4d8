"""Leases against every etcd of this machine."""

from __future__ import annotations

import asyncio

import pytest
from peers.etcd_server import EtcdServer

from isthmus.etcd import LeaseGone, Session


async def test_keys_of_a_lease_are_deleted_with_it(store: Session) -> None:
    lease = await store.grant_lease(60)
    await store.put("leased", b"", lease=lease.id)
    kv = await store.get("leased")
    assert kv is not None
    assert kv.lease == lease.id
    await lease.revoke()
    assert await store.get("leased") is None


@pytest.mark.slow
async def test_a_lease_that_is_renewed_outlives_its_ttl(store: Session) -> None:
    lease = await store.grant_lease(5)  # a busy machine may miss a renewal, which comes every third of it
    await store.put("leased", b"", lease=lease.id)
    keeping = asyncio.create_task(lease.keep())
    await asyncio.sleep(1.5 * lease.ttl)
    assert await store.get("leased") is not None
    assert lease.remaining > 0
    keeping.cancel()


async def test_keeping_a_revoked_lease_raises(store: Session) -> None:
    lease = await store.grant_lease(6)  # it is still there when it is revoked
    keeping = asyncio.create_task(lease.keep())
    await lease.revoke()
    with pytest.raises(LeaseGone):
        await keeping


async def test_writing_under_a_revoked_lease_raises(store: Session) -> None:
    lease = await store.grant_lease(60)
    await lease.revoke()
    with pytest.raises(LeaseGone):
        await store.put("leased", b"", lease=lease.id)


async def test_a_lease_that_cannot_be_renewed_is_given_up_by_our_own_clock(own_etcd: EtcdServer) -> None:
    async with Session([own_etcd.endpoint], timeout=1.0) as session:
        await own_etcd.ready(session)
        lease = await session.grant_lease(1)
        keeping = asyncio.create_task(lease.keep())
        own_etcd.stop()
        with pytest.raises(LeaseGone, match="could not be kept alive"):
            async with asyncio.timeout(60):
                await keeping
