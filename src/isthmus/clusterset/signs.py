"""Signs of life of a peer, beside that its etcd answers. None of them takes a row away by itself.

rights      etcd asks whether a user may read when a watch begins, and never again: who is let in no more has to ask.
heartbeat   a publisher says every minute that it is there. Where it is late the watch may have died without a word: the
            connection is made anew, once. What a publisher said that is gone stays; people are told that it is gone.
mirror      copies are as good as who makes them: he holds a key while he lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from isthmus.clusterset import keys
from isthmus.clusterset.sinks import OneKey
from isthmus.etcd import Denied, EtcdError, KeyStore, KeyValue, Session
from isthmus.reflector import Expired, Reflector, Transient

ASK_EVERY: Final = 30.0
LATE: Final = 150.0
"""Seconds without a heartbeat: two are missing."""

Told = Callable[[str], None]
"""Called with what is wrong, as a sentence; with nothing when it is well again."""


async def let_in(session: Session, key: str, *, standing: Callable[[], bool], broken: Told) -> None:
    """Ask now and then whether we may still read; ``broken`` hears where not though our watches stand."""
    while True:
        await asyncio.sleep(ASK_EVERY)
        try:
            await session.get(key)
        except Denied as why:
            if standing():
                broken(str(why))
        except (Transient, Expired, EtcdError):
            continue  # whoever watches hears of it


class Heartbeat:
    """A peer's publisher, by the key that it writes every minute. ``broken`` hears where it was heard and is late."""

    def __init__(self, told: Told, broken: Told) -> None:
        self._told = told
        self._broken = broken
        self._beat = asyncio.Event()
        self._last = 0
        self._beating = False

    def __repr__(self) -> str:
        return f"<Heartbeat: {'heard' if self._beating else 'late or never heard'}>"

    async def follow(self, session: Session, *, name: str) -> None:
        """Listen, for ever."""
        store = KeyStore(session, keys.HEARTBEAT)
        reflector = Reflector(store, OneKey(self._heard), name=f"{name}/heartbeat", most_delay=60.0)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(reflector.run())
            tasks.create_task(self._wait())

    def _heard(self, kv: KeyValue | None) -> None:
        """A key that is the same as ever is no sign of life."""
        if kv is not None and kv.mod_revision != self._last:
            self._last = kv.mod_revision
            self._beat.set()

    async def _wait(self) -> None:
        while True:
            self._beat.clear()
            try:
                async with asyncio.timeout(LATE):
                    await self._beat.wait()
            except TimeoutError:
                self._told(f"nobody has published for it for {LATE:.0f} s: its operator is not there")
                if self._beating:
                    self._beating = False
                    self._broken("its heartbeat is late")
            else:
                self._beating = True
                self._told("")


async def mirror(session: Session, *, name: str, told: Told) -> None:
    """Listen for who copies a peer, for ever."""

    def said(kv: KeyValue | None) -> None:
        told("" if kv is not None else "no mirror is running: what it says is not copied")

    await Reflector(KeyStore(session, keys.MIRROR), OneKey(said), name=f"{name}/mirror", most_delay=60.0).run()
