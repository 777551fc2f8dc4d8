"""Every fault that `isthmus diagnose` knows, injected into rows and statuses, each beside a healthy twin.

A twin is what looks most like the fault and is none: the last value before a threshold, a peer that starts, the second
of two servers. docs/faults.md is made from this table: ``python -m rows.fault_page``.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from msgspec import structs
from rows import calling_world as calls
from rows import island_world as islands
from rows.balancing_world import make
from rows.calling_world import C2, ECHO, Clusters
from rows.island_world import Island

from isthmus.cli.diagnosis.exporters import cluster_faults, diagnose
from isthmus.cli.diagnosis.facts import Facts
from isthmus.cli.diagnosis.hops import Hop
from isthmus.model import tables
from isthmus.model.backend_tls import Authority, BackendTls, TlsTarget
from isthmus.model.balancing import CallerFailure, Denial, Failure, Group, Plan, PlanKey, Target
from isthmus.model.mcs import OwnExport, PeerRefusal, RefusedRecord
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.pods import IgnoredPod
from isthmus.model.refusals import RefusedClaim
from isthmus.model.routes import NodeRefusals, RouteRefusal
from isthmus.model.services import Port
from isthmus.model.signing import Path, Refusal, Source
from isthmus.model.stalls import Stall
from isthmus.statedb import Fault, Status
from isthmus.times import timestamp

Change = Callable[[Any], None]
NOW = 1_800_000_000.0


class Case(NamedTuple):
    """A fault: its code, the change of a world that is the fault, and the one that is its healthy twin."""

    code: str
    inject: Change
    twin: Change
    world: type[Clusters | Island] = Clusters
    whole: bool = False
    """True if `diagnose` without a service finds it."""


def encrypted(certificates: str) -> Change:
    """A route to an import that is called by TLS, with these certificates of an authority."""
    ca = ServiceName("demo/ca")
    policy = BackendTls(
        name=ServiceName("demo/tls"),
        targets=(TlsTarget("ServiceImport", ECHO),),
        authorities=(ca,),
        hostname="echo.example",
    )
    authority = Authority(name=ca, certificates=certificates, problem="" if certificates else "it does not exist")
    group = Group((Target("10.2.0.1", 8080, "TCP", C2),))
    plan = Plan(PlanKey(make.DERIVED, 80, "TCP", "any"), (), (group,))
    to_import = calls.route(calls.backend("ServiceImport", "demo/echo"))

    def change(it: Clusters) -> None:
        to_import(it)
        it.agent.extend(((tables.BACKEND_TLS, policy), (tables.AUTHORITIES, authority), (tables.ROUTE_PLANS, plan)))

    return change


def faults(facts: Facts, *, whole: bool) -> list[Hop]:
    """Faults of the cluster, or of the walk of the service."""
    hops = cluster_faults(facts) if whole else diagnose(facts, ECHO)
    return [hop for hop in hops if hop.state == "fault"]


def nothing(it: Any) -> None:
    """The healthy world itself."""


def both(*changes: Change) -> Change:
    def change(it: Any) -> None:
        for each in changes:
            each(it)

    return change


# Processes and their sources.


def error(process: str, text: str) -> Change:
    return lambda it: it.errors.update({process: text})


def away(process: str, reason: str, *, connected: bool = False) -> Change:
    """A source of a process failed for a reason; ``connected``: and works again."""
    state = {"kubernetes/services": {"connected": connected, "last_failure": reason}}
    return lambda it: it.status[process].update({"reflectors": state})


def problem(process: str, *texts: str) -> Change:
    return lambda it: it.status[process].update({"problems": texts})


def warning(process: str, text: str) -> Change:
    return lambda it: it.status[process].update({"warnings": [text]})


def status(process: str, **fields: Any) -> Change:
    return lambda it: it.status[process].update(fields)


def publisher(reason: str) -> Change:
    return status("operator", publisher={"error": reason})


def machine(process: str = "agent", **fields: Any) -> Change:
    return lambda it: it.status[process].update({"machine": {"time": NOW, **fields}})


def table(used: int, limit: int) -> dict[str, int]:
    return {"used": used, "limit": limit}


def disk(*, free: int, files: int = 1_000) -> dict[str, Any]:
    return {"disks": [{"path": "/var/lib/isthmus", "size_bytes": 1 << 30, "free_bytes": free, "free_files": files}]}


def clock(process: str, seconds: float) -> Change:
    """Every process reports its time; that of one differs."""

    def change(it: Clusters) -> None:
        it.asked = NOW
        for name in it.status:
            it.status[name]["machine"] = {"time": NOW + (seconds if name == process else 0.4)}

    return change


def version(process: str, text: str) -> Change:
    def change(it: Clusters) -> None:
        for name in it.status:
            it.status[name]["version"] = text if name == process else "1.4.0"

    return change


# Rows.


def row(process: str, table_of: Any, value: Any) -> Change:
    """One more row in the tables of the agent, the operator or the exporter's operator."""

    def change(it: Clusters) -> None:
        if process == "agent":
            it.agent.append((table_of, value))
        else:
            (it.operator if process == "operator" else it.exporter)[f"{table_of.name} {table_of.key(value)}"] = (
                table_of, value,
            )  # fmt: skip

    return change


