"""Derived rows: what clients call, what answers, and what a call is spread over."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, cast

from msgspec import Struct

from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Affinity, Condition, Family, Protocol


class Scope(IntEnum):
    """From where a frontend is called: outside (any pod), or inside where internalTrafficPolicy differs.

    The originals are what calls that a redirect does not mean are answered by, each beside what is redirected.
    """

    EXTERNAL = 0
    INTERNAL = 1
    ORIGINAL = 2
    ORIGINAL_INTERNAL = 3

    def original(self) -> Scope:
        """The scope of what a redirect replaced."""
        return Scope(self | Scope.ORIGINAL)

    @property
    def called(self) -> Scope:
        """The scope in which a client calls."""
        return Scope(self & Scope.INTERNAL)

    @property
    def is_original(self) -> bool:
        """Whether a local redirect means nothing here."""
        return self >= Scope.ORIGINAL


SCOPES: Final = ("", "/i", "/o", "/oi")
"""How a key of each scope ends."""
PLAN_KEY: Final = re.compile(r"(.+):(\d{1,5})/(TCP|UDP|SCTP)/(IPv4|IPv6)(/i|/o|/oi)?\Z", re.DOTALL)
"""The text of a plan's key."""


class PlanKey(Struct, frozen=True, gc=False, order=True):
    """What has one plan: a port of a service, for one address family and scope. ``port`` is the service's port."""

    service: ServiceName
    port: int
    protocol: Protocol
    family: Family
    scope: Scope = Scope.EXTERNAL

    def __str__(self) -> str:
        return f"{self.service}:{self.port}/{self.protocol}/{self.family}{SCOPES[self.scope]}"

    @staticmethod
    def parse(text: str) -> PlanKey | None:
        """The key that is written so, if one is."""
        if (found := PLAN_KEY.match(text)) is None:
            return None
        service, port, protocol, family, scope = found.groups(default="")
        return PlanKey(
            ServiceName(service),
            int(port),
            cast("Protocol", protocol),
            cast("Family", family),
            Scope(SCOPES.index(scope)),
        )


class FrontendKey(Struct, frozen=True, gc=False, order=True):
    """What a client calls. ``address`` is canonical text of either family."""

    address: str
    port: int
    protocol: Protocol
    scope: Scope = Scope.EXTERNAL

    @property
    def called(self) -> FrontendKey:
        """The key of the calls that a client makes; an original scope answers some of the same calls."""
        return FrontendKey(self.address, self.port, self.protocol, self.scope.called) if self.scope > 1 else self

    def __str__(self) -> str:
        return f"{joined(self.address, self.port)}/{self.protocol}{SCOPES[self.scope]}"


FrontendType = Literal[
    "ClusterIP", "NodePort", "ExternalIP", "LoadBalancer", "HostPort", "Import", "LocalRedirect", "IslandPod"
]
"""Why an address is a service's."""


class Frontend(Struct, frozen=True, gc=False):
    """An address whose calls Isthmus answers, and the plan that it follows. The winner of several claims."""

    key: FrontendKey
    service: ServiceName
    port_name: str
    plan: PlanKey
    type: FrontendType = "ClusterIP"
    shadowed: tuple[ServiceName, ...] = ()
    """Other services that claim the address and lost."""
    import_of: ServiceName = ServiceName("")
    """The import that the service stands for, which is what people call it; empty for a plain Service."""


class BackendKey(Struct, frozen=True, gc=False, order=True):
    """A backend of a service: the same address in two clusters, or for two services, is two rows."""

    service: ServiceName
    cluster: ClusterName
    address: str
    port: int
    protocol: Protocol


class Backend(Struct, frozen=True, gc=False):
    """An address that answers for a service. For an import that service is its derived one, as for its frontends."""

    key: BackendKey
    port_names: tuple[str, ...]
    condition: Condition = Condition.READY
    source: str = ""
    hostname: str = ""
    node: str = ""
    zone: str = ""
    for_zones: tuple[str, ...] = ()
    pod: str = ""
    healthy: bool = True
    """False: its last probe failed, whatever its condition."""
    lapsed: bool = False
    """True: its cluster has been unreachable for longer than the cache lifetime; a probe that passes keeps it."""
    import_of: ServiceName = ServiceName("")
    stands_for: int = 0
    """Of an island: its address is this node's Envoy, which calls through the island's gateways, and stands for so many
    endpoints there; 0: it is an endpoint itself."""

    @property
    def count(self) -> int:
        """Endpoints that calls of it are spread over."""
        return self.stands_for or 1


class Probe(Struct, frozen=True, gc=False):
    """Input row: the verdict of this node's probes of a backend. A backend without one counts as healthy."""

    key: BackendKey
    healthy: bool
    reason: str = ""
    """What the last failed probe met, where it is not healthy."""
    since: float = 0.0
    """When the verdict came to be this one, Unix time, s."""


class Failure(Struct, frozen=True, gc=False):
    """Input row: this node's kernel has ejected a backend; calls go to others until one finds that it answers."""

    key: BackendKey
    error: str
    """All of it, as a sentence."""
    reason: str
    """``refused``, ``silent`` or ``unreachable``."""
    failures: int
    """Connects that failed in a row."""
    since: float
    """Unix time, s."""
    until: float
    """When a single call tries it again."""


class Ejection(Struct, frozen=True, gc=False):
    """When a backend that fails connects is passed over, and for how long."""

    after: int = 3
    """Failed connects in a row; 0: never."""
    first: float = 1.0
    """Seconds the first time; twice as long each time that the trial after it fails."""
    longest: float = 30.0
    """Seconds."""


class Target(Struct, frozen=True, gc=False, order=True):
    """A backend as a plan refers to it and the kernel needs it."""

    address: str
    port: int
    protocol: Protocol
    cluster: ClusterName
    proxy: bool = False


if TYPE_CHECKING:
    Targets = Sequence[Target]
else:  # what a reader of JSON makes of it
    Targets = tuple[Target, ...]


class Group(Struct, frozen=True, gc=False):
    """Backends among which one is picked uniformly. A lower tier is preferred; weight is relative within a tier."""

    targets: Targets
    """Sorted and distinct; of many, in chunks (``model.chunked``)."""
    tier: int = 0
    weight: int = 1


class Plan(Struct, frozen=True, gc=False):
    """What the calls of some frontends are spread over: all the datapath needs of them, and nothing else."""

    key: PlanKey
    frontends: tuple[FrontendKey, ...]
    """Sorted. A plan without frontends is not programmed."""
    groups: tuple[Group, ...]
    """Targets sorted in each group. No target at all: a call is refused at once."""
    affinity: Affinity = "None"
    affinity_timeout: int = 0
    """Seconds a client stays with its backend; 0 without affinity."""
    consistent: bool = False
    """Calls of one pod stay with one backend on whichever node, as far as the backends do (loadbalancer/maglev.py)."""
    ejection: Ejection | None = None
    """None: as the node's configuration has it."""
    awaited: tuple[str, ...] = ()
    """Sources and clusters whose first list is not whole: what an earlier process left of them stays."""
    redirected_by: str = ""
    """Owner of the redirect that replaced the service's own backends; empty: these are they."""
    skip: tuple[str, ...] = ()
    """Addresses of pods whose calls the redirect does not mean: they follow the plan of the original, where it is ours,
    and else go where they were going."""
    import_of: ServiceName = ServiceName("")
