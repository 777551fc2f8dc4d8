"""Owned keys in a real etcd: what a lost answer leaves unknown, and how much is written at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from peers.etcd_server import EtcdServer

from isthmus.clusterset.publishing.owned_keys import TXN_BYTES, OwnedKeys
from isthmus.etcd import Compare, Op, Put, Session, TxnResult
from isthmus.reflector import Transient


class RecordingSession(Session):
    """A session that records the size of each transaction, and loses the answer of the next one if it is to."""

    def __init__(self, endpoint: str) -> None:
        super().__init__([endpoint])
        self.sizes: list[int] = []
        self.loses_an_answer = False

    async def txn(self, compare: Sequence[Compare], success: Sequence[Op], failure: Sequence[Op] = ()) -> TxnResult:
        self.sizes.append(sum(len(op.value) for op in success if isinstance(op, Put)))
        result = await super().txn(compare, success, failure)
        if self.loses_an_answer:
            self.loses_an_answer = False
            raise Transient("the answer was lost")
        return result


@pytest.fixture
async def session(etcd: Session, shared_etcd: EtcdServer) -> AsyncIterator[RecordingSession]:
    async with RecordingSession(shared_etcd.endpoint) as session:
        yield session


async def test_after_a_commit_without_an_answer_the_store_is_read_before_it_is_compared(
    session: RecordingSession,
) -> None:
    """The transaction was committed. What was known of the store would let the key keep a value that is not wanted."""
    owned = OwnedKeys(session, ["a/"])
    owned.want("a/x", b"old")
    assert await owned.flush() == {}
    owned.want("a/x", b"new")
    session.loses_an_answer = True
    assert await owned.flush() == {"a/x": "the answer was lost"}
    owned.want("a/x", b"old")
    assert await owned.flush() == {}
    stored = await session.get("a/x")
    assert stored is not None
    assert stored.value == b"old"


async def test_a_transaction_has_no_more_bytes_than_a_server_takes(session: RecordingSession) -> None:
    owned = OwnedKeys(session, ["a/"])
    value = b"x" * (TXN_BYTES // 4)
    for number in range(10):
        owned.want(f"a/{number}", value)
    assert await owned.flush() == {}
    assert session.sizes == [TXN_BYTES, TXN_BYTES, TXN_BYTES // 2]
