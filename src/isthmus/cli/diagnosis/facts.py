"""Inputs of a diagnosis: the status and the tables of each process that can be queried."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus.admin.query import QueryError, Socket
from isthmus.cli.sockets import NAME_SERVERS
from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.model.stalls import Stall
from isthmus.statedb import Database, Reader, Table

TABLES: Final[tuple[Table[Any, Any], ...]] = (
    tables.SERVICES, tables.IMPORTS, tables.ENDPOINT_SETS, tables.NODES, tables.POLICIES, tables.REDIRECTS,
    tables.FRONTENDS, tables.BACKENDS, tables.PLANS, tables.PLANS_STATUS, tables.CLUSTERS, tables.REFUSED_CLAIMS,
    tables.LOCAL_REDIRECTS, tables.PODS, tables.IGNORED_PODS, tables.PORT_REDIRECTS, tables.OWN_RANGES, tables.NAMES,
    tables.NAMESPACES,
    tables.FAILURES, tables.CALLER_FAILURES, tables.DENIALS, tables.PROBES, tables.OVER_QUOTA, tables.DRAINING,
    tables.ROUTES, tables.GRANTS, tables.ROUTE_PLANS, tables.ROUTE_REFUSALS, tables.XDS_SERVED, tables.ENVOY_CHECKS,
    tables.PROXY_LISTENERS, tables.L4_ROUTES, tables.ATTACHMENTS, tables.BACKEND_TLS, tables.AUTHORITIES,
    tables.ISLAND_PODS, tables.ISLAND_LISTENERS, tables.GATEWAY_CHECKS, tables.REFUSED_GATEWAYS,
    tables.EXPORTS, tables.EXPORT_MARKS, tables.OWN_EXPORTS, tables.MERGED, tables.OBJECTS_STATUS,
    tables.EXPORT_POLICIES, tables.SOURCES, tables.CALLER_REFUSALS, tables.PATHS,
    tables.RECORDS_STATUS, tables.REFUSED_RECORDS, tables.PEER_REFUSALS,
    tables.FAULTS,
)  # fmt: skip
"""Tables to read from each process."""
for _row in (*(table.row for table in TABLES), Stall):
    msgspec.json.Decoder(_row)  # before any thread: msgspec 0.22 crashes if two meet a type for the first time


UNKNOWN: Final = "this cluster"
"""The calling cluster, while no process answers that knows its name."""
OF_A_NODE: Final = (tables.CLUSTERS, tables.ENVOY_CHECKS, tables.REFUSED_GATEWAYS, tables.FAULTS)
"""Tables to read from the agents of further nodes: those that concern no one service."""
AT_ONCE: Final = 32
"""Processes that are asked at a time."""
HUNG: Final = 1.0
"""Seconds after which a process that does not answer counts as hung. All are asked at once, so several cost no more."""
FORBIDDEN: Final = "(Forbidden)"
"""Part of kubectl's message when its user lacks a right."""


class Process(Struct, frozen=True):
    """One process: what it reports and holds, or why it cannot be asked."""

    cluster: str
    name: str
    """'agent', 'operator', 'dns' or 'dns-second'."""
    rows: Reader
    """Every table of TABLES; empty where the process has none of that name, or cannot be asked."""
    status: Mapping[str, Any] = {}
    error: str = ""
    """Reason why it could not be queried; empty if it was."""
    expected: bool = True
    """``False`` if it has no socket here; it may run elsewhere."""
    asked: float = 0.0
    """Time at which it answered, in seconds since the epoch by the clock of this command."""
    unreadable: tuple[str, ...] = ()
    """Tables with a row that this version cannot read, each with the reason."""
    stalls: tuple[Stall, ...] = ()
    """Stalled connections that an agent finds, at this request."""

    def __str__(self) -> str:
        return f"{self.cluster}/{self.name}"


