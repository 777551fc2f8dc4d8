"""The expected imports, computed from the API servers' contents without code of Isthmus, and the actual ones.

The rules are those of KEP-1645: the oldest export decides type, affinity and labels, the cluster's name where two are
of one second; ports are joined, and of two that differ under one name or number the older export's stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from isthmus_lab.apiserver.objects import Object
from isthmus_sim.clusters import Cluster, Clusters

SERVICE = "services"
SLICE = "endpointslices.discovery.k8s.io"
EXPORT = "serviceexports.multicluster.x-k8s.io"
IMPORT = "serviceimports.multicluster.x-k8s.io"
NAMESPACE = "namespaces"
OF = "kubernetes.io/service-name"
SOURCE = "multicluster.kubernetes.io/source-cluster"
IMPORTED = "multicluster.kubernetes.io/service-name"

Port = tuple[str, int, str]


class Seen(NamedTuple):
    """An import as users see it, without the fields that differ by importing cluster: address, order of clusters."""

    type: str
    ports: tuple[Port, ...]
    affinity: str
    labels: tuple[tuple[str, str], ...]
    clusters: tuple[str, ...]
    endpoints: tuple[tuple[str, str, tuple[str, ...]], ...]
    """Cluster, address and names of ports."""

    def __str__(self) -> str:
        ports = ",".join(f"{name}:{number}" for name, number, _ in self.ports)
        ends = ", ".join(f"{cluster}:{address}({'+'.join(ports)})" for cluster, address, ports in self.endpoints)
        return f"{self.type} {ports} {self.affinity} {dict(self.labels)} of {'+'.join(self.clusters)}: {ends or 'none'}"


Imports = Mapping[str, Seen]


class _Export(NamedTuple):
    created: str
    cluster: str
    service: Object
    labels: tuple[tuple[str, str], ...]

    @property
    def ports(self) -> list[Port]:
        return _ports(self.service["spec"].get("ports") or ())


def exports(cluster: Cluster) -> dict[str, _Export]:
    """Exports of a cluster, by the name of the Service."""
    store = cluster.api.store
    found = {}
    for mark in store.items(EXPORT):
        service = store.get(SERVICE, mark.key)
        if service is None or not _lives(cluster, mark.key):
            continue
        labels = tuple(sorted((mark.body.get("spec", {}).get("exportedLabels") or {}).items()))
        created = mark.body["metadata"]["creationTimestamp"]
        found[mark.key] = _Export(created, cluster.name, service.body, labels)
    return found


def _lives(cluster: Cluster, name: str) -> bool:
    """True if the namespace exists and is not being deleted."""
    namespace = cluster.api.store.get(NAMESPACE, name.partition("/")[0])
    return namespace is not None and "deletionTimestamp" not in namespace.body["metadata"]


def wanted(cluster: Cluster, clusters: Clusters) -> Imports:
    """The expected imports of a cluster."""
    ranked = _ranked(cluster, clusters)
    views = {each.name: _ranked(each, clusters) for each in clusters if each.name in cluster.linked}
    return {
        name: _merged(name, found, views, clusters) for name, found in sorted(ranked.items()) if _lives(cluster, name)
    }


def _ranked(cluster: Cluster, clusters: Clusters) -> dict[str, list[_Export]]:
    """The exports that a cluster follows, its own among them, by name and the oldest first."""
    ranked: dict[str, list[_Export]] = {}
    for each in clusters:
        if each.name in cluster.linked:
            for name, export in exports(each).items():
                ranked.setdefault(name, []).append(export)
    return {name: sorted(found, key=lambda each: (each.created, each.cluster)) for name, found in ranked.items()}


def _joined(ranked: list[_Export]) -> list[Port]:
    ports: list[Port] = []
    for export in ranked:
        for port in export.ports:
            if not any(port[0] == other[0] or port[1:] == other[1:] for other in ports):
                ports.append(port)
    return ports


def _merged(
    name: str, ranked: list[_Export], views: Mapping[str, Mapping[str, list[_Export]]], clusters: Clusters
) -> Seen:
    oldest, ports = ranked[0], _joined(ranked)
    endpoints = []
    for export in ranked:
        published = _joined(views[export.cluster][name])  # an exporter publishes the ports that agree as it sees it
        agreed = tuple(sorted(port[0] for port in export.ports if port in ports and port in published))
        if agreed:
            endpoints += [(export.cluster, address, agreed) for address in _addresses(clusters[export.cluster], name)]
    spec = oldest.service["spec"]
    return Seen(
        "Headless" if spec.get("clusterIP") == "None" else "ClusterSetIP",
        tuple(ports),
        spec.get("sessionAffinity") or "None",
        oldest.labels,
        tuple(sorted(export.cluster for export in ranked)),
        tuple(sorted(endpoints)),
    )


def _addresses(cluster: Cluster, name: str) -> Iterable[str]:
    namespace, _, service = name.partition("/")
    for item in cluster.api.store.items(SLICE, namespace):
        labels = item.body["metadata"].get("labels") or {}
        if labels.get(OF) == service and SOURCE not in labels:
            yield from _ready(item.body)


def _ready(slice_: Object) -> Iterable[str]:
    for endpoint in slice_.get("endpoints") or ():
        yield from endpoint["addresses"]


def seen(cluster: Cluster) -> dict[str, Seen]:
    """The actual imports of a cluster."""
    store = cluster.api.store
    behind: dict[str, set[tuple[str, str, tuple[str, ...]]]] = {}
    for item in store.items(SLICE):
        labels = item.body["metadata"].get("labels") or {}
        if SOURCE in labels:
            name = f"{item.body['metadata']['namespace']}/{labels.get(IMPORTED, '')}"
            ports = tuple(sorted(port["name"] for port in item.body.get("ports") or ()))
            behind.setdefault(name, set()).update((labels[SOURCE], each, ports) for each in _ready(item.body))
    return {
        item.key: Seen(
            item.body["spec"]["type"],
            tuple(_ports(item.body["spec"].get("ports") or ())),
            item.body["spec"].get("sessionAffinity") or "None",
            tuple(sorted((item.body["metadata"].get("labels") or {}).items())),
            tuple(sorted(each["cluster"] for each in (item.body.get("status") or {}).get("clusters") or ())),
            tuple(sorted(behind.pop(item.key, ()))),
        )
        for item in store.items(IMPORT)
    } | {f"{name} (slices without an import)": _nothing(tuple(sorted(ends))) for name, ends in behind.items() if ends}


def _nothing(endpoints: Any) -> Seen:
    return Seen("none", (), "None", (), (), endpoints)


def _ports(ports: Iterable[Object]) -> list[Port]:
    return [(port.get("name") or "", port["port"], port.get("protocol") or "TCP") for port in ports]


def differences(cluster: Cluster, clusters: Clusters) -> list[str]:
    """Differences between actual and expected imports; empty if there are none."""
    want, have = wanted(cluster, clusters), seen(cluster)
    texts = []
    for name in sorted({*want, *have}):
        if want.get(name) != have.get(name):
            texts.append(f"{cluster.name} {name}: is {have.get(name)}; has to be {want.get(name)}")
    return texts
