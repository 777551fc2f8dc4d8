"""Membership of a clusterset: how clusters join and leave, and what they may read of each other's etcd.

membership   the steps: invite, join, leave, refresh
tokens       what the inviting cluster hands over, and the offer it receives
rights       users and roles of a cluster's etcd
mirrored     the files by which agents read the mirror's copies
"""

from isthmus.clusterset.joining.membership import (
    OwnCluster,
    check,
    check_next,
    grant,
    guard,
    intact,
    invitation,
    join,
    leave,
    refresh,
    restore,
    trusts_next,
)
from isthmus.clusterset.joining.mirrored import LocalAccess, copies, local_access

__all__ = [
    "LocalAccess",
    "OwnCluster",
    "check",
    "check_next",
    "copies",
    "grant",
    "guard",
    "intact",
    "invitation",
    "join",
    "leave",
    "local_access",
    "refresh",
    "restore",
    "trusts_next",
]
