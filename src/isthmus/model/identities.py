"""Identities of callers: the numbers of service accounts in the clusterset."""

from __future__ import annotations

from msgspec import Struct

from isthmus.model.names import ClusterName


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
