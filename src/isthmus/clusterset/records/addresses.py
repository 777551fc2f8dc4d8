"""The address record: the number of the account that has an address, in the layout of Cilium's ipcache.

``HostIP`` is left empty, though Cilium's own records set it: a Cilium in tunnel mode would encapsulate what it sends
to the address, and our nodes accept no tunnel. Of Cilium's records the address and the number are read. A record with
a reserved number (a node, ``world``) yields no row, since no policy can name its account.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.records import decoding
from isthmus.clusterset.records.identity import Most
from isthmus.model.identities import RESERVED, CallerAddress, numbers
from isthmus.model.names import ClusterName

LIMIT: Final = 16 * 1024
"""Bytes of a record. Cilium's records include the named ports of a pod."""


class _Record(Struct, frozen=True):
    """Fields as Cilium 1.19 and 1.20 write them (``identity.IPIdentityPair``)."""

    IP: str
    Mask: Any = None
    HostIP: str = ""
    ID: int = 0
    Key: int = 0
    Metadata: str = ""
    K8sNamespace: str = ""
    K8sPodName: str = ""
    K8sServiceAccount: str = ""


_decoder: Final = msgspec.json.Decoder(_Record)


def encode(address: str, number: int, *, namespace: str, pod: str, service_account: str) -> bytes:
    """The record of a pod's address."""
    return msgspec.json.encode(
        _Record(IP=address, ID=number, K8sNamespace=namespace, K8sPodName=pod, K8sServiceAccount=service_account)
    )


def decode(value: bytes, *, cluster: ClusterName, cluster_id: int, address: str, most: Most) -> CallerAddress | None:
    """The row of a record of this cluster; ``None`` for a reserved number. RecordError if it is unusable.

    ``most``: as for the record of a number.
    """
    record = decoding.decode(value, _decoder, limit=LIMIT)
    if address != record.IP or record.Mask is not None:
        raise RecordError(f"it is of {record.IP[:64]!r}, not of its key alone")
    if 0 <= record.ID < RESERVED:
        return None
    own = numbers(cluster_id, most)
    if record.ID not in own:
        raise RecordError(f"{record.ID} is not in the range of its cluster, {own[0]} to {own[-1]}")
    return CallerAddress(cluster, address, record.ID)


def parse(key: str) -> str:
    """The address that a key below the prefix names; RecordError if it names none that a pod can have."""
    if decoding.address(key) != key:
        raise RecordError("the key is not the address in its canonical form")
    return key
