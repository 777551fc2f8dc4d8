"""A client of etcd: session, list and watch, lease, transactions.

What belongs here: etcd's protocol and its failure modes. What never does: key layouts and the format of values; those
are ``clusterset``'s.
"""

from isthmus.etcd.errors import Denied, EtcdError, LeaseGone, TooLarge, Untrusted
from isthmus.etcd.handshake import served_certificate
from isthmus.etcd.lease import Lease
from isthmus.etcd.session import Session
from isthmus.etcd.store import KeyStore, PrefixStore
from isthmus.etcd.transport import Credentials, SessionTimings, Tls
from isthmus.etcd.values import (
    Compare,
    Delete,
    Get,
    KeyValue,
    Limits,
    Listing,
    Op,
    Put,
    RangeResult,
    Status,
    TxnResult,
    WatchBatch,
    WatchEvent,
)

__all__ = [
    "Compare",
    "Credentials",
    "Delete",
    "Denied",
    "EtcdError",
    "Get",
    "KeyStore",
    "KeyValue",
    "Lease",
    "LeaseGone",
    "Limits",
    "Listing",
    "Op",
    "PrefixStore",
    "Put",
    "RangeResult",
    "Session",
    "SessionTimings",
    "Status",
    "Tls",
    "TooLarge",
    "TxnResult",
    "Untrusted",
    "WatchBatch",
    "WatchEvent",
    "served_certificate",
]