def failing(reason: str, text: str) -> Change:
    def change(it: Clusters) -> None:
        [backend] = it.world.backends
        it.agent.append((tables.FAILURES, Failure(backend.key, text, reason, 3, 1.0, 2.0)))

    return change


def caller_fails(pod: str) -> Change:
    """demo/client cannot connect to a backend, and ``pod`` is the one that is asked about."""

    def change(it: Clusters) -> None:
        [backend] = it.world.backends
        seen: dict[str, Any] = {"reason": "silent", "failures": 3, "since": 1.0, "until": 2.0}
        it.agent.append(
            (
                tables.CALLER_FAILURES,
                CallerFailure(caller=7, key=backend.key, pod="demo/client", verdict="answers", **seen),
            )
        )
        it.pod = pod
        it.world.put(make.pod("demo/other", "10.1.1.10"))

    return change


def denied_on_the_path(pod: str) -> Change:
    """A policy answers demo/client by ICMP, and ``pod`` is the one that is asked about."""

    def change(it: Clusters) -> None:
        [backend] = it.world.backends
        it.agent.append((tables.DENIALS, Denial(caller=7, key=backend.key, pod="demo/client", connects=3, last=1.8e9)))
        it.pod = pod
        it.world.put(make.pod("demo/other", "10.1.1.10"))

    return change


STRIPPED: Final = Path(
    ClusterName("c2"), "stripped", "something on the way removes the proof, a TCP option", "10.2.0.1", NOW
)


def refused_by_the_exporter(pod: str, **counted: Any) -> Change:
    """A node of c2 refuses demo/client by a policy, and counts that; ``pod`` is the one that is asked about."""
    given: dict[str, Any] = {
        "policy": ServiceName("demo/echo"),
        "identity": 65_800,
        "reason": "not-allowed",
        "count": 3,
        "last": 1.8e9,
    }

    def change(it: Clusters) -> None:
        it.agent.append((tables.SOURCES, Source("demo/client", ("10.1.1.9",), 65_800)))
        it.exporters_agent.append((tables.CALLER_REFUSALS, Refusal(**(given | counted))))

    return both(denied_on_the_path(pod), change)


def peer_with(state: str, reason: str = "", **fields: Any) -> Change:
    def change(it: Clusters) -> None:
        peer = structs.replace(make.cluster("c2", state=state, reason=reason), **fields)
        it.operator["peer"] = (tables.CLUSTERS, peer)
        it.world.put(peer)

    return change


