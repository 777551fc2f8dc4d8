"""Signs of life of a peer beside its records. Each is recorded as a fact; none of them takes a row away by itself.

access      etcd checks a user's rights when a watch begins, and never again: a peer that was removed has to ask.
heartbeat   a publisher renews a key. When it is late the watch may have died unnoticed: see ``connection``.
mirror      copies are as good as whoever makes them: the mirror holds a key for as long as it lives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from isthmus.clusterset import keys
from isthmus.clusterset.sinks import OneKey
from isthmus.etcd import Denied, EtcdError, KeyStore, KeyValue, Session
from isthmus.reflector import Expired, Reflector, Transient

SIGN_DELAY: Final = 60.0
"""Seconds between two tries to follow a sign of life that cannot be read; not every peer lets us read all of them."""


async def check_access(session: Session, key: str, *, denied: Callable[[str], None], every: float) -> None:
    """Ask every so many seconds whether we may still read a key, for ever; ``denied`` is called when we may not."""
    while True:
        await asyncio.sleep(every)
        try:
            await session.get(key)
        except Denied as why:
            denied(str(why))
        except (Transient, Expired, EtcdError):
            continue  # the watches fail of that too, and they record it


async def follow_heartbeat(session: Session, *, name: str, beat: Callable[[KeyValue | None], None]) -> None:
    """Follow the key that a peer's publisher renews, for ever."""
    await _follow(session, keys.HEARTBEAT, name=f"{name}/heartbeat", changed=beat)


async def follow_mirror(session: Session, *, name: str, running: Callable[[bool], None]) -> None:
    """Follow whether a mirror is running, for ever."""
    await _follow(session, keys.MIRROR, name=f"{name}/mirror", changed=lambda kv: running(kv is not None))


async def _follow(session: Session, key: str, *, name: str, changed: Callable[[KeyValue | None], None]) -> None:
    await Reflector(KeyStore(session, key), OneKey(changed), name=name, max_delay=SIGN_DELAY).run()
