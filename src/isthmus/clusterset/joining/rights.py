"""Rights of the users of a cluster's etcd: peers read what they need and nothing else, only root reads offers to join.

remote    another cluster: our records, canaries, configuration, description, trust, heartbeat, what we refuse, the
          certificates that we signed for peers, and what we use of theirs
local     our agents behind a mirror: the copies, and what is written about them
writer    our operator: our own records, canaries, configuration, description, heartbeat, and what we refuse
mirror    our mirror: copies of peers' records, and what is written about them
guest     whoever has a token: may write the one key of its invitation, and not even read it
"""

from __future__ import annotations

from typing import Final

from isthmus.clusterset.records import keys
from isthmus.etcd.access import Grant
from isthmus.model.names import ClusterName

REMOTE: Final = "remote"
LOCAL: Final = "local"
WRITER: Final = "writer"
MIRROR: Final = "mirror"


def remote_user(peer: ClusterName) -> str:
    """The user as which a peer reads."""
    return f"{REMOTE}-{peer}"


def guest(invitation: str) -> str:
    """The user and the role of a token."""
    return f"join-{invitation}"


def roles(own: ClusterName) -> dict[str, tuple[Grant, ...]]:
    """The lasting roles of a cluster's etcd."""
    remote = (
        Grant("read", keys.HEARTBEAT, prefix=True),  # Cilium watches it as a prefix
        Grant("read", "cilium/state/", prefix=True),
        Grant("read", f"{keys.SYNCED}{own}/", prefix=True),
        Grant("read", keys.config(own)),
        Grant("read", keys.description(own)),
        Grant("read", keys.trust(own)),
        Grant("read", keys.all_refusals(own), prefix=True),
        Grant("read", keys.all_certificates(own), prefix=True),
        Grant("read", keys.all_accepted(own), prefix=True),
    )
    local = (
        Grant("read", keys.HEARTBEAT, prefix=True),
        Grant("read", "cilium/cache/", prefix=True),
        Grant("read", keys.SYNCED, prefix=True),
        Grant("read", "cilium/cluster-config/", prefix=True),
        Grant("read", keys.DESCRIPTIONS, prefix=True),
        Grant("read", keys.MIRROR),
    )
    writer = (
        Grant("readwrite", keys.HEARTBEAT),
        Grant("readwrite", "cilium/state/", prefix=True),
        Grant("readwrite", f"{keys.SYNCED}{own}/", prefix=True),
        Grant("readwrite", keys.config(own)),
        Grant("readwrite", keys.description(own)),
        Grant("readwrite", keys.all_refusals(own), prefix=True),
    )
    mirror = (
        Grant("readwrite", "cilium/cache/", prefix=True),
        Grant("readwrite", keys.SYNCED, prefix=True),
        Grant("readwrite", "cilium/cluster-config/", prefix=True),
        Grant("readwrite", keys.DESCRIPTIONS, prefix=True),
        Grant("readwrite", keys.MIRROR),
    )
    return {REMOTE: remote, LOCAL: local, WRITER: writer, MIRROR: mirror}


def guest_rights(invitation: str) -> tuple[Grant, ...]:
    """The rights of a token's bearer."""
    return (Grant("write", keys.offer(invitation)),)
