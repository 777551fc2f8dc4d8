"""Derived rows for Envoy: the resources that its discovery service (xDS) gives it, and those that it refused."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

ResourceType = Literal["cluster", "endpoints", "listener", "extension", "routes"]
"""CDS, EDS, LDS, ECDS and RDS, in the order in which additions take effect without a gap."""

ResourceKey = tuple[ResourceType, str]
"""Type and name of a resource."""


class Resource(Struct, frozen=True, gc=False, kw_only=True):
    """One xDS resource, encoded. It must hold no secret: private keys reach Envoy as files.

    A cluster that takes its endpoints by EDS has the name of its endpoints resource.
    """

    type: ResourceType
    name: str
    version: str
    """A hash of the body: equal bodies are one version, also for an Envoy that outlives the process."""
    body: bytes
    """The message, without the ``Any`` around it."""
    owner: str = ""
    """The object it was made of ('HTTPRoute demo/echo'): where a refusal is reported."""
    unit: str = ""
    """What it is computed together with: a service's name."""


class RefusedResource(Struct, frozen=True, gc=False, kw_only=True):
    """A resource that is not in force as it is, and why; what was in force before stays."""

    type: ResourceType
    name: str
    version: str
    owner: str
    """The object where the refusal is reported: of routes, the first one that is changed."""
    error: str
    changed: tuple[str, ...] = ()
    """Of routes, the objects with rules that the version accepted last has not got. Empty: each may be the cause."""


class ServedListener(Struct, frozen=True, gc=False):
    """A listener that an Envoy of this node serves now, routes and all."""

    name: str
