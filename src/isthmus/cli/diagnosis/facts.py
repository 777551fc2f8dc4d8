"""What a diagnosis is made of: the status and the tables of each process that can be asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Struct

from isthmus.admin.query import QueryError, Socket
from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.statedb import Database, Reader, Table

TABLES: Final[tuple[Table[Any, Any], ...]] = (
    tables.SERVICES, tables.IMPORTS, tables.ENDPOINT_SETS, tables.NODES, tables.POLICIES, tables.REDIRECTS,
    tables.FRONTENDS, tables.BACKENDS, tables.PLANS, tables.PLANS_STATUS, tables.CLUSTERS, tables.REFUSED_CLAIMS,
    tables.LOCAL_REDIRECTS, tables.PODS, tables.PORT_REDIRECTS, tables.OWN_RANGES, tables.NAMES, tables.NAMESPACES,
    tables.FAILURES, tables.PROBES, tables.OVER_QUOTA, tables.DRAINING,
    tables.ROUTES, tables.GRANTS, tables.ROUTE_PLANS, tables.ROUTE_REFUSALS, tables.XDS_SERVED,
    tables.ISLAND_PODS, tables.ISLAND_LISTENERS, tables.GATEWAY_CHECKS,
    tables.EXPORTS, tables.EXPORT_MARKS, tables.OWN_EXPORTS, tables.MERGED, tables.OBJECTS_STATUS,
)  # fmt: skip
"""Read of each process that has them."""


UNKNOWN: Final = "this cluster"
"""The calling cluster, while no process answers that knows its name."""
FORBIDDEN: Final = "(Forbidden)"
"""In kubectl's refusal of what its user may not do."""


class Process(Struct, frozen=True):
    """One process: what it reports and holds, or why it cannot be asked."""

    cluster: str
    name: str
    """'agent', 'operator', 'dns' or 'dns-second'."""
    rows: Reader
    """Every table of TABLES; empty where the process has none of that name, or cannot be asked."""
    status: Mapping[str, Any] = {}
    error: str = ""
    """Why it cannot be asked; empty: it was."""
    expected: bool = True
    """False: it has no socket here, and may well run elsewhere."""

    def __str__(self) -> str:
        return f"{self.cluster}/{self.name}"


class Facts(Struct, frozen=True):
    """All that a diagnosis looks at."""

    agent: Process
    operator: Process
    name_servers: tuple[Process, ...]
    """Of the node; each answers while the other is away."""
    others: tuple[Process, ...] = ()
    """Operators, agents and gateways of other clusters, where they can be asked too: those of a lab."""
    lab: str = ""
    """The lab that the clusters belong to; empty for clusters that are none."""
    context: str = ""
    """The kubeconfig context by which the calling cluster is asked; empty where it is asked on this machine."""
    pod: str = ""
    """namespace/name of the pod that calls, where one is named."""
    pod_hooked: bool | None = None
    """Whether that pod's processes run below the hooked cgroup; None: no pod is named, or it is not visible here."""

    @property
    def cluster(self) -> str:
        """The name of the calling cluster."""
        return self.agent.cluster

    @property
    def operators(self) -> tuple[Process, ...]:
        """Of the calling cluster, and of the others that can be asked."""
        return (self.operator, *(each for each in self.others if each.name == "operator"))

    def kubectl(self, cluster: str, namespace: str = "") -> str:
        """How a command for a cluster begins; that of another cluster takes its name for that of its context."""
        context = self.context if cluster == self.cluster and self.context else cluster
        chosen = "" if context == UNKNOWN else f" --context {context}"
        return f"kubectl{chosen}" + (f" -n {namespace}" if namespace else "")

    def start(self, process: Process | str) -> str:
        """The command that starts a process again; ``process`` as cluster/name."""
        cluster, name = str(process).split("/")
        if self.lab:
            return f"isthmus lab start --lab {self.lab} {cluster}/{name}"
        kind = "deployment/isthmus-operator" if name == "operator" else "daemonset/isthmus-agent"
        return f"{self.kubectl(cluster, 'isthmus-system')} rollout restart {kind}"

    def revive(self, process: Process | str) -> str:
        """The commands for a process that has ended: the first shows why, since a wrong setting ends it again."""
        cluster, name = str(process).split("/")
        if FORBIDDEN in (process.error if isinstance(process, Process) else ""):
            return "ask as a user who may create pods/exec in the namespace isthmus-system"
        if self.lab:
            return f"isthmus lab logs --lab {self.lab} {process} --tail 3; {self.start(process)}"
        container = name if name in ("dns", "dns-second") else "agent" if name == "agent" else ""
        kind = "daemonset/isthmus-agent" if container else "deployment/isthmus-operator"
        chosen = f" -c {container}" if container else ""
        logs = f"{self.kubectl(cluster, 'isthmus-system')} logs {kind}{chosen} --previous"
        return f"{logs}; {self.start(process)}"


def process(socket: Socket | None, cluster: str, name: str, *, under: str = "") -> Process:
    """Status and tables of a process; ``under`` (``demo/``) limits tables that are ordered by namespace to one."""
    db = Database(*TABLES)
    if socket is None:
        return Process(cluster, name, db.snapshot(), error="it has no admin socket here", expected=False)
    try:
        status = socket.status()
        with db.write() as txn:
            for table in TABLES:
                if table.name in status["tables"]:
                    for row in socket.table(table.name, under=under).rows:
                        txn.put(table, msgspec.convert(row, table.row))
    except QueryError as error:
        return Process(cluster, name, Database(*TABLES).snapshot(), error=str(error))
    return Process(cluster, name, db.snapshot(), status)


def collect(
    sockets: Mapping[str, Socket],
    *,
    cluster: str,
    others: Sequence[tuple[str, str, Socket]],
    service: ServiceName | None,
    lab: str = "",
    context: str = "",
    pod: str = "",
) -> Facts:
    """The facts that the admin sockets give: ``sockets`` by process, ``others`` by cluster and process."""
    under = f"{service.partition('/')[0]}/" if service else ""
    asked = {name: process(socket, cluster, name, under=under) for name, socket in sockets.items()}
    missing = {name: process(None, cluster, name) for name in ("agent", "operator", "dns") if name not in asked}
    found = asked | missing
    own = cluster or _own_name(list(found.values()))
    named = {name: msgspec.structs.replace(each, cluster=own) for name, each in found.items()}
    elsewhere = [process(socket, *named_by, under=under) for *named_by, socket in others]
    servers = tuple(each for name, each in named.items() if name.startswith("dns"))
    facts = Facts(named["agent"], named["operator"], servers, tuple(elsewhere), lab, context, pod)
    return msgspec.structs.replace(facts, pod_hooked=_hooked(facts))


def _own_name(processes: Sequence[Process]) -> str:
    names = [row.name for each in processes for row in each.rows.all(tables.CLUSTERS) if row.own]
    return names[0] if names else UNKNOWN


def _hooked(facts: Facts) -> bool | None:
    """Whether a process with an address of the pod runs below the cgroup that the agent hooked, seen from this host."""
    row = facts.agent.rows.get(tables.PODS, facts.pod) if facts.pod else None
    datapath = facts.agent.status.get("datapath")
    if row is None or not datapath or not row.addresses:
        return None
    from isthmus.datapath.services import callers

    try:
        present = callers.addresses_below(Path(datapath["hooks"]["cgroup"]))
    except OSError:
        return None
    return bool(present & set(row.addresses))
