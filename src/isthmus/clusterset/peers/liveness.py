"""Signs of life of a peer beside its records. Each is recorded as a fact; none of them takes a row away by itself.

access      etcd checks a user's rights when a watch begins, and never again: a peer that was removed has to ask.
heartbeat   a publisher renews a key. When it is late the watch may have died unnoticed: see ``connection``.
certificate what a peer's etcd shows in a handshake ends some day, and its owner may not know.
mirror      copies are as good as whoever makes them: the mirror holds a key for as long as it lives.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from isthmus.clusterset.certificates import EXPIRY_WARNING, Expiry, ends
from isthmus.clusterset.peers.gate import GatedStore
from isthmus.clusterset.peers.peer_files import Peer
from isthmus.clusterset.peers.sinks import OneKey
from isthmus.clusterset.records import keys
from isthmus.etcd import Denied, EtcdError, KeyStore, KeyValue, Session, Tls, served_certificate
from isthmus.reflector import Expired, Reflector, Transient

SIGN_DELAY: Final = 60.0
"""Seconds between two tries to follow a sign of life that cannot be read; not every peer lets us read all of them."""


async def check_access(session: Session, key: str, *, denied: Callable[[str], None], every: float) -> None:
    """Check every ``every`` seconds that we may still read a key, for ever; ``denied`` is called if we may not."""
    while True:
        await asyncio.sleep(every)
        try:
            await session.get(key)
        except Denied as error:
            denied(str(error))
        except (Transient, Expired, EtcdError):
            continue  # the watches fail of that too, and they record it


async def watch_certificate(peer: Callable[[], Peer], *, seen: Callable[[Expiry], None], every: float) -> None:
    """Look at the certificates that a peer's etcd shows, for ever; ``seen`` receives the earliest expiry."""
    soon = every / 60
    await asyncio.sleep(random.uniform(0.0, soon))
    while True:
        expiry = await _served(peer())
        if expiry is not None:
            seen(expiry)
        pressing = expiry is None or expiry.time - datetime.now(UTC) < EXPIRY_WARNING
        await asyncio.sleep(soon if pressing else every)


async def _served(peer: Peer) -> Expiry | None:
    """Earliest expiry that a peer's endpoints show; ``None`` if none was reached, which those who need it record."""
    tls = Tls(peer.ca_file, peer.cert_file, peer.key_file, peer.server_name)
    expiries: list[Expiry] = []
    for endpoint in peer.endpoints:
        with suppress(Transient):
            shown = await served_certificate(endpoint, tls)
            expiries += [Expiry(f"the certificate that {endpoint} shows", end) for end in ends(shown)]
    return min(expiries, key=lambda expiry: expiry.time, default=None)


async def follow_heartbeat(session: Session, *, name: str, beat: Callable[[KeyValue | None], None]) -> None:
    """Follow the key that a peer's publisher renews, for ever."""
    await _follow(session, keys.HEARTBEAT, name=f"{name}/heartbeat", changed=beat)


async def follow_mirror(session: Session, *, name: str, running: Callable[[bool], None]) -> None:
    """Follow whether a mirror is running, for ever."""
    await _follow(session, keys.MIRROR, name=f"{name}/mirror", changed=lambda kv: running(kv is not None))


async def _follow(session: Session, key: str, *, name: str, changed: Callable[[KeyValue | None], None]) -> None:
    store = GatedStore(KeyStore(session, key))  # read again after a break: the store's revisions may be others
    await Reflector(store, OneKey(changed), name=name, max_delay=SIGN_DELAY).run()