def certificate_of_peer(days: int) -> Change:
    ends = timestamp(datetime.now(UTC) + timedelta(days=days))
    return peer_with("ready", "the certificate that https://c2 shows ends soon", certificate_ends=ends)


def stalls(process: str, service: str = "demo/echo", **fields: Any) -> Change:
    """Connections stall that an agent finds."""
    given: dict[str, Any] = {
        "service": ServiceName(service), "cluster": C2, "sends": "calls", "by_size": True, "connections": 3,
        "since": 1.8e9, "segment": 1448, "path_mtu": 1500, "peers": ("10.2.0.1:8080",),
    }  # fmt: skip
    return lambda it: it.stalls.update({process: (Stall(**given | fields),)})


def refused_record(name: str) -> Change:
    message = "10.1.0.9 cannot be an endpoint's address: it is in 10.1.0.0/16, a range of c1's pods"
    refused = RefusedRecord(
        cluster=C2, kind="services", name=ServiceName(name), reason="AddressNotAllowed", message=message
    )
    return row("agent", tables.REFUSED_RECORDS, refused)


def refused_by_peer(name: str) -> Change:
    refused = PeerRefusal(
        cluster=calls.C1, kind="serviceexports", name=ServiceName(name), reason="NamespaceNotAllowed",
        message="cluster c2 may not publish in namespace demo",
    )  # fmt: skip
    return row("exporter", tables.PEER_REFUSALS, refused)


def object_status(text: str, name: ServiceName = ECHO) -> Change:
    return row("operator", tables.OBJECTS_STATUS, Status(("Service", name), text, 3, 1.0))


def unpublished(text: str, *, attempts: int) -> Change:
    return row("exporter", tables.RECORDS_STATUS, Status(("serviceexports", ECHO), text, attempts, 1.0))


def fault_row(name: str, **fields: Any) -> Change:
    given: dict[str, Any] = {"part": "policies", "cause": "bug", "error": "KeyError: 'x'", "since": 1.0}
    return row("agent", tables.FAULTS, Fault(**given | fields, name=name))


def claim(name: str) -> Change:
    claimed = RefusedClaim(
        kind="Service", name=ServiceName(name), type="ExternalIP", address="10.0.0.9", reason="NodeAddress",
        message="10.0.0.9 is an address of a node", service=ServiceName(name),
    )  # fmt: skip
    return row("agent", tables.REFUSED_CLAIMS, claimed)


def from_pod(pod: str, *, below: bool | None = True) -> Change:
    def change(it: Clusters) -> None:
        it.pod, it.hooked = pod, below  # type: ignore[assignment]

    return change


BOTH_PORTS = make.endpoint("10.2.0.1", ports=(Port("http", 8080), Port("http", 9090)))


def exported(*endpoints: Any) -> Change:
    """c2's own Service has these endpoints."""
    there = make.endpoints("c2", *endpoints, service=ECHO, source="kubernetes")
    return lambda it: it.exporter.update(endpoints=(tables.ENDPOINT_SETS, there))


def received(*endpoints: Any) -> Change:
    """c1 has these endpoints of c2."""
    return lambda it: it.world.put(make.endpoints("c2", *endpoints))


def second_port(name: str) -> Change:
    """The service has a port 443, and its pods have one of this name."""
    pods = make.endpoint("10.2.0.1", ports=(Port("http", 8080), Port(name, 8443)))
    ports = (Port("http", 80), Port("https", 443))
    export = structs.replace(calls.EXPORT, ports=ports)

    def change(it: Clusters) -> None:
        both(exported(pods), received(pods))(it)
        it.world.put(make.derived(ports=ports), make.imported(clusters=(C2,)))
        it.exporter["own"] = (tables.OWN_EXPORTS, OwnExport(name=ECHO, export=export))

    return change


def other_conflict(it: Clusters) -> None:
    calls.conflict(it)
    name, value = it.operator.pop("merged")
    it.operator["merged"] = (name, structs.replace(value, name=ServiceName("demo/other")))


