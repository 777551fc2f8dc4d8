"""Events: what people see under ``kubectl describe``. Saying one never waits and never fails what it is about.

The same event said again raises a count, also across restarts: its name follows from what it says.
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
"""Seconds between two rounds; what is said again within one only counts."""
MOST: Final = 10_000
"""Different events that may wait for the server; more are dropped and counted."""
LONGEST_NAME: Final = 253
LONGEST_MESSAGE: Final = 1024

log = logs.get("events")


class _Said(NamedTuple):
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
        return f"{self.name[: LONGEST_NAME - 17]}.{digest}"


class Recorder:
    """Says events as one component; :meth:`run` carries them to the server."""

    def __init__(self, client: Client, *, component: str, instance: str) -> None:
        self._client = client
        self._component = component
        self._instance = instance
        self._waiting: Counter[_Said] = Counter()
        self._wake = asyncio.Event()
        self.sent = 0
        self.dropped = 0

    def __repr__(self) -> str:
        return f"<Recorder {self._component}: {self.sent} sent, {len(self._waiting)} waiting, {self.dropped} dropped>"

    def say(
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
        """Say something about an object. ``reason`` is one word in CamelCase, ``message`` a sentence."""
        said = _Said(kind.api_version, kind.kind, namespace, name, uid, type, reason, message[:LONGEST_MESSAGE])
        if len(self._waiting) >= MOST and said not in self._waiting:
            self.dropped += 1
            return
        self._waiting[said] += 1
        self._wake.set()

    async def run(self) -> None:
        """Send what is said, for ever."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            waiting, self._waiting = self._waiting, Counter()
            for said, times in waiting.items():
                await self._send(said, times)
            await asyncio.sleep(PAUSE)

    async def _send(self, said: _Said, times: int) -> None:
        try:
            try:
                await self._client.create(EVENT, said.namespace, self._body(said, times))
            except AlreadyExists:
                await self._again(said, times)
        except (KubeError, Expired) as why:
            self.dropped += times
            log.info("event not sent", reason=said.reason, about=f"{said.namespace}/{said.name}", why=str(why))
        else:
            self.sent += times

    async def _again(self, said: _Said, times: int) -> None:
        name = said.event_name()
        try:
            before = await self._client.get(EVENT, name, said.namespace)
        except NotFound:  # it ran out just now; the next time will create it
            return
        body = {"count": (before.count or 1) + times, "lastTimestamp": timestamp()}
        await self._client.patch(EVENT, said.namespace, name, body)

    def _body(self, said: _Said, times: int) -> dict[str, Any]:
        now = timestamp()
        return {
            "metadata": {"name": said.event_name(), "namespace": said.namespace},
            "involvedObject": {
                "apiVersion": said.api_version,
                "kind": said.kind,
                "namespace": said.namespace,
                "name": said.name,
                "uid": said.uid,
            },
            "type": said.type,
            "reason": said.reason,
            "message": said.message,
            "count": times,
            "firstTimestamp": now,
            "lastTimestamp": now,
            "source": {"component": self._component},
            "reportingComponent": self._component,
            "reportingInstance": self._instance,
        }
