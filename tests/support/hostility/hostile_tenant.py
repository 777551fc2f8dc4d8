"""A hostile tenant: what it writes into its own namespace, most of it about services of others.

Each object is one of three: valid and aimed at a service of another namespace; such an object with some values that are
hostile; or one with hostile values in every field. So API servers that validate take many of them.
"""

from __future__ import annotations

import base64
import random
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec
from hostility.hostile import Hostile

from isthmus.clusterset.records import keys
from isthmus.kube.kind import Kind
from isthmus.model.names import ClusterName, ServiceName
from isthmus.sources import kubernetes

TENANT: Final = "mallory"
NAMES: Final = ("echo", "db", "derived-1", "kubernetes", "n1", "routed", "x" * 63)
IMPORT: Final = "multicluster.x-k8s.io"
ROUTE: Final = "gateway.networking.k8s.io"
Object = dict[str, Any]
RECORDS: Final = ("services", "serviceexports")
KINDS: Final[Mapping[str, Kind[Any]]] = {
    kind.kind + ("" if kind.group != "flomesh.io" else "/flomesh"): kind
    for kind in kubernetes.kinds().values()
    if kind.namespaced and kind.kind != "RefusedRoutes"
}


class Target(NamedTuple):
    """A service that the tenant aims at, as it is in one cluster."""

    name: str
    namespace: str
    addresses: tuple[str, ...]
    """ClusterIPs, addresses of its import, its pods, nodes and servers: what the tenant may find out."""


class Write(NamedTuple):
    """A request to an API server, or a key of an etcd. A body of None deletes."""

    cluster: str
    kind: str
    path: str
    name: str
    body: bytes | None

    def __str__(self) -> str:
        body = "delete" if self.body is None else self.body[:1500].decode(errors="replace")
        return f"{self.cluster} {self.kind} {self.name}: {body}"


