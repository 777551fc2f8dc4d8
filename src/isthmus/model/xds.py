"""Rows of Envoy: the resources that the discovery service (xDS) sends, those that Envoy refused, and its health."""

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
    """Object that a refusal is reported on ('HTTPRoute demo/echo')."""
    unit: str = ""
    """Unit in which it is computed: a service, a port with its callers, or another part of the configuration."""
    checked: bool = False
    """True if it was built from parts that were checked by the rules of Envoy's API."""


class RefusedResource(Struct, frozen=True, gc=False, kw_only=True):
    """A resource that Envoy refused, and the reason. The version before it remains in effect."""

    type: ResourceType
    name: str
    version: str
    owner: str
    """Object that the refusal is reported on: of routes, the first changed one."""
    error: str
    changed: tuple[str, ...] = ()
    """Route objects with rules that the last accepted version does not have. If empty, any of them may be the cause."""


class EnvoyCheck(Struct, frozen=True, gc=False):
    """Input row: the verdict of the agent's probes on this node's Envoy. It exists while Envoy is probed."""

    healthy: bool
    """False while Envoy does not answer: calls bypass it."""
    reason: str = ""
    """The cause, as a sentence without its subject; empty while Envoy answers."""
    since: float = 0.0
    """Time of the last change of the verdict, Unix time, s."""


class ServedListener(Struct, frozen=True, gc=False):
    """A listener that an Envoy of this node serves, together with its routes."""

    name: str