def route_refused_for(service: ServiceName) -> Change:
    refusal = RouteRefusal("HTTPRoute", ServiceName("demo/r"), service, "route: no such cluster")
    well = calls.route(calls.backend("Cluster", "c2", 0))
    return both(well, row("agent", tables.ROUTE_REFUSALS, NodeRefusals(name="n1", routes=(refusal,))))


def unreadable(it: Clusters) -> None:
    it.unreadable["operator"] = "table merged: Object missing required field `ports`"


def restarted(process: str) -> Change:
    return status(process, uptime=0.1)


def sidecar(it: Island) -> None:
    """demo/client has a sidecar."""
    it.pod = "demo/client"
    it.more += [
        (tables.PODS, make.pod("demo/client")),
        (tables.IGNORED_PODS, IgnoredPod("demo/client", "u", "container istio-proxy")),
    ]


def sidecar_of_other(it: Island) -> None:
    sidecar(it)
    it.pod = "demo/other"
    it.more.append((tables.PODS, make.pod("demo/other")))


LISTS = "LIST services"
CONTESTED = (
    "ServiceImport demo/echo is written by somebody else again and again: set right 3 times, and from now on more and "
    "more rarely"
)
CASES: dict[str, Case] = {
    # processes
    "agent ended": Case("process-ended", calls.no_process("agent"), restarted("agent")),
    "operator ended": Case("process-ended", calls.no_process("operator"), restarted("operator")),
    "name server ended": Case("process-ended", calls.no_process("dns"), restarted("dns")),
    "process hung": Case(
        "process-hung",
        error("agent", "/run/isthmus/agent.sock: no answer in time: the process is busy or stopped"),
        restarted("agent"),
    ),
    "task of a process fails": Case(
        "process-problem",
        problem("operator", "task publisher fails: KeyError: 'x'"),
        problem("operator"),
        whole=True,
    ),
    "rows not written": Case(
        "rows-not-written",
        status("agent", tables={"plans_status": {"rows": 2, "pending": []}}),
        status("agent", tables={"plans_status": {"rows": 0, "pending": []}}),
        whole=True,
    ),
    "rows of another version": Case("row-unreadable", unreadable, version("operator", "1.3.0")),
    "mixed versions": Case("versions-apart", version("c2", "1.2.9"), version("c2", "1.3.0"), whole=True),
    # machines
    "descriptors nearly used up": Case(
        "descriptors-low",
        machine(descriptors=table(900, 1024)),
        machine(descriptors=table(700, 1024)),
        whole=True,
    ),
    "disk full": Case(
        "disk-full", machine("operator", **disk(free=0)), machine("operator", **disk(free=4 << 20)), whole=True
    ),
    "no inode left": Case(
        "disk-full",
        machine(**disk(free=1 << 30, files=0)),
        machine(**disk(free=1 << 30, files=-1)),
        whole=True,
    ),
    "cache of peers cannot be written": Case(
        "disk-full",
        problem(
            "agent", "the last known state of cluster c2 cannot be kept: /var/lib/isthmus/c2: No space left on device"
        ),
        problem("agent"),
        whole=True,
    ),
    "conntrack full": Case(
        "conntrack-full",
        machine(conntrack=table(262_144, 262_144)),
        machine(conntrack=table(200_000, 262_144)),
        whole=True,
    ),
    "local ports exhausted": Case(
        "ports-exhausted",
        machine(local_ports=table(28_232, 28_232), port_destination="172.30.2.11:15443"),
        machine(local_ports=table(20_000, 28_232), port_destination="172.30.2.11:15443"),
        whole=True,
    ),
    "clocks of processes apart": Case("clocks-apart", clock("c2", -300.0), clock("c2", 5.0), whole=True),
    "clock of a node differs from the API server's": Case(
        "clock-skewed",
        problem("agent", "this machine's clock is 5 minutes ahead of the API server's: set it"),
        problem("agent"),
        whole=True,
    ),
    # API server
    "API server away": Case(
        "apiserver-away",
        away("agent", f"{LISTS}: https://10.0.0.1:6443: Connection refused"),
        away("agent", f"{LISTS}: https://10.0.0.1:6443: Connection refused", connected=True),
    ),
    "API server throttles": Case(
        "apiserver-throttles",
        away("agent", f"{LISTS}: 429 TooManyRequests: the server has received too many requests"),
        away("agent", f"{LISTS}: 429 TooManyRequests: the server has received too many requests", connected=True),
    ),
    "API server fails": Case(
        "apiserver-fails",
        away("agent", f"{LISTS}: 500 InternalError: etcdserver: request timed out"),
        away("agent", f"{LISTS}: 500 InternalError: etcdserver: request timed out", connected=True),
    ),
    "API server hangs": Case(
        "apiserver-hung",
        problem("agent", "the API server https://10.0.0.1:6443 does not answer (since 2026-01-01T00:00:00Z)"),
        away("agent", f"{LISTS}: https://10.0.0.1:6443 does not answer", connected=True),
        whole=True,
    ),
    "token expired": Case(
        "token-invalid",
        away("operator", f"{LISTS}: 401 Unauthorized: Unauthorized"),
        away("operator", f"{LISTS}: 401 Unauthorized: Unauthorized", connected=True),
    ),
    "right missing": Case(
        "right-missing",
        away("operator", f"{LISTS}: 403 Forbidden: may not list"),
        away("operator", f"{LISTS}: 403 Forbidden: may not list", connected=True),
    ),
    "definition missing": Case(
        "definition-missing",
        away("operator", "LIST serviceexports: 404 NotFound: the server could not find it"),
        away("operator", "LIST serviceexports: 404 NotFound: the server could not find it", connected=True),
    ),
    "operator without a lease": Case(
        "operator-without-lease",
        problem("operator", "it cannot lead: the lease is held by nobody, and cannot be taken"),
        status("operator", standing_by="isthmus-operator-2"),
        whole=True,
    ),
    # etcd
    "own etcd away": Case("etcd-away", publisher("etcd https://c1: failed to connect"), publisher("")),
    "own etcd full": Case("etcd-full", publisher("etcd https://c1: mvcc: database space exceeded"), publisher("")),
    "own etcd denies the operator": Case("etcd-denies", publisher("etcdserver: permission denied"), publisher("")),
    "alarm of the own etcd": Case(
        "etcd-full",
        problem("operator", "the own etcd refuses writes (NOSPACE), so no change of an export is published"),
        problem("operator"),
        whole=True,
    ),
    # certificates
    "own certificate ended": Case(
        "certificate-ended",
        problem(
            "agent", "the certificate /etc/isthmus/pki/node.crt ended at 2026-01-01 10:00 UTC: every new connection is"
        ),
        problem("agent"),
        whole=True,
    ),
    "own certificate about to end": Case(
        "certificate-ends",
        problem(
            "agent", "the certificate /etc/isthmus/pki/node.crt ends at 2026-01-03 10:00 UTC: from then on every new"
        ),
        warning(
            "agent", "the certificate /etc/isthmus/pki/node.crt ends at 2026-01-20 10:00 UTC: from then on every new"
        ),
        whole=True,
    ),
    "peer's certificate about to end": Case("peer-certificate-ends", certificate_of_peer(1), certificate_of_peer(10)),
    # names
    "name server without the agent's names": Case("resolver-cut-off", calls.deaf_resolver, restarted("dns")),
    "name server of another zone": Case(
        "resolver-zone",
        calls.other_zone,
        status("dns", server={"zone": "clusterset.local"}),
    ),
    "name server empty": Case(
        "resolver-empty",
        status("dns", tables={"names": {"rows": 0}}),
        status("dns", tables={"names": {"rows": 2}}),
    ),
    "wrong cluster DNS": Case(
        "cluster-dns-wrong",
        problem(
            "agent",
            "pods of this node ask 10.96.0.11 for names, and dns.cluster_dns has 10.96.0.10: names of the "
            "clusterset are not answered",
        ),
        problem("agent"),
        whole=True,
    ),
    "NodeLocal DNSCache not configured": Case(
        "node-dns-cache",
        problem(
            "agent",
            "pods of this node ask 169.254.20.10 for names, and dns.cluster_dns has 10.96.0.10: names of the "
            "clusterset are not answered",
        ),
        problem("agent"),
        whole=True,
    ),
    # the kernel's programs
    "programs detached": Case("programs-detached", calls.detached, status("agent", unhooked="")),
    "wrong cgroup": Case(
        "cgroup-without-pods",
        status(
            "agent", unhooked="datapath.cgroup /sys/fs/cgroup/x has none of this node's 12 pods: their calls are not …"
        ),
        status("agent", unhooked=""),
    ),
    "second cgroup": Case(
        "pods-in-second-cgroup",
        problem(
            "agent",
            "datapath.cgroup /sys/fs/cgroup/x lacks 1 of this node's 12 pods (demo/b): their calls are not translated",
        ),
        problem("agent"),
        whole=True,
    ),
    "two agents on a node": Case(
        "two-agents",
        status("agent", unhooked="two agents run on this node: program 7 of another one is attached to …"),
        status("agent", unhooked=""),
    ),
    "pod outside the hooked cgroup": Case("pod-outside-cgroup", calls.unhooked, from_pod("demo/client")),
    "pod of another node": Case("pod-of-another-node", calls.elsewhere, from_pod("demo/client", below=None)),
    "sidecar in the way to an island": Case("sidecar-before-island", sidecar, sidecar_of_other, Island),
    "maps full": Case("plan-not-programmed", calls.full_map, nothing),
    # services and policies
    "address of a Service refused": Case("address-refused", claim("demo/echo"), claim("demo/other")),
    "policy without effect": Case(
        "policy-without-effect",
        calls.policy("c2", invalid="spec.tiers: wrong"),
        calls.policy("c2"),
    ),
    "policy that leaves nothing": Case("policy-leaves-nothing", calls.policy("c9"), calls.policy("c2")),
    "port without a target": Case("port-without-target", second_port("other"), second_port("https")),
    "route without effect": Case(
        "route-without-effect",
        calls.route(invalid="spec.rules: wrong"),
        calls.route(calls.backend("Cluster", "c2", 0)),
    ),
    "route that the node's Envoy does not serve": Case(
        "route-not-served",
        calls.unserved_route,
        calls.route(calls.backend("Cluster", "c2", 0)),
    ),
    "route that a node's Envoy refused": Case(
        "route-refused-by-node", route_refused_for(make.DERIVED), route_refused_for(ServiceName("demo/other"))
    ),
    "route to nothing": Case(
        "route-to-nothing",
        calls.route(calls.backend("Service", "demo/nothere")),
        calls.route(calls.backend("Cluster", "c2", 0)),
    ),
    "route to a backend whose policy has no authority": Case(
        "route-to-nothing", encrypted(""), encrypted("-----BEGIN…")
    ),
    "TCPRoute to nothing": Case(
        "route-to-nothing",
        calls.l4_route(make.backend("echo", 80), make.backend("nothere", 20)),
        calls.l4_route(make.backend("echo", 80), make.backend("nothere", 0)),
    ),
    "TCPRoute without effect": Case(
        "route-without-effect",
        calls.l4_route(make.backend("echo"), port=81),
        calls.l4_route(make.backend("echo"), port=80),
    ),
    "Envoy of the node hung": Case("envoy-hung", calls.hung_envoy, calls.route(calls.backend("Cluster", "c2", 0))),
    # backends
    "backend refuses": Case("backend-refuses", failing("refused", "3 connects were refused"), nothing),
    "backend silent": Case("backend-silent", failing("silent", "ejected: silent, 6 failed in a row"), nothing),
    "asymmetric route": Case(
        "route-asymmetric",
        both(failing("silent", "ejected: silent, 6 failed in a row"), machine(reverse_path_drops=9)),
        machine(reverse_path_drops=9),
    ),
    "NetworkPolicy against one pod": Case("one-pod-denied", caller_fails("demo/client"), caller_fails("demo/other")),
    "denial on the path": Case("path-denied", denied_on_the_path("demo/client"), denied_on_the_path("demo/other")),
    "caller that a policy does not allow": Case(
        "caller-refused", refused_by_the_exporter("demo/client"), refused_by_the_exporter("demo/other")
    ),
    "caller that proves nothing": Case(
        "caller-refused",
        refused_by_the_exporter("demo/client", identity=0, reason="unsigned"),
        refused_by_the_exporter("demo/other", identity=0, reason="unsigned"),
    ),
    "proof of callers removed on the way": Case(
        "caller-refused",
        both(
            refused_by_the_exporter("demo/client", identity=0, reason="unsigned"), row("agent", tables.PATHS, STRIPPED)
        ),
        both(
            refused_by_the_exporter("demo/other", identity=0, reason="unsigned"), row("agent", tables.PATHS, STRIPPED)
        ),
    ),
    "path MTU: large calls vanish": Case("path-mtu", stalls("agent"), stalls("agent", "demo/other")),
    "path MTU: large answers vanish": Case(
        "path-mtu",
        stalls("c2-agent", sends="answers", peers=("10.1.0.9:41000",)),
        stalls("c2-agent", cluster=calls.C1),
    ),
    "established connections stall": Case(
        "path-stalls", stalls("agent", by_size=False, segment=120), stalls("agent", "demo/other", by_size=False)
    ),
    "port of the exporter not received": Case(
        "record-not-received",
        exported(BOTH_PORTS),
        both(exported(BOTH_PORTS), received(BOTH_PORTS)),
    ),
    "port called that is gone": Case("record-obsolete", received("10.2.0.1", "10.2.0.2"), exported("10.2.0.1")),
    # peers
    "peer unreachable": Case("peer-unreachable", peer_with("stale", "etcd https://c2: timed out"), peer_with("ready")),
    "peer silent": Case("peer-silent", peer_with("silent", "it has had no publisher for 20 s"), peer_with("ready")),
    "peer refused": Case(
        "peer-refused", peer_with("refused", "its cluster id is 2, but it joined with 1"), peer_with("ready")
    ),
    "peer distrusted": Case(
        "peer-distrusted",
        peer_with("distrusted", "none of its records counts, until: isthmus clusters trust c2"),
        peer_with("ready"),
    ),
    "peer denies our user": Case(
        "peer-denies-user",
        peer_with("stale", "etcd https://c2: etcdserver: permission denied"),
        peer_with("ready"),
    ),
    "peer refuses our certificate": Case(
        "peer-refuses-certificate",
        peer_with("stale", "etcd https://c2: it refuses the client's certificate: bad"),
        peer_with("ready"),
    ),
    "peer's etcd of another authority": Case(
        "peer-untrusted",
        peer_with("stale", "etcd https://c2: its certificate is refused: self-signed"),
        peer_with("ready"),
    ),
    "peer's file unusable": Case("peer-file-broken", calls.broken_file, peer_with("ready")),
    "exporter that was not joined": Case("peer-not-joined", calls.not_joined, nothing),
    "exporter's operator ended": Case("process-ended", calls.no_process("c2"), restarted("c2")),
    "exporter's API server away": Case("apiserver-away", calls.no_apiserver_there, restarted("c2-agent")),
    "exporter's etcd away": Case("etcd-away", calls.no_etcd("c2"), restarted("c2")),
    # exports
    "export without a Service": Case("export-invalid", calls.invalid_export, nothing),
    "never exported": Case("never-exported", calls.never_exported, nothing),
    "typo": Case("no-such-service", calls.misspelt, nothing),
    "export not published: etcd full": Case(
        "etcd-full",
        unpublished("mvcc: database space exceeded", attempts=9),
        unpublished("mvcc: database space exceeded", attempts=0),
    ),
    "ranges that overlap": Case("record-refused", refused_record("demo/echo"), refused_record("demo/other")),
    "record refused by a peer": Case("record-refused", refused_by_peer("demo/echo"), refused_by_peer("demo/other")),
    "quota of imports": Case("imports-over-quota", calls.over_quota, nothing),
    "exports conflict": Case("exports-conflict", calls.conflict, other_conflict),
    "webhook down": Case(
        "webhook-down",
        object_status('500 InternalError: failed calling webhook "x.example": connect: connection refused'),
        object_status('500 InternalError: failed calling webhook "x.example"', ServiceName("demo/other")),
    ),
    "quota of a namespace": Case(
        "namespace-quota",
        object_status("403 Forbidden: exceeded quota: services, used: 5, limited: 5"),
        object_status("403 Forbidden: exceeded quota: services", ServiceName("demo/other")),
    ),
    "object not written": Case(
        "object-not-written",
        object_status("409 Conflict: another field manager"),
        object_status("409 Conflict: another field manager", ServiceName("demo/other")),
    ),
    "two implementations of the MCS API": Case(
        "two-writers",
        object_status(CONTESTED),
        object_status(CONTESTED, ServiceName("demo/other")),
    ),
    "object of another owner": Case(
        "two-writers",
        object_status("ServiceImport demo/echo exists and is not managed by isthmus-operator: left as it is"),
        object_status("409 Conflict: the object has been modified", ServiceName("demo/other")),
    ),
    "namespace missing": Case("namespace-missing", calls.no_namespace, nothing),
    "no pod": Case("no-pods", calls.endpoints(), calls.endpoints("10.2.0.1")),
    "no ready pod": Case(
        "no-ready-pod",
        calls.endpoints(calls.NOT_READY),
        both(exported(calls.NOT_READY, "10.2.0.2"), received("10.2.0.2")),
    ),
    "target port missing": Case("target-port-missing", calls.endpoints(calls.NO_PORT), calls.endpoints("10.2.0.1")),
    "object that cannot be read": Case(
        "object-unusable",
        fault_row("demo/p", kind="trafficpolicies.isthmus.io", cause="unreadable", error="Expected `array`, got `str`"),
        nothing,
    ),
    "bug": Case("bug", fault_row("demo/echo"), nothing),
    "no hop names a cause": Case("cause-unknown", lambda it: it.agent.clear(), nothing),
    # islands
    "gateway silent": Case("gateway-silent", islands.dead, nothing, Island),
    "node's certificate ended": Case("node-certificate", islands.expired, nothing, Island),
    "gateway's certificate ended": Case("gateway-certificate", islands.expired_there, nothing, Island),
    "authority of an island missing": Case("authority-missing", islands.unknown_here, nothing, Island),
    "gateway without our authority": Case("gateway-distrusts", islands.unknown_there, nothing, Island),
    "gateway process ended": Case("process-ended", islands.ended_there, nothing, Island),
    "gateway process hung": Case("process-hung", islands.hung_there, nothing, Island),
    "listener of an island not served": Case("listener-not-served", islands.unserved, nothing, Island),
    "gateway at a reserved address": Case("gateway-refused", islands.refused, nothing, Island),
    "no Envoy for islands": Case("islands-not-configured", islands.unconfigured, nothing, Island),
    "export for other clusters": Case("export-for-others", islands.not_for_us, islands.for_us, Island),
    "refused by an island's policy": Case("refused-by-policy", islands.not_allowed, islands.allowed, Island),
}
"""Faults by name, as the table of docs/faults.md lists them."""
