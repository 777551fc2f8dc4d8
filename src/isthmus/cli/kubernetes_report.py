"""The part of a bug report that is asked of the API server, through kubectl.

All of our own namespace; of the others what takes part in a clusterset: exports, imports, endpoint slices, the pods
behind them and events about these. Secrets are never requested, ConfigMaps neither; of pods in other namespaces only
the status is kept, and of ours no value of an environment variable.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from isthmus.installation import SYSTEM

AGENT: Final = "isthmus-agent"
DNS: Final = "isthmus-dns"
LABEL: Final = "app.kubernetes.io/name"
"""Label of pods in deploy/; ``AGENT`` and ``DNS`` are the values of those on every node."""
LOG_LINES: Final = 5_000
"""Log lines of each container, about a megabyte."""
PATIENCE: Final = 30
"""Seconds for a request of kubectl."""
IMPORTED: Final = "multicluster.kubernetes.io/service-name"
SLICE_OF: Final = "kubernetes.io/service-name"
"""Labels of EndpointSlices that name the ServiceImport (KEP-1645) and the Service (discovery.k8s.io/v1)."""
APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""An annotation of kubectl with the whole object as it was applied."""
LEFT_OUT: Final = "(left out)"

Object = dict[str, Any]
Name = tuple[str, str]


def report(options: Sequence[str]) -> Iterator[tuple[str, bytes]]:
    """Files of the report: path and content. ``options``: kubectl's, that select the cluster.

    A query that fails is a file with the reason, and the others continue.
    """
    kubectl = _Kubectl(options)
    yield kubectl.file("version", "version", "-o", "json")
    own = kubectl.objects("-n", SYSTEM, "get", "pods")
    exports, imports = (kubectl.objects("get", kind, "-A") for kind in ("serviceexports", "serviceimports"))
    named = {_name(each) for each in (*exports, *imports)}
    slices = [
        each for each in kubectl.objects("get", "endpointslices", "-A") if _service(each) in named or _imported(each)
    ]
    behind = set(_pods(slices))
    pods = [_status(each) for each in kubectl.objects("get", "pods", "-A") if _name(each) in behind]
    about = named | behind | {_name(each) for each in slices}
    events = [each for each in kubectl.objects("get", "events", "-A") if _is_about(each, about)]
    found = {
        "own-pods": [_without_environment(each) for each in own],
        "serviceexports": exports,
        "serviceimports": imports,
        "endpointslices": slices,
        "pods": pods,
        "events": events,
    }
    for kind, items in found.items():
        yield f"kubernetes/{kind}.json", _json([_without_copy(each) for each in items])
    for pod in own:
        name = pod["metadata"]["name"]
        logs = ("-n", SYSTEM, "logs", name, "--all-containers", "--prefix", f"--tail={LOG_LINES}")
        yield kubectl.file(f"logs/{name}", *logs, suffix="log")
        if (pod["metadata"].get("labels") or {}).get(LABEL) == AGENT:
            maps = ("-n", SYSTEM, "exec", name, "-c", "agent", "--", "isthmus", "bpf", "maps", "-o", "json")
            yield kubectl.file(f"maps/{name}", *maps)
    if kubectl.errors:
        yield "kubernetes/errors.txt", "".join(f"{why}\n" for why in kubectl.errors).encode()


class _Kubectl:
    """kubectl for one cluster; what it refuses is kept in ``errors``."""

    def __init__(self, options: Sequence[str]) -> None:
        self._options = options
        self.errors: list[str] = []

    def file(self, name: str, *words: str, suffix: str = "json") -> tuple[str, bytes]:
        """A file with what it prints."""
        return f"kubernetes/{name}.{suffix}", self._output(*words)

    def objects(self, *words: str) -> list[Object]:
        """The items of a list; none where it cannot be had."""
        output = self._output(*words, "-o", "json")
        items: list[Object] = msgspec.json.decode(output)["items"] if output else []
        return items

    def _output(self, *words: str) -> bytes:
        command = ["kubectl", *self._options, *words]
        try:
            done = subprocess.run(command, capture_output=True, timeout=PATIENCE, check=False)
        except FileNotFoundError:
            reason = "kubectl is not in PATH"
        except subprocess.TimeoutExpired:
            reason = f"no answer in {PATIENCE} s"
        else:
            if not done.returncode:
                return done.stdout
            reason = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
        self.errors.append(f"kubectl {' '.join(words)}: {reason}")
        return b""


def _name(item: Object) -> Name:
    meta = item["metadata"]
    return meta.get("namespace", ""), meta["name"]


def _service(piece: Object) -> Name:
    return piece["metadata"].get("namespace", ""), (piece["metadata"].get("labels") or {}).get(SLICE_OF, "")


def _imported(piece: Object) -> bool:
    return IMPORTED in (piece["metadata"].get("labels") or {})


def _pods(slices: Iterable[Object]) -> Iterator[Name]:
    """The pods that endpoints stand for."""
    for piece in slices:
        for endpoint in piece.get("endpoints") or ():
            target = endpoint.get("targetRef") or {}
            if target.get("kind") == "Pod":
                yield target.get("namespace", piece["metadata"].get("namespace", "")), target["name"]


def _is_about(event: Object, names: set[Name]) -> bool:
    involved = event.get("involvedObject") or {}
    return (
        event["metadata"].get("namespace") == SYSTEM
        or (involved.get("namespace", ""), involved.get("name", "")) in names
    )


def _status(pod: Object) -> Object:
    """A pod of a user: its labels, its node and its status, and nothing of what it runs."""
    kept = {key: value for key, value in pod["metadata"].items() if key != "annotations"}
    return {"metadata": kept, "spec": {"nodeName": pod["spec"].get("nodeName", "")}, "status": pod.get("status", {})}


def _without_environment(pod: Object) -> Object:
    """Ours, as it is but for values of environment variables."""
    spec = dict(pod["spec"])
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        if kind in spec:
            spec[kind] = [
                {**each, "env": [{**one, "value": LEFT_OUT} if "value" in one else one for one in each.get("env", ())]}
                for each in spec[kind]
            ]
    return {**pod, "spec": spec}


def _without_copy(item: Object) -> Object:
    meta = item["metadata"]
    kept = {key: value for key, value in (meta.get("annotations") or {}).items() if key != APPLIED}
    return {**item, "metadata": {**meta, "annotations": kept}} if "annotations" in meta else item


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)