class Tenant:
    """Draws the writes of a tenant of every cluster, and the records of its namespace that one cluster publishes."""

    def __init__(self, seed: int, targets: Mapping[str, list[Target]], liar: str) -> None:
        self._random, self._hostile = random.Random(seed), Hostile(seed)
        self._targets, self._liar = targets, ClusterName(liar)

    def write(self, existing: Mapping[tuple[str, str, str], object]) -> Write:
        """An object, or the end of one."""
        draw = self._random
        if existing and draw.random() < 0.25:
            cluster, label, name = draw.choice([*existing])
            return Write(cluster, label, KINDS[label].path(TENANT, name), name, None)
        cluster, label = draw.choice([*self._targets]), draw.choice([*KINDS])
        kind, way = KINDS[label], draw.random()
        if way < 0.4:
            body = msgspec.json.decode(self._hostile.obj(kind, kind.api_version))
        else:
            body = self._aimed(kind, draw.choice(self._targets[cluster]))
            if way < 0.75:
                body = self._hostile.spoiled(body, draw.choice((1, 1, 2, 4)))
        meta = body.get("metadata")
        meta = {key: meta[key] for key in ("labels", "annotations") if key in meta} if isinstance(meta, dict) else {}
        body.pop("status", None)  # the API server ignores it here
        name = draw.choice(NAMES)
        head = {"apiVersion": kind.api_version, "kind": kind.kind}
        body = {**body, **head, "metadata": {**meta, "name": name, "namespace": TENANT}}
        return Write(cluster, label, kind.path(TENANT, name), name, msgspec.json.encode(body))

    def record(self) -> Write:
        """A record of the tenant's namespace, as the cluster that lies publishes it."""
        draw = self._random
        kind, name = draw.choice(RECORDS), ServiceName(f"{TENANT}/{draw.choice(NAMES)}")
        key = keys.record(kind, self._liar, name)
        way, value = draw.random(), self._hostile.record(kind, self._liar, name)
        if way < 0.1:
            return Write(self._liar, kind, key, name, None)
        if way < 0.15:
            value = draw.randbytes(draw.choice((0, 1, 100, 100_000)))
        return Write(self._liar, kind, key, name, value)

    def _aimed(self, kind: Kind[Any], target: Target) -> Object:
        """A valid object that concerns the target."""
        draw = self._random
        address, other = (draw.choice(target.addresses) for _ in range(2))
        selector = {"app": "echo"}
        ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
        parent = {"group": draw.choice(("", IMPORT)), "name": target.name, "namespace": target.namespace}
        parent["kind"] = "ServiceImport" if parent["group"] else "Service"
        match kind.kind:
            case "Service":
                return draw.choice(
                    (
                        {"spec": {"ports": ports, "selector": selector, "externalIPs": [address]}},
                        {"spec": {"ports": ports, "type": "LoadBalancer", "loadBalancerIP": address}},
                        {"spec": {"ports": ports, "type": "NodePort", "selector": selector}},
                        {"spec": {"ports": ports, "clusterIP": "None", "selector": selector}},
                        {
                            "spec": {
                                "type": "ExternalName",
                                "externalName": f"{target.name}.{target.namespace}.svc.clusterset.local",
                            }
                        },
                        {"spec": {"ports": [{"name": f"p{n}", "port": n} for n in range(1, draw.choice((2, 400)))]}},
                    )
                )
            case "EndpointSlice":
                label = draw.choice(("kubernetes.io/service-name", "multicluster.kubernetes.io/service-name"))
                labels = {label: draw.choice((target.name, *NAMES))}
                endpoints = [{"addresses": [draw.choice(target.addresses)]} for _ in range(draw.choice((1, 2, 100)))]
                body = {"addressType": "IPv4", "endpoints": endpoints, "ports": [{**ports[0], "port": 8080}]}
                return {"metadata": {"labels": labels}, **body}
            case "ServiceExport":
                return {"spec": draw.choice(({}, {"exportedLabels": {"a": "b"}}))}
            case "ServiceImport":
                return {"spec": {"type": "ClusterSetIP", "ips": [address], "ports": ports}}
            case "HTTPRoute" | "GRPCRoute":
                target_port = {"name": target.name, "namespace": target.namespace, "port": 80}
                matches = [{}] if kind.kind == "GRPCRoute" else [{"path": {"value": draw.choice(("/", "/routed"))}}]
                rule = {"matches": matches, "backendRefs": [draw.choice((target_port, {"name": "victim", "port": 80}))]}
                return {"spec": {"parentRefs": [parent], "rules": [rule] * draw.choice((1, 16))}}
            case "TCPRoute" | "UDPRoute":
                victim = {"name": target.name, "namespace": target.namespace, "port": 80}
                return {
                    "spec": {"parentRefs": [parent], "rules": [{"backendRefs": [victim, {"name": "v", "port": 80}]}]}
                }
            case "ReferenceGrant":
                source = {"group": ROUTE, "kind": "HTTPRoute", "namespace": target.namespace}
                return {"spec": {"from": [source], "to": [{"group": "", "kind": "Service"}]}}
            case "TrafficPolicy":
                tiers = [{"clusters": [{"name": draw.choice(("c1", "c2", "c3")), "weight": 1}]}]
                reference = {"group": IMPORT, "kind": "ServiceImport", "name": target.name}
                return {"spec": {"targetRef": reference, "tiers": tiers}}
            case "GlobalTrafficPolicy":
                return {"spec": {"lbType": "FailOver", "targets": [{"clusterKey": "default/default/default/c1"}]}}
            case "Drain":
                names = {"Cluster": "c1", "Node": "c1-n1", "Service": target.name}
                kind_name = draw.choice([*names])
                reference = {"kind": kind_name, "name": names[kind_name]}
                return {"spec": {"targetRef": reference, "startTime": "2026-01-01T00:00:00Z", "rampSeconds": 1}}
            case "CiliumLocalRedirectPolicy":
                by_port = [{"port": "80", "protocol": "TCP", "name": "http"}]
                frontend = draw.choice(
                    (
                        {"addressMatcher": {"ip": address, "toPorts": by_port}},
                        {"serviceMatcher": {"serviceName": target.name, "namespace": target.namespace}},
                    )
                )
                backend = {"localEndpointSelector": {"matchLabels": selector}, "toPorts": by_port}
                return {"spec": {"redirectFrontend": frontend, "redirectBackend": backend}}
            case "ConfigMap":
                return {"metadata": {"labels": {"isthmus.io/cluster": "c2"}}, "data": {"distrusted": "true"}}
            case "Pod":
                container = {
                    "name": "a",
                    "image": "nobody/has-it",
                    "ports": [{"containerPort": 8080, "hostPort": 8080}],
                }
                return {"metadata": {"labels": selector}, "spec": {"containers": [container], "hostAliases": []}}
        raise AssertionError(f"{kind.kind}: no object of this kind, {other}")


def line(write: Write) -> list[str | None]:
    """The line of ``churn_etcd.py`` for a record."""
    return [write.path, None if write.body is None else base64.b64encode(write.body).decode()]
