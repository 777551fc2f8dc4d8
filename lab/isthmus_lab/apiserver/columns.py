"""Columns of `kubectl get` for each kind: a name and a function from object to cell. ``wide`` needs `-o wide`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from math import floor
from typing import Any, Final, NamedTuple

from isthmus_lab.apiserver.objects import Object, condition, items, labels_of, name_of, nested, parse_time, whole

Cell = Callable[[Object], Any]


class Column(NamedTuple):
    """One column of a Table."""

    name: str
    cell: Cell
    type: str = "string"
    wide: bool = False
    format: str = ""


def field(*path: str | int, default: Any = "<none>") -> Cell:
    """The value at a path."""
    return lambda obj: nested(obj, *path, default=default)


def age(*path: str) -> Cell:
    """Age of the timestamp at a path, in kubectl's notation."""

    def cell(obj: Object) -> str:
        try:
            return duration((datetime.now(UTC) - parse_time(nested(obj, *path, default=""))).total_seconds())
        except (ValueError, TypeError, AttributeError):
            return "<unknown>"

    return cell


def duration(seconds: float) -> str:
    """Seconds as `kubectl get` writes ages.

    >>> duration(90), duration(600), duration(4000), duration(700000)
    ('90s', '10m', '66m', '8d')
    """
    remaining = max(0, floor(seconds))
    minutes, hours, days = remaining // 60, remaining // 3600, remaining // 86400
    if remaining < 120:
        return f"{remaining}s"
    if minutes < 10:
        return _two(minutes, "m", remaining % 60, "s")
    if minutes < 180:
        return f"{minutes}m"
    if hours < 8:
        return _two(hours, "h", minutes % 60, "m")
    if hours < 48:
        return f"{hours}h"
    if days < 8:
        return _two(days, "d", hours % 24, "h")
    return f"{days}d" if days < 730 else _two(days // 365, "y", days % 365, "d")


def selector(*path: str) -> Cell:
    """A label selector or a plain map of labels, as text."""

    def cell(obj: Object) -> str:
        mapping = nested(obj, *path, default={})
        labels: dict[str, str] = (
            mapping.get("matchLabels", {}) if "matchLabels" in mapping or "matchExpressions" in mapping else mapping
        )
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "<none>"

    return cell


def _two(big: int, big_unit: str, small: int, small_unit: str) -> str:
    return f"{big}{big_unit}{small}{small_unit}" if small else f"{big}{big_unit}"


def _count(*path: str) -> Cell:
    return lambda obj: len(nested(obj, *path, default=()))


def _service_ip(obj: Object) -> str:
    return str(nested(obj, "spec", "clusterIP") or "<none>")


def _external_ip(obj: Object) -> str:
    ingress = [str(i.get("ip") or i.get("hostname")) for i in items(obj, "status", "loadBalancer", "ingress")]
    addresses = [*nested(obj, "spec", "externalIPs", default=()), *ingress]
    match nested(obj, "spec", "type"):
        case "ExternalName":
            return str(nested(obj, "spec", "externalName", default="<none>"))
        case "LoadBalancer":
            return ",".join(addresses) or "<pending>"
    return ",".join(addresses) or "<none>"


def _service_ports(obj: Object) -> str:
    return ",".join(_port(port) for port in items(obj, "spec", "ports")) or "<none>"


def _port(port: Object) -> str:
    node = f":{port['nodePort']}" if port.get("nodePort") else ""
    return f"{port.get('port')}{node}/{port.get('protocol', 'TCP')}"


def _pod_ready(obj: Object) -> str:
    ready = sum(1 for status in items(obj, "status", "containerStatuses") if status.get("ready"))
    return f"{ready}/{len(nested(obj, 'spec', 'containers', default=()))}"


def _pod_status(obj: Object) -> str:
    """The reason of the container that is not running, if there is one; else the phase."""
    phase = str(nested(obj, "status", "reason") or nested(obj, "status", "phase", default="Unknown"))
    if nested(obj, "metadata", "deletionTimestamp"):
        return "Terminating"
    for status in items(obj, "status", "initContainerStatuses"):
        if not nested(status, "state", "terminated") and (reason := nested(status, "state", "waiting", "reason")):
            return f"Init:{reason}"
    for status in items(obj, "status", "containerStatuses"):
        if reason := nested(status, "state", "waiting", "reason") or nested(status, "state", "terminated", "reason"):
            return str(reason)
    return phase


def _pod_restarts(obj: Object) -> str:
    return str(sum(whole(status.get("restartCount")) for status in items(obj, "status", "containerStatuses")))


def _node_status(obj: Object) -> str:
    ready = {"True": "Ready", "False": "NotReady"}.get(condition(obj, "Ready"), "Unknown")
    return ready + (",SchedulingDisabled" if nested(obj, "spec", "unschedulable") else "")


def _node_roles(obj: Object) -> str:
    prefix = "node-role.kubernetes.io/"
    return ",".join(sorted(k.removeprefix(prefix) for k in labels_of(obj) if k.startswith(prefix))) or "<none>"


def _node_address(kind: str) -> Cell:
    return lambda obj: next(
        (a.get("address") for a in items(obj, "status", "addresses") if a.get("type") == kind), "<none>"
    )


def _deployment_ready(obj: Object) -> str:
    return f"{nested(obj, 'status', 'readyReplicas', default=0)}/{nested(obj, 'spec', 'replicas', default=0)}"


def _job_status(obj: Object) -> str:
    for kind in ("Complete", "Failed", "Suspended"):
        if condition(obj, kind) == "True":
            return kind
    return "Terminating" if nested(obj, "metadata", "deletionTimestamp") else "Running"


def _job_completions(obj: Object) -> str:
    done, completions = nested(obj, "status", "succeeded", default=0), nested(obj, "spec", "completions")
    return (
        f"{done}/{completions}"
        if completions is not None
        else f"{done}/1 of {nested(obj, 'spec', 'parallelism', default=1)}"
    )


def _job_duration(obj: Object) -> str:
    began, ended = nested(obj, "status", "startTime"), nested(obj, "status", "completionTime")
    if not began:
        return ""
    until = parse_time(ended) if ended else datetime.now(UTC)
    return duration((until - parse_time(began)).total_seconds())


def _slice_ports(obj: Object) -> str:
    return ",".join(str(p.get("port")) for p in items(obj, "ports")) or "<unset>"


def _slice_endpoints(obj: Object) -> str:
    addresses = [a for endpoint in items(obj, "endpoints") for a in endpoint.get("addresses") or ()]
    more = f" + {len(addresses) - 3} more..." if len(addresses) > 3 else ""
    return ",".join(addresses[:3]) + more if addresses else "<unset>"


def _event_object(obj: Object) -> str:
    kind = nested(obj, "involvedObject", "kind", default="")
    return f"{kind.lower()}/{nested(obj, 'involvedObject', 'name', default='')}"


def _event_seen(obj: Object) -> str:
    for path in (("series", "lastObservedTime"), ("lastTimestamp",), ("eventTime",), ("metadata", "creationTimestamp")):
        if nested(obj, *path):
            return str(age(*path)(obj))
    return "<unknown>"


def _import_ips(obj: Object) -> str:
    return json_list(nested(obj, "spec", "ips"))


def _import_clusters(obj: Object) -> str:
    return " ".join(str(each.get("cluster", "")) for each in items(obj, "status", "clusters"))


def _conflict_reason(obj: Object) -> str:
    conflicts = (each for each in items(obj, "status", "conditions") if each.get("type") == "Conflict")
    return next((str(each.get("reason", "")) for each in conflicts), "")


def json_list(value: Sequence[str] | None) -> str:
    """A list as a column with a JSONPath writes it; '' where there is none."""
    return "[" + ",".join(f'"{each}"' for each in value) + "]" if value else ""


NAME: Final = Column("Name", name_of, format="name")
AGE: Final = Column("Age", age("metadata", "creationTimestamp"))
DEFAULT: Final = (NAME, Column("Created At", field("metadata", "creationTimestamp"), "date"))
NAME_AGE: Final = (NAME, AGE)

NAMESPACE: Final = (NAME, Column("Status", field("status", "phase")), AGE)
SERVICE: Final = (
    NAME,
    Column("Type", field("spec", "type")),
    Column("Cluster-IP", _service_ip),
    Column("External-IP", _external_ip),
    Column("Port(s)", _service_ports),
    AGE,
    Column("Selector", selector("spec", "selector"), wide=True),
)
POD: Final = (
    NAME,
    Column("Ready", _pod_ready),
    Column("Status", _pod_status),
    Column("Restarts", _pod_restarts),
    AGE,
    Column("IP", field("status", "podIP"), wide=True),
    Column("Node", field("spec", "nodeName"), wide=True),
    Column("Nominated Node", field("status", "nominatedNodeName"), wide=True),
    Column("Readiness Gates", lambda obj: "<none>", wide=True),
)
NODE: Final = (
    NAME,
    Column("Status", _node_status),
    Column("Roles", _node_roles),
    AGE,
    Column("Version", field("status", "nodeInfo", "kubeletVersion", default="")),
    Column("Internal-IP", _node_address("InternalIP"), wide=True),
    Column("External-IP", _node_address("ExternalIP"), wide=True),
    Column("OS-Image", field("status", "nodeInfo", "osImage", default="<unknown>"), wide=True),
    Column("Kernel-Version", field("status", "nodeInfo", "kernelVersion", default="<unknown>"), wide=True),
    Column("Container-Runtime", field("status", "nodeInfo", "containerRuntimeVersion", default="<unknown>"), wide=True),
)
CONFIG_MAP: Final = (
    NAME,
    Column("Data", lambda obj: len(obj.get("data") or {}) + len(obj.get("binaryData") or {})),
    AGE,
)
SECRET: Final = (NAME, Column("Type", field("type")), Column("Data", _count("data"), "integer"), AGE)
EVENT: Final = (
    Column("Last Seen", _event_seen),
    Column("Type", field("type", default="")),
    Column("Reason", field("reason", default="")),
    Column("Object", _event_object),
    Column("Message", lambda obj: str(nested(obj, "message", default="")).strip()),
    Column("Name", name_of, wide=True, format="name"),
)
DEPLOYMENT: Final = (
    NAME,
    Column("Ready", _deployment_ready),
    Column("Up-to-date", field("status", "updatedReplicas", default=0), "integer"),
    Column("Available", field("status", "availableReplicas", default=0), "integer"),
    AGE,
)
REPLICA_SET: Final = (
    NAME,
    Column("Desired", field("spec", "replicas", default=0), "integer"),
    Column("Current", field("status", "replicas", default=0), "integer"),
    Column("Ready", field("status", "readyReplicas", default=0), "integer"),
    AGE,
)
STATEFUL_SET: Final = (
    NAME,
    Column("Ready", _deployment_ready),
    AGE,
)
DAEMON_SET: Final = (
    NAME,
    Column("Desired", field("status", "desiredNumberScheduled", default=0), "integer"),
    Column("Current", field("status", "currentNumberScheduled", default=0), "integer"),
    Column("Ready", field("status", "numberReady", default=0), "integer"),
    Column("Up-to-date", field("status", "updatedNumberScheduled", default=0), "integer"),
    Column("Available", field("status", "numberAvailable", default=0), "integer"),
    Column("Node Selector", selector("spec", "template", "spec", "nodeSelector")),
    AGE,
)
JOB: Final = (
    NAME,
    Column("Status", _job_status),
    Column("Completions", _job_completions),
    Column("Duration", _job_duration),
    AGE,
)
ENDPOINT_SLICE: Final = (
    NAME,
    Column("AddressType", field("addressType", default="")),
    Column("Ports", _slice_ports),
    Column("Endpoints", _slice_endpoints),
    AGE,
)
SERVICE_EXPORT: Final = (  # this and the next match the definitions in deploy/crds
    NAME,
    Column("Valid", partial(condition, kind="Valid")),
    Column("Conflict", partial(condition, kind="Conflict")),
    Column("Reason", _conflict_reason, wide=True),
    AGE,
)
SERVICE_IMPORT: Final = (
    NAME,
    Column("Type", field("spec", "type", default="")),
    Column("IP", _import_ips),
    Column("Ready", partial(condition, kind="Ready")),
    Column("Clusters", _import_clusters, wide=True),
    AGE,
)
