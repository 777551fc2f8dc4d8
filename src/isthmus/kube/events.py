"""Events: what people see under ``kubectl describe``. Recording one never waits and never fails what it is about.

The same event recorded again raises a count, also across restarts: its name follows from its content.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import Any, Final, Literal, NamedTuple

from isthmus import logs
from isthmus.kube.client import Client
from isthmus.kube.errors import AlreadyExists, KubeError, NotFound
from isthmus.kube.kind import Kind
from isthmus.kube.objects.core import EVENT
from isthmus.reflector import Expired
from isthmus.times import timestamp

PAUSE: Final = 1.0
"""Seconds between two rounds; what is recorded again within one only counts."""
WAITING_LIMIT: Final = 10_000
"""Different events that may wait for the server; more are dropped and counted."""
NAME_LIMIT: Final = 253
"""Characters of an object's name (DNS subdomain)."""
MESSAGE_LIMIT: Final = 1024
"""Characters of an Event's message that the API takes."""

log = logs.get("events")


class _Event(NamedTuple):
    """All that makes two events the same."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    type: str
    reason: str
    message: str

    def event_name(self) -> str:
        """The object's name and a hash of all that makes events the same."""
        digest = hashlib.sha256("\0".join(self).encode()).hexdigest()[:16]
        return f"{self.name[: NAME_LIMIT - 17]}.{digest}"


class Recorder:
    """Records events as one component; :meth:`run` carries them to the server."""

    def __init__(self, client: Client, *, component: str, instance: str) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._waiting: Counter[_Event] = Counter()
        self._wake = asyncio.Event()
        self.sent = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<Recorder {self._component}: {self.sent} sent, {len(self._waiting)} waiting, {self.dropped} dropped>"

    def record(
        self,
        kind: Kind[Any],
        *,
        namespace: str,
        name: str,
        uid: str,
        reason: str,
        message: str,
        type: Literal["Normal", "Warning"] = "Normal",
    ) -> None:
        """Record an event about an object. ``reason`` is one word in CamelCase, ``message`` a sentence."""
        event = _Event(kind.api_version, kind.kind, namespace, name, uid, type, reason, message[:MESSAGE_LIMIT])
        if len(self._waiting) >= WAITING_LIMIT and event not in self._waiting:
            self.dropped += 1
            return
        self._waiting[event] += 1
        self._wake.set()

    async def run(self) -> None:
        """Send what is recorded, for ever."""
        while True:
            await self._wake.wait()
            for event in [*self._waiting]:
                await self._send(event, self._waiting.pop(event))  # one that raises is lost, and no other
            if not self._waiting:
                self._wake.clear()
            await asyncio.sleep(PAUSE)

    async def _send(self, event: _Event, times: int) -> None:
        try:
            try:
                await self._client.create(EVENT, event.namespace, self._body(event, times))
            except AlreadyExists:
                await self._count(event, times)
        except (KubeError, Expired) as error:
            self.dropped += times
            log.info("event not sent", reason=event.reason, about=f"{event.namespace}/{event.name}", why=str(error))
        else:
            self.sent += times

    async def _count(self, event: _Event, times: int) -> None:
        name = event.event_name()
        try:
            before = await self._client.get(EVENT, name, event.namespace)
        except NotFound:  # it ran out just now; the next time will create it
            return
        body = {"count": (before.count or 1) + times, "lastTimestamp": timestamp()}
        await self._client.patch(EVENT, event.namespace, name, body)

    def _body(self, event: _Event, times: int) -> dict[str, Any]:
        now = timestamp()
        return {
            "metadata": {"name": event.event_name(), "namespace": event.namespace},
            "involvedObject": {
                "apiVersion": event.api_version,
                "kind": event.kind,
                "namespace": event.namespace,
                "name": event.name,
                "uid": event.uid,
            },
            "type": event.type,
            "reason": event.reason,
            "message": event.message,
            "count": times,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
