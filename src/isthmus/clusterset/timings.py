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
    """For which a heartbeat is good while its key stands: Cilium writes one every 60 s, so two are missing."""
    absent: float = 20.0
    """That a publisher has to write its first heartbeat. One whose key went is silent at once: its lease ended."""
    save_after: float = 2.0
    """From a change of a peer's rows to writing them to disk: changes in between are written together."""
    touch_every: float = 30.0
    """Between two confirmations on disk, by the file's time, that a peer is connected."""
    session: SessionTimings = SessionTimings()
    """Of each session with a peer's etcd."""


TIMINGS: Final = FollowerTimings()
