"""The one loop that fills a table from a watchable store: list → replace → watch → expired → list again.

Kubernetes and etcd share it; transports differ. A transport is a :class:`Store`; a :class:`Sink` takes the items. In
doubt the loop lists again.

The loop cannot spin. A round is one list (where needed) and one watch. After a round that worked for a while the next
starts at once; after a short one, however it ended, the pause doubles. Lists are expensive, so a watch must have lasted
longer before an expiry may be followed by a list without a pause.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from isthmus import logs

K = TypeVar("K")
T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)

STEADY: Final = 1.0
"""Seconds after which a watch counts as working."""
LIST_BATCH: Final = 128
"""Objects of a list that are read in one turn of the loop, and rows written: half a ms for Services and EndpointSlices,
and fewer than the units that are computed in that turn, so that nothing piles up."""

FIRST_PART: Final = 8
"""Objects of a list that are read in the first turn."""
TURN: Final = 0.01
"""Seconds for which a part of a list may keep everything else waiting: of larger objects fewer are read in a turn."""

log = logs.get("reflector")


class Expired(Exception):  # noqa: N818 the field's own word for it
    """The store no longer has the revision (410 Gone, compacted, another instance): only a list helps."""


class Transient(Exception):  # noqa: N818
    """The store cannot be reached or closed the connection; what was read stays valid. The message is for people."""


class Listing(NamedTuple, Generic[T]):
    """All items by key, and the revision they are of. ``partial``: there may be more, so nothing may be removed."""

    items: Mapping[str, T]
    revision: str
    partial: bool = False


class Event(NamedTuple, Generic[T]):
    """One key put, or deleted where ``item`` is None."""

    key: str
    item: T | None


class Unreadable(NamedTuple):
    """Stands for an item that is there and cannot be decoded, in stores that are asked for such."""

    why: str
    uid: str = ""


class Batch(NamedTuple, Generic[T]):
    """Events that came together, and the revision after them; without events it is a bookmark."""

    events: Sequence[Event[T]]
    revision: str


class Store(Protocol[T]):
    """A transport. Both methods raise Expired or Transient and translate everything foreign into them."""

    async def list(self) -> Listing[T]:
        """Everything there is."""
        ...

    def watch(self, revision: str) -> AsyncIterator[Batch[T]]:
        """What changes after a revision. Ends when the server closes the stream, which is no error.

        The first batch should come as soon as the stream is open, and be empty if nothing has changed: a watch may be
        silent for minutes, and until its first batch the reflector counts as disconnected.
        """
        ...


class Sink(Protocol[T_contra]):
    """Where items go. Nothing else is called until a call has returned."""

    async def replace(self, items: Mapping[str, T_contra], *, partial: bool) -> None:
        """Replace all items; those not in the list are removed, unless it is partial.

        A long list may be taken in over several turns of the loop; nothing is removed before its end. So one that
        brings many changes is seen half-way for some turns: what moved from one item to another (an endpoint between
        two slices) may be there twice, or in neither. Of two tables that follow one list the one may be ahead.
        """
        ...

    def apply(self, events: Sequence[Event[Any]]) -> None:
        """Apply changes, in their order."""
        ...


class State(Struct, frozen=True, gc=False):
    """A reflector's state, for status and metrics."""

    synced: bool
    connected: bool
    lists: int
    failures: int
    last_failure: str


async def in_turns(items: Mapping[K, T]) -> AsyncIterator[Sequence[tuple[K, T]]]:
    """What a sink takes in, in parts: each in a turn of the loop of its own. Nothing is one part.

    The first parts are small, and later ones as large as objects are fast to take in: a route takes as long as hundreds
    of Services.
    """
    left, size = iter(items.items()), FIRST_PART
    part = tuple(islice(left, size))
    while True:
        began = time.perf_counter()
        yield part
        took = time.perf_counter() - began
        if took > TURN:
            size = max(1, size // 2)
        elif took < TURN / 4:
            size = min(LIST_BATCH, size * 2)
        if not (part := tuple(islice(left, size))):
            return
        await asyncio.sleep(0)


class Reflector(Generic[T]):
    """Copies one store into one sink. :meth:`run` never returns and raises for a bug or cancellation alone.

    Started again after a bug, it lists: what the sink has taken in by then is of no matter.
    """

    def __init__(
        self,
        store: Store[T],
        sink: Sink[T],
        *,
        name: str,
        first_delay: float = 0.1,
        max_delay: float = 30.0,
        jitter: Callable[[], float] = random.random,
        on_state: Callable[[State], None] = lambda state: None,
    ) -> None:
        self._store = store
        self._sink = sink
        self._first_delay = first_delay
        self._max_delay = max_delay
        self._jitter = jitter
        self._on_state = on_state
        self._working_since: float | None = None
        """When this round received its first list or batch."""
        self.name = name
        self.state = State(synced=False, connected=False, lists=0, failures=0, last_failure="")

    def __repr__(self) -> str:
        return f"<Reflector {self.name}: {self.state}>"

    async def run(self) -> None:
        """List and watch, for ever."""
        revision: str | None = None
        attempt = 0
        while True:
            self._working_since = None
            started = _now()
            try:
                if revision is None:
                    revision = await self._list()
                # No await in the body: the generator always ends by itself and needs no closing.
                async for batch in self._store.watch(revision):
                    self._take(batch)
                    revision = batch.revision
                attempt = 0 if _now() - started >= STEADY else attempt + 1
            except Expired as error:
                attempt = 0 if self._worked_for(self._max_delay) else attempt + 1
                revision = None
                log.info("listing again", store=self.name, why=str(error))
            except Transient as error:
                attempt = 1 if self._worked_for(STEADY) else attempt + 1
                self._failed(str(error), attempt)
            except Exception as bug:
                self._failed(f"{type(bug).__name__}: {bug}", attempt)
                raise
            if attempt:
                await asyncio.sleep(self._delay(attempt))

    def _take(self, batch: Batch[T]) -> None:
        if batch.events:
            self._sink.apply(batch.events)
        if self._working_since is None:
            self._working_since = _now()
        if not self.state.connected:
            self._set_state(connected=True)

    def _worked_for(self, seconds: float) -> bool:
        """Whether this round received something and then went on for so long."""
        return self._working_since is not None and _now() - self._working_since >= seconds

    def _failed(self, reason: str, attempt: int) -> None:
        """Log a failure as a warning once; its repetitions at debug level."""
        repeated = reason == self.state.last_failure and not self.state.connected
        (log.debug if repeated else log.warning)("store unavailable", store=self.name, why=reason, attempt=attempt)
        self._set_state(connected=False, failures=self.state.failures + 1, last_failure=reason)

    async def _list(self) -> str:
        listing = await self._store.list()
        await self._sink.replace(listing.items, partial=listing.partial)
        self._working_since = _now()
        self._set_state(synced=True, connected=True, lists=self.state.lists + 1)
        return listing.revision

    def _delay(self, attempt: int) -> float:
        """Seconds: doubling, capped, between half and the whole of it so that many do not come back at once."""
        delay: float = min(self._max_delay, self._first_delay * 2.0 ** min(attempt - 1, 30))
        return delay * (0.5 + self._jitter() / 2)

    def _set_state(self, **changes: Any) -> None:
        self.state = replace(self.state, **changes)
        self._on_state(self.state)


def _now() -> float:
    return asyncio.get_running_loop().time()
