"""Derived rows: frontends that clients call, backends that answer, and plans that spread calls over them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Final, Literal, cast

from msgspec import Struct

from isthmus import bounds
from isthmus.bounds import Syntax
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Affinity, Condition, Family, Protocol


class Scope(IntEnum):
    """Callers that a frontend serves: all pods (external), or pods of the cluster if internalTrafficPolicy differs.

    An original scope exists beside a redirect and serves the callers that the redirect excludes.
    """

    EXTERNAL = 0
    INTERNAL = 1
    ORIGINAL = 2
    ORIGINAL_INTERNAL = 3

    def original(self) -> Scope:
        """Return the scope of the frontend that a redirect replaced."""
        return Scope(self | Scope.ORIGINAL)

    @property
    def called(self) -> Scope:
        """Scope in which a client calls, with or without a redirect."""
        return Scope(self & Scope.INTERNAL)

    @property
    def is_original(self) -> bool:
        """True if a local redirect does not apply in this scope."""
        return self >= Scope.ORIGINAL


SCOPES: Final = ("", "/i", "/o", "/oi")
"""Suffix of the text of a key, by scope."""
PLAN_KEY: Final = Syntax(
    r"(?s)(.+):(\d{1,5})/(TCP|UDP|SCTP)/(IPv4|IPv6|any)(/i|/o|/oi)?", most=1024, meaning="the key of a plan"
)
"""Text of a plan's key."""


PlanFamily = Family | Literal["any"]
"""``any`` in the plans of an Envoy, which calls backends of either family whatever family it is called by."""


class PlanKey(Struct, frozen=True, gc=False, order=True):
    """Key of a plan: one port of a service, for an address family and scope. ``port`` is the service's port."""

    service: ServiceName
    port: int
    protocol: Protocol
    family: PlanFamily
    scope: Scope = Scope.EXTERNAL

    def __str__(self) -> str:
        return f"{self.service}:{self.port}/{self.protocol}/{self.family}{SCOPES[self.scope]}"

    @staticmethod
    def parse(text: str) -> PlanKey | None:
        """Return the key with this text, ``None`` if the text is not a key."""
        if (match := PLAN_KEY.match(text)) is None:
            return None
        service, port, protocol, family, scope = match.groups(default="")
        return PlanKey(
            ServiceName(service),
            bounds.count(port, most=bounds.MAX_PORT),
            cast("Protocol", protocol),
            cast("PlanFamily", family),
            Scope(SCOPES.index(scope)),
        )


class FrontendKey(Struct, frozen=True, gc=False, order=True):
    """Address, port and protocol that a client calls. ``address`` is canonical text of either family."""

    address: str
    port: int
    protocol: Protocol
    scope: Scope = Scope.EXTERNAL

    @property
    def called(self) -> FrontendKey:
        """Key that a client uses. An original scope answers a part of the calls to the same address."""
        return FrontendKey(self.address, self.port, self.protocol, self.scope.called) if self.scope > 1 else self

    def __str__(self) -> str:
        return f"{joined(self.address, self.port)}/{self.protocol}{SCOPES[self.scope]}"


FrontendType = Literal[
    "ClusterIP", "NodePort", "ExternalIP", "LoadBalancer", "HostPort", "Import", "LocalRedirect", "IslandPod"
]
"""Kind of claim by which a service has an address."""


class Frontend(Struct, frozen=True, gc=False):
    """An address whose calls Isthmus answers, and its plan. Of several claims on the address this one won."""

    key: FrontendKey
    service: ServiceName
    port_name: str
    plan: PlanKey
    type: FrontendType = "ClusterIP"
    shadowed: tuple[ServiceName, ...] = ()
    """Other services that claim the address and lost."""
    import_of: ServiceName = ServiceName("")
    """Import that the service represents, by whose name people know it; empty for a plain Service."""
    managed: bool = True
    """False if only redirected calls are answered here, because another proxy answers the Service."""


class BackendKey(Struct, frozen=True, gc=False, order=True):
    """Key of a backend. The same address in two clusters, or for two services, is two backends."""

    service: ServiceName
    cluster: ClusterName
    address: str
    port: int
    protocol: Protocol


class Backend(Struct, frozen=True, gc=False):
    """An address that answers for a service. The service of an import is its derived Service, as in frontends."""

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
    """``False`` if its last probe failed, whatever its condition."""
    lapsed: bool = False
    """``True`` if its cluster was unreachable for longer than the cache lifetime and a passing probe retains it."""
    import_of: ServiceName = ServiceName("")
    stands_for: int = 0
    """Number of an island's endpoints that it represents: its address is then this node's Envoy, which calls through
    the island's gateways. 0 if it is an endpoint itself."""

    @property
    def count(self) -> int:
        """Number of endpoints that its calls are spread over."""
        return self.stands_for or 1


