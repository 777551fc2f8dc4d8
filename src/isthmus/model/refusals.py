"""Derived rows: refused claims of addresses."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from isthmus.model.balancing import FrontendType
from isthmus.model.names import ServiceName

ClaimantKind = Literal["Service", "ServiceImport", "CiliumLocalRedirectPolicy"]


class RefusedClaim(Struct, frozen=True, gc=False, kw_only=True):
    """A refused claim of an address."""

    kind: ClaimantKind
    name: ServiceName
    """Name of the object. A host port is a Service named ``<namespace>/<pod>:host-port:<number>``."""
    type: FrontendType
    address: str
    reason: str
    """One word in CamelCase, the reason of the Event."""
    message: str
    service: ServiceName
    """Service that would be called at the address; the policy's name for a policy that matches an address."""
    uid: str = ""
