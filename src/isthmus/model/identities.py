"""Identities of callers: the numbers of service accounts in the clusterset."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.model.names import ClusterName

BITS: Final = 24
"""Bits of a number, as many as Cilium's identities have."""
MAX_NUMBER: Final = 2**BITS - 1
RESERVED: Final = 256
"""Numbers at the beginning of each cluster's range that no account gets: those of Cilium's reserved identities."""


def numbers(cluster_id: int, most: int) -> range:
    """The numbers of a cluster's accounts; ``most`` is ``clusterset.max_connected_clusters``, 255 or 511."""
    each = 2**BITS // (most + 1)
    return range(cluster_id * each + RESERVED, (cluster_id + 1) * each)


def cluster_of(number: int, most: int) -> int:
    """The id of the cluster that a number is of; ``most`` as in :func:`numbers`."""
    return number // (2**BITS // (most + 1))


def parse_number(text: str, *, field: str) -> int:
    """The number that a key or an object's name is; OutOfBounds unless it is written without leading zeros."""
    number = bounds.count(text, least=1, most=MAX_NUMBER, field=field)
    if str(number) != text:
        raise OutOfBounds(f"{field}: it is not the number as it is written")
    return number


class Identity(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: a number and the service account that it identifies, from a CallerIdentity or a peer's record.

    One account may have several numbers: Cilium numbers sets of labels, of which the account is one.
    """

    cluster: ClusterName
    number: int
    """24 bits; the cluster's id is the upper part."""
    namespace: str
    service_account: str
    unused_since: str = ""
    """Time since which no pod has the account, RFC 3339; empty while one has. Only in the own cluster's rows."""


class CallerAddress(Struct, frozen=True, gc=False):
    """Input row: an address of another cluster's pod and the number of its account, from the cluster's record."""

    cluster: ClusterName
    address: str
    number: int