class Probe(Struct, frozen=True, gc=False):
    """Input row: the verdict of this node's probes of a backend. A backend without one counts as healthy."""

    key: BackendKey
    healthy: bool
    reason: str = ""
    """Error of the last failed probe, if it is not healthy."""
    since: float = 0.0
    """Time of the current verdict's first probe, Unix seconds."""


class Failure(Struct, frozen=True, gc=False):
    """Input row: a backend that all calls of this node avoid until a single one, or the agent, connects to it again."""

    key: BackendKey
    error: str
    """The failure in one sentence."""
    reason: str
    """``refused``, ``silent`` or ``unreachable``."""
    failures: int
    """Number of consecutive failed connects."""
    since: float
    """Time of the ejection, Unix seconds."""
    until: float
    """Time at which a single call tries it again, Unix seconds."""
    confirmed: bool = False
    """True if the agent cannot connect to it either; False if two pods or more found it dead at a time."""


CallerVerdict = Literal["", "answers", "dead"]
"""Result of the agent's own connects to a backend; empty while unknown."""


class CallerFailure(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: a backend that the calls of one caller of this node avoid, since that caller's connects fail."""

    caller: int
    """Lower half of the cookie of the caller's network namespace."""
    key: BackendKey
    pod: str = ""
    """``namespace/name``; empty for the node's own network and for a caller that is not known yet."""
    reason: str
    """``refused``, ``silent`` or ``unreachable``."""
    failures: int
    """Number of this caller's consecutive failed connects."""
    since: float
    """Time of the ejection, Unix seconds."""
    until: float
    """Time at which a single call of this caller tries the backend again, Unix seconds."""
    verdict: CallerVerdict = ""


class Denial(Struct, frozen=True, gc=False, kw_only=True):
    """Input row: a backend whose calls by one caller of this node end with ICMP "administratively prohibited"."""

    caller: int
    """Lower half of the cookie of the caller's network namespace."""
    key: BackendKey
    pod: str = ""
    """``namespace/name``; empty for the node's own network and for a caller that is not known yet."""
    connects: int
    """Number of this caller's connects that were denied, since the first that is still noted."""
    last: float
    """Time of the last of them, Unix seconds."""


class Ejection(Struct, frozen=True, gc=False):
    """Thresholds and durations of ejecting a backend that fails connects."""

    after: int = 3
    """Consecutive failed connects after which it is ejected. 0 disables ejection."""
    first: float = 1.0
    """Seconds of the first ejection, doubled after each failed trial."""
    longest: float = 30.0
    """Upper bound of those seconds."""


class Target(Struct, frozen=True, gc=False, order=True):
    """The part of a backend that a plan refers to and the kernel stores."""

    address: str
    port: int
    protocol: Protocol
    cluster: ClusterName
    proxy: bool = False


REFUSAL: Final = Target("", 0, "TCP", ClusterName(""))
"""The target of calls that are refused: the part of a route's backend that cannot be used. Of every protocol."""


if TYPE_CHECKING:
    Targets = Sequence[Target]
else:  # the type for readers of JSON
    Targets = tuple[Target, ...]


class Group(Struct, frozen=True, gc=False):
    """Backends of which a call picks one uniformly. Lower tiers are preferred; weights are relative within a tier."""

    targets: Targets
    """Sorted and distinct. A large group is a ``model.chunked.Chunked``."""
    tier: int = 0
    weight: int = 1


class Consumer(Struct, frozen=True, gc=False, order=True):
    """A proxy of the node that gets the calls of one namespace instead of the backends of a plan."""

    namespace: str
    target: Target


class Plan(Struct, frozen=True, gc=False):
    """Distribution of the calls to some frontends: everything that the datapath needs, and nothing else."""

    key: PlanKey
    frontends: tuple[FrontendKey, ...]
    """Sorted. A plan without frontends is not programmed."""
    groups: tuple[Group, ...]
    """Groups of sorted targets. Calls are refused at once if no group has a target."""
    affinity: Affinity = "None"
    affinity_timeout: int = 0
    """Seconds for which a client keeps its backend. 0 without affinity."""
    consistent: bool = False
    """Send all calls of a pod to one backend, on any node, by consistent hashing (loadbalancer/maglev.py)."""
    ejection: Ejection | None = None
    """``None`` selects the node's configuration."""
    awaited: tuple[str, ...] = ()
    """Sources and clusters without a complete first list. Entries of them that an earlier process left are retained."""
    redirected_by: str = ""
    """Owner of the redirect that replaced the service's own backends; empty if they are the service's own."""
    skip: tuple[str, ...] = ()
    """Addresses of pods that the redirect excludes. Their calls follow the original's plan if it exists, and are not
    translated otherwise."""
    import_of: ServiceName = ServiceName("")
    consumers: tuple[Consumer, ...] = ()
    """Sorted. Callers that are not known as a pod of this node follow the groups."""
    consumers_only: bool = False
    """Calls of all other namespaces are not answered here and keep their destination."""