class Facts(Struct, frozen=True):
    """All that a diagnosis looks at."""

    agent: Process
    operator: Process
    name_servers: tuple[Process, ...]
    """Name servers of the node; each answers while the other is down."""
    others: tuple[Process, ...] = ()
    """Operators, agents and gateways of other clusters, where they can be asked too: those of a lab."""
    lab: str = ""
    """The lab that the clusters belong to; empty for clusters that are none."""
    context: str = ""
    """The kubeconfig context by which the calling cluster is asked; empty where it is asked on this machine."""
    pod: str = ""
    """namespace/name of the pod that calls, where one is named."""
    pod_hooked: bool | None = None
    """True if that pod's processes run below the hooked cgroup; ``None`` if no pod is named or it is not visible."""

    nodes: tuple[Process, ...] = ()
    """Agents of the calling cluster's other nodes, named node/agent, where the whole cluster is diagnosed."""

    @property
    def cluster(self) -> str:
        """The name of the calling cluster."""
        return self.agent.cluster

    @property
    def processes(self) -> tuple[Process, ...]:
        """Every process that answered, of all clusters."""
        every = (self.agent, self.operator, *self.name_servers, *self.nodes, *self.others)
        return tuple(each for each in every if not each.error)

    @property
    def operators(self) -> tuple[Process, ...]:
        """Operators of the calling cluster and of the others that can be queried."""
        return (self.operator, *(each for each in self.others if each.name == "operator"))

    def kubectl(self, cluster: str, namespace: str = "") -> str:
        """Return the start of a kubectl command. For another cluster, its name is taken as the name of its context."""
        context = self.context if cluster == self.cluster and self.context else cluster
        chosen = "" if context == UNKNOWN else f" --context {context}"
        return f"kubectl{chosen}" + (f" -n {namespace}" if namespace else "")

    def start(self, process: Process | str) -> str:
        """The command that starts a process again; ``process`` as cluster/name."""
        cluster, _, name = str(process).partition("/")
        if self.lab:
            return f"isthmus lab start --lab {self.lab} {process}"
        return f"{self.kubectl(cluster, 'isthmus-system')} rollout restart {workload(name)}"

    def connect(self, peer: str, *, by_hand: str) -> str:
        """Return the cure for a peer that is not connected: ``isthmus connect``, or ``by_hand``."""
        return self._either(f"isthmus connect {self.context or self.cluster} {peer}", by_hand)

    def keys(self, cluster: str, *, by_hand: str) -> str:
        """Return the cure for keys that a cluster lacks: the log of ``isthmus keys``, or ``by_hand``."""
        return self._either(f"{self.kubectl(cluster, 'isthmus-system')} logs deployment/isthmus-keys", by_hand)

    def _either(self, in_cluster: str, by_hand: str) -> str:
        """Return both cures, since no process that is queried knows who makes the keys; a lab makes its own by hand."""
        return by_hand if self.lab else f"{in_cluster}; where keys are made by hand: {by_hand}"

    def replace_envoy(self) -> str:
        """The command that replaces the Envoy of the calling node, which runs and does not answer."""
        if self.lab:
            return f"isthmus lab kill --lab {self.lab} {self.cluster}/envoy; {self.start(f'{self.cluster}/envoy')}"
        return self.start(f"{self.cluster}/envoy")

    def revive(self, process: Process | str) -> str:
        """The commands for a process that has ended: the first shows why, since a wrong setting ends it again."""
        cluster, _, name = str(process).partition("/")
        if FORBIDDEN in (process.error if isinstance(process, Process) else ""):
            return "ask as a user who may create pods/exec in the namespace isthmus-system"
        if self.lab:
            return f"isthmus lab logs --lab {self.lab} {process} --tail 3; {self.start(process)}"
        logs = (
            f"{self.kubectl(cluster, 'isthmus-system')} logs {workload(name)} -c {name.rpartition('/')[2]} --previous"
        )
        return f"{logs}; {self.start(process)}"


def workload(process: str) -> str:
    """Return the object of ``deploy/`` that runs a process."""
    process = process.rpartition("/")[2]
    if process in NAME_SERVERS:
        return "daemonset/isthmus-dns"
    return f"{'deployment' if process == 'operator' else 'daemonset'}/isthmus-{process}"


