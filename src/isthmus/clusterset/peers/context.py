"""Settings and stores that the connections of one follower share, and the initializers that one peer completes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from isthmus.clusterset.peers.cache import Cache
from isthmus.clusterset.peers.timings import FollowerTimings
from isthmus.clusterset.records.forms import Forms
from isthmus.clusterset.records.identity import Ids
from isthmus.config import ClustersetSection
from isthmus.etcd import Limits
from isthmus.model.mcs import RecordKind
from isthmus.statedb import Database, Initializer


class Context(NamedTuple):
    """Tables, settings and stores of a follower."""

    db: Database
    forms: Forms
    """Kinds of records that are followed."""
    ids: Ids
    section: ClustersetSection
    timings: FollowerTimings
    limits: Limits
    """Bounds of the records of one kind of one peer."""
    cache: Cache


class Awaited(NamedTuple):
    """Initializers that one peer completes; none of a peer that joins while the process runs."""

    records: Mapping[RecordKind, Initializer] = {}
    described: Initializer | None = None
    """Completed once it is known whether the peer drains itself."""
    judged: Initializer | None = None
    """Completed once its records of every kind are admitted or refused."""
