"""Derived rows: claims on addresses that do not count."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.balancing import FrontendType
from isthmus.model.names import ServiceName

ClaimantKind = Literal["Service", "ServiceImport", "CiliumLocalRedirectPolicy"]


class RefusedClaim(Struct, frozen=True, gc=False, kw_only=True):
    """An address that an object asks for and does not get."""

    kind: ClaimantKind
    name: ServiceName
    """Of the object. A host port is a Service by the name ``<namespace>/<pod>:host-port:<number>``."""
    type: FrontendType
    address: str
    reason: str
    """One word in CamelCase, as Events have it."""
    message: str
    service: ServiceName
    """The service that would be called there; of a policy that names an address, the policy's name."""
    uid: str = ""