def process(
    socket: Socket | None, cluster: str, name: str, *, under: str = "", read: Sequence[Table[Any, Any]] = TABLES
) -> Process:
    """Read status and tables of a process; ``under`` (``demo/``) limits tables that are ordered by namespace to one.

    A row that cannot be read costs that row: the process may be of another version.
    """
    db = Database(*TABLES)
    if socket is None:
        return Process(cluster, name, db.snapshot(), error="it has no admin socket here", expected=False)
    unreadable: dict[str, str] = {}
    try:
        status, asked = socket.status(timeout=HUNG), time.time()
        with db.write() as txn:
            for table in read:
                if table.name in status["tables"]:
                    for row in socket.table(table.name, under=under).rows:
                        try:
                            txn.put(table, msgspec.convert(row, table.row))
                        except msgspec.ValidationError as error:
                            unreadable[table.name] = f"table {table.name}: {error}"
        stalls = _stalls(socket) if name.rpartition("/")[2] == "agent" else ()
    except QueryError as error:
        return Process(cluster, name, Database(*TABLES).snapshot(), error=str(error))
    unread = tuple(unreadable.values())
    return Process(cluster, name, db.snapshot(), status, asked=asked, unreadable=unread, stalls=stalls)


def _stalls(socket: Socket) -> tuple[Stall, ...]:
    """Stalled connections that an agent finds; none if it is of an earlier version, or cannot look at sockets.

    The agent logs why it cannot. What it reports besides is not affected.
    """
    try:
        return tuple(msgspec.convert(row, Stall) for row in socket.counters("stalls"))
    except (QueryError, msgspec.ValidationError):  # a later version may have other rows
        return ()


def _processes(named: Iterable[tuple[str, str, Socket]], under: str) -> list[Process]:
    """Ask processes at the same time, each given as (cluster, process, socket). Kept connections are not shared."""
    asked = list(named)
    if any(socket.dials for _, _, socket in asked):  # by kubectl exec: one connection after the other
        return [process(socket, cluster, name, under=under) for cluster, name, socket in asked]
    with ThreadPoolExecutor(max_workers=max(1, len(asked))) as pool:
        return list(pool.map(lambda each: process(each[2], each[0], each[1], under=under), asked))


def collect(
    sockets: Mapping[str, Socket],
    *,
    cluster: str,
    others: Sequence[tuple[str, str, Socket]],
    service: ServiceName | None,
    nodes: Mapping[str, Socket] = {},
    lab: str = "",
    context: str = "",
    pod: str = "",
) -> Facts:
    """The facts that the admin sockets give: ``sockets`` by process, ``others`` by cluster and process.

    ``nodes``: agents by node, of which the one in ``sockets`` is not asked again.
    """
    under = f"{service.partition('/')[0]}/" if service else ""
    every = _processes([*((cluster, *each) for each in sockets.items()), *others], under)
    asked = dict(zip(sockets, every, strict=False))
    missing = {name: process(None, cluster, name) for name in ("agent", "operator", "dns") if name not in asked}
    processes = asked | missing
    own = cluster or _own_name(list(processes.values()))
    named = {name: msgspec.structs.replace(each, cluster=own) for name, each in processes.items()}
    elsewhere = every[len(sockets) :]
    servers = tuple(each for name, each in named.items() if name.startswith("dns"))
    further = _agents(nodes, own, named["agent"].status.get("place", {}).get("node", ""))
    facts = Facts(named["agent"], named["operator"], servers, tuple(elsewhere), lab, context, pod, nodes=further)
    return msgspec.structs.replace(facts, pod_hooked=hooked(facts))


def _agents(nodes: Mapping[str, Socket], cluster: str, asked: str) -> tuple[Process, ...]:
    """Agents of the nodes but the one that was asked, all at the same time: each has a connection of its own."""

    def agent(node: str) -> Process:
        return process(nodes[node], cluster, f"{node}/agent", read=OF_A_NODE)

    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        return tuple(pool.map(agent, sorted(nodes.keys() - {asked})))


def _own_name(processes: Sequence[Process]) -> str:
    names = [row.name for each in processes for row in each.rows.all(tables.CLUSTERS) if row.own]
    return names[0] if names else UNKNOWN


def hooked(facts: Facts) -> bool | None:
    """True if this host shows a process with the pod's address below the agent's cgroup; ``None`` if unknown.

    The cgroup of an agent that is asked by a context is that of another machine.
    """
    row = facts.agent.rows.get(tables.PODS, facts.pod) if facts.pod else None
    datapath = facts.agent.status.get("datapath")
    if row is None or not datapath or not row.addresses or facts.context:
        return None
    from isthmus.datapath.services import callers

    cgroup = Path(datapath["hooks"]["cgroup"])
    try:
        addresses = callers.addresses_below(cgroup)
    except OSError:
        return None
    if not cgroup.is_dir():  # such as a container's, which has no host path
        return None
    return bool(addresses & set(row.addresses))
