"""Leader election by a Lease: of several replicas one acts.

The invariant: whoever leads stops before another may start. A leader that cannot renew for DEADLINE stops by
itself; another takes over only after the lease has not changed for DURATION, by its own clock: wall clocks of two
machines are never compared. A clean stop gives the lease away at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from isthmus import logs
from isthmus.kube.client import Client
from isthmus.kube.errors import Conflict, KubeError, NotFound, NotServed
from isthmus.kube.objects.coordination import LEASE, Lease, LeaseSpec
from isthmus.reflector import Expired
from isthmus.times import micro_timestamp

DURATION: Final = 12
DEADLINE: Final = 8.0
RETRY: Final = 2.0
ATTEMPT: Final = 3.0
"""Seconds for one renewal: one that hangs leaves time for another before the deadline."""
RELEASE: Final = 2.0
LONGEST: Final = 120
"""Seconds: longest time for which an unchanged lease is valid, whatever its duration: an abandoned lease of a year must
not keep every replica from leading for as long."""

log = logs.get("lease")


class _Lost(Exception):  # noqa: N818 not an error: the lease is another's, or cannot be renewed
    pass


async def lead(
    client: Client, *, name: str, namespace: str, identity: str, while_leading: Callable[[], Awaitable[None]]
) -> None:
    """Call ``while_leading`` whenever we are the leader; see :meth:`Election.run`."""
    await Election(client, name=name, namespace=namespace, identity=identity).run(while_leading)


class Election:
    """One candidate. ``identity`` must be this process's own; ``holder`` is who leads as far as we know."""

    def __init__(self, client: Client, *, name: str, namespace: str, identity: str) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._seen: LeaseSpec | None = None
        self._seen_at = 0.0
        self.identity = identity
        self.holder = ""
        self.terms = 0
        self.problem = "the API server has not answered yet"
        """Reason why the last read or write of the lease failed; empty if it succeeded."""

    def __repr__(self) -> str:
        return f"<Election {self._namespace}/{self._name}: {self.holder or 'nobody'} leads, we are {self.identity}>"

    @property
    def leading(self) -> bool:
        """True if this replica holds the lease."""
        return self.holder == self.identity

    async def run(self, while_leading: Callable[[], Awaitable[None]]) -> None:
        """Wait for the lease and lead; again whenever it was lost, until ``while_leading`` returns or we are cancelled.

        Losing the lease cancels ``while_leading``, which is called anew for each term.
        """
        while True:
            await self._win()
            self.terms += 1
            log.info("leading", lease=self._name, identity=self.identity)
            if await self._hold(while_leading):
                return

    async def _hold(self, while_leading: Callable[[], Awaitable[None]]) -> bool:
        """Lead and renew until one of both ends; ``True`` if the work was done, and the lease not lost.

        No TaskGroup: in one whose task fails, a cancellation that comes at that moment is lost before Python 3.13.
        """
        work = asyncio.ensure_future(while_leading())
        renewing = asyncio.create_task(self._renew())
        try:
            await asyncio.wait({work, renewing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, renewing):
                task.cancel()
            try:
                await _ended(work, renewing)
            finally:
                await self._release()
        if not work.cancelled():
            work.result()
            return True
        if not renewing.cancelled() and isinstance(error := renewing.exception(), Exception):
            if not isinstance(error, _Lost):
                raise error
            log.warning("leading no more", lease=self._name, identity=self.identity)
        return False

    async def _win(self) -> None:
        while not await self._attempt(RETRY * 2):  # noqa: ASYNC110 the lease is elsewhere
            await asyncio.sleep(RETRY)

    async def _renew(self) -> None:
        """Renew for ever; _Lost when another has the lease, or when we have not reached it for too long."""
        renewed = _now()
        while True:
            await asyncio.sleep(RETRY)
            tried = _now()
            if await self._attempt(min(ATTEMPT, max(0.0, renewed + DEADLINE - tried))):
                renewed = tried
            elif not self.leading or _now() + RETRY - renewed >= DEADLINE:
                self.holder = "" if self.leading else self.holder
                raise _Lost

    async def _attempt(self, seconds: float) -> bool:
        """Try to acquire or renew the lease. Returns ``True`` if this replica holds it now; a failure is logged."""
        try:
            async with asyncio.timeout(seconds):
                return await self._claim()
        except TimeoutError:
            self._missed("the API server does not answer in time")
        except Conflict:
            self.problem = ""
            log.debug("another was faster", lease=self._name)
        except (KubeError, Expired) as error:
            self._missed(str(error))
        return False

    def _missed(self, reason: str) -> None:
        """Keep why the lease was not reached, and log it once."""
        if reason != self.problem:
            log.warning("lease not reached", lease=self._name, why=reason)
        self.problem = reason

    async def _claim(self) -> bool:
        try:
            lease = await self._client.get(LEASE, self._name, self._namespace)
        except NotServed:
            raise
        except NotFound:
            await self._client.create(LEASE, self._namespace, self._body(None))
            return self._is(self.identity)
        if self._is_taken(lease.spec):
            return self._is(lease.spec.holder_identity or "")
        await self._client.replace(LEASE, self._namespace, self._name, self._body(lease))
        return self._is(self.identity)

    def _is(self, holder: str) -> bool:
        self.holder, self.problem = holder, ""
        return self.leading

    def _is_taken(self, spec: LeaseSpec) -> bool:
        """True if another replica holds the lease: it is valid for its own duration since its last observed change."""
        if spec != self._seen:
            self._seen, self._seen_at = spec, _now()
        if spec.holder_identity in (None, "", self.identity):
            return False
        return _now() - self._seen_at < min(LONGEST, spec.lease_duration_seconds or DURATION)

    async def _release(self) -> None:
        """Release the lease if it is held. An unresponsive server must not delay the end of the process."""
        if not self.leading:
            return
        self.holder = ""
        try:
            async with asyncio.timeout(RELEASE):
                while not await self._free():
                    pass
        except (KubeError, Expired, TimeoutError) as error:
            log.warning("lease not released", lease=self._name, why=str(error))

    async def _free(self) -> bool:
        """Write the lease without us; False where our own renewal, sent before we stopped, came between."""
        lease = await self._client.get(LEASE, self._name, self._namespace)
        if lease.spec.holder_identity == self.identity:
            try:
                await self._client.replace(LEASE, self._namespace, self._name, self._body(lease, free=True))
            except Conflict:
                return False
        return True

    def _body(self, lease: Lease | None, *, free: bool = False) -> dict[str, Any]:
        """Return the Lease to write, which replaces this one only if it has not changed since it was read."""
        before = lease.spec if lease else LeaseSpec()
        now = micro_timestamp()
        is_held = before.holder_identity == self.identity
        acquired = {
            "holderIdentity": self.identity,
            "acquireTime": before.acquire_time if is_held and before.acquire_time else now,
            "leaseTransitions": (before.lease_transitions or 0) + (0 if is_held or lease is None else 1),
        }
        released = {"leaseTransitions": before.lease_transitions or 0}
        return {
            "metadata": {
                "name": self._name,
                "namespace": self._namespace,
                **({"resourceVersion": lease.metadata.resource_version} if lease else {}),
            },
            "spec": {
                "leaseDurationSeconds": 1 if free else DURATION,
                "renewTime": now,
                **(released if free else acquired),
            },
        }


async def _ended(*tasks: asyncio.Future[None]) -> None:
    """Wait for the end of tasks that are cancelled. To be cancelled meanwhile cancels them once more."""
    cancelled = False
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError:
            cancelled = True
            for task in tasks:
                task.cancel()
    if cancelled:
        raise asyncio.CancelledError


def _now() -> float:
    return asyncio.get_running_loop().time()
