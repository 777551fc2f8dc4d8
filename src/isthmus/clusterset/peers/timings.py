"""Times of a follower: how often it looks, and how long it waits."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from isthmus.etcd import SessionTimings


class FollowerTimings(Struct, frozen=True, gc=False, kw_only=True):
    """Seconds, each passed on to the part that waits for so long. Processes run with the defaults."""

    look_every: float = 0.5
    """Between two readings of the configuration directory."""
    ask_every: float = 30.0
    """Between two checks of access: etcd has to look into its user's roles for each."""
    late: float = 150.0
    """Validity of a heartbeat while its key exists: Cilium writes one every 60 s, so two are missing."""
    absent: float = 20.0
    """Time limit for a publisher's first heartbeat. A deleted key means silence at once, because its lease ended."""
    restore_after: float = 1.0
    """Delay at start before the last known state on disk is used: a reachable peer is read within it."""
    save_after: float = 2.0
    """Delay between a change of a peer's rows and the write to disk, which batches the changes."""
    touch_every: float = 30.0
    """Between two confirmations on disk, by the file's time, that a peer is connected."""
    handshake_every: float = 3600.0
    """Between two looks at the certificate that a peer's etcd shows. The first is within a 60th of it, at a random
    time, since all peers are connected to at once; one that ends within days is looked at as often as that, too."""
    session: SessionTimings = SessionTimings()
    """Timings of each session with a peer's etcd."""


TIMINGS: Final = FollowerTimings()
