"""Valid objects and records of a few services, which refer to each other: what hostile values are put into."""

from __future__ import annotations

from random import Random
from typing import Any, Final

from isthmus.kube.kind import Kind
from isthmus.mcs.words import SERVICE_NAME
from isthmus.model.mcs import MANAGED_BY
from isthmus.model.names import ServiceName, derived, split

SERVICES: Final = ("echo", "db", "shop")
SPACES: Final = ("demo", "evil", "aaa")
IMPORT: Final = "multicluster.x-k8s.io"
Object = dict[str, Any]
PORTS: Final[tuple[list[Object], ...]] = (
    [{"name": "http", "port": 80, "protocol": "TCP"}],
    [{"name": "http", "port": 80, "protocol": "TCP"}, {"name": "dns", "port": 53, "protocol": "UDP"}],
    [{"name": "grpc", "port": 80, "protocol": "TCP", "appProtocol": "kubernetes.io/h2c"}],
    [{"name": "tcp", "port": 80, "protocol": "TCP"}, {"name": "web", "port": 8080, "appProtocol": "http"}],
)
FILTERS: Final[tuple[Object, ...]] = (
    {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "a", "value": "b"}], "remove": ["c"]}},
    {"type": "ResponseHeaderModifier", "responseHeaderModifier": {"add": [{"name": "a", "value": "b"}]}},
    {
        "type": "RequestRedirect",
        "requestRedirect": {
            "scheme": "https",
            "hostname": "a.example",
            "port": 443,
            "statusCode": 301,
            "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/x"},
        },
    },
    {
        "type": "URLRewrite",
        "urlRewrite": {"hostname": "a.example", "path": {"type": "ReplaceFullPath", "replaceFullPath": "/"}},
    },
    {"type": "RequestMirror", "requestMirror": {"backendRef": {"name": "db", "port": 80}, "percent": 10}},
)  # fmt: skip


class Corpus:
    """Draws valid objects and records."""

    def __init__(self, draw: Random) -> None:
        self._draw = draw

    def obj(self, kind: Kind[Any]) -> Object:
        """An object of a kind."""
        draw = self._draw
        service, space = draw.choice(SERVICES), draw.choice(SPACES)
        meta: Object = {"name": service, "uid": f"u{draw.randrange(9)}", "creationTimestamp": "2026-01-01T00:00:00Z"}
        if kind.namespaced:
            meta["namespace"] = space
        fields = self._fields(kind.kind, meta, service)
        return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": meta, **fields}

    def record(self, kind: str, cluster: str, name: str) -> Object:
        """A record of a service that a peer publishes."""
        draw = self._draw
        namespace, short = split(ServiceName(name))
        head = {"cluster": cluster, "namespace": namespace, "name": short}
        if kind == "serviceexports":
            kinds = {"type": draw.choice(("ClusterSetIP", "ClusterSetIP", "Headless")), "ports": draw.choice(PORTS)}
            return {**head, "exportCreationTimestamp": "2026-01-01T00:00:00Z", **kinds, "ipFamilies": ["IPv4"]}
        number = int(cluster[1:])
        addresses = [f"10.{number}.0.{draw.randrange(1, 9)}" for _ in range(draw.randrange(4))]
        ports = {port.get("name", ""): {"Port": 8080, "Protocol": "TCP"} for port in draw.choice(PORTS)}
        hosts = {address: f"pod-{address[-1]}" for address in addresses} if draw.random() < 0.5 else {}
        shared = {"shared": True, "clusterID": number, "hostnames": hosts}
        return {**head, "backends": dict.fromkeys(addresses, ports), **shared}

    def _fields(self, kind: str, meta: Object, service: str) -> Object:
        draw, space = self._draw, meta.get("namespace", "")
        number = 10 * SPACES.index(space) + SERVICES.index(service) if space else 0
        match kind:
            case "Namespace":
                meta["name"] = draw.choice(SPACES)
                return {}
            case "Node":
                meta["name"] = "n1"
                return {"status": {"addresses": [{"type": "InternalIP", "address": "172.30.1.11"}]}}
            case "Service":
                return self._service(meta, service, number)
            case "EndpointSlice":
                headless = draw.random() < 0.2
                meta["labels"] = {"kubernetes.io/service-name": service}
                endpoints = [
                    {"addresses": [f"10.1.0.{draw.randrange(1, 9)}"], "conditions": {"ready": True}, "nodeName": "n1"}
                    | ({"hostname": "a"} if headless else {})
                    for _ in range(draw.randrange(4))
                ]
                ports = [{**port, "port": 8080} for port in draw.choice(PORTS)]
                return {"addressType": "IPv4", "endpoints": endpoints, "ports": ports}
            case "ServiceExport":
                annotations: Object = draw.choice(({}, {"isthmus.io/importers": "c2"}, {"a": "b"}))
                return {"spec": {"exportedAnnotations": annotations}}
            case "ServiceImport":
                self._managed(meta)
                clusters = draw.choice((["c2"], ["c3"], ["c2", "c3"]))
                with_address: Object = {"ips": [f"10.96.1.{number}"], "type": "ClusterSetIP"}
                named: Object = {"type": "Headless", "ips": []}
                spec = {"ports": draw.choice(PORTS), **draw.choice((with_address, with_address, named))}
                return {"spec": spec, "status": {"clusters": [{"cluster": each} for each in clusters]}}
            case "HTTPRoute" | "GRPCRoute":
                return {"spec": self._route(kind, service)}
            case "TCPRoute" | "UDPRoute":
                return {"spec": self._l4_route(service)}
            case "ReferenceGrant":
                kind = draw.choice(("HTTPRoute", "TCPRoute"))
                source = {"group": "gateway.networking.k8s.io", "kind": kind, "namespace": draw.choice(SPACES)}
                return {"spec": {"from": [source], "to": [{"group": "", "kind": "Service"}]}}
            case "BackendTLSPolicy":
                validation = {
                    "hostname": "a.example",
                    "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}],
                    "subjectAltNames": [{"type": "Hostname", "hostname": "*.example"}],
                }
                return {
                    "spec": {
                        "targetRefs": [{"group": "", "kind": "Service", "name": service}],
                        "validation": validation,
                    }
                }
            case "TrafficPolicy":
                target = {"kind": draw.choice(("Service", "ServiceImport")), "name": service}
                tiers = [
                    {"clusters": [{"name": "c1", "weight": 9}]},
                    {"clusters": [{"name": "c2"}], "minHealthy": "50%"},
                ]
                more = {"sessionAffinity": "ClientIP", "ejection": {"consecutiveFailures": 3}}
                return {"spec": {"targetRef": target, "tiers": tiers, **more}}
            case "GlobalTrafficPolicy":
                return {"spec": {"lbType": "ActiveActive", "targets": [{"clusterKey": "a/b/c/c2", "weight": 3}]}}
            case "Drain":
                target = {"kind": "Service", "name": service}
                times = {"startTime": "2026-05-31T23:59:00Z", "rampSeconds": 3600, "deadlineSeconds": 7200}
                return {"spec": {"targetRef": target, **times}}
            case "CiliumLocalRedirectPolicy":
                ports = [{"port": "80", "protocol": "TCP", "name": "http"}]
                frontend = {"serviceMatcher": {"serviceName": service, "namespace": space, "toPorts": ports}}
                backend = {"localEndpointSelector": {"matchLabels": {"app": "web"}}, "toPorts": ports}
                return {"spec": {"redirectFrontend": frontend, "redirectBackend": backend}}
            case "ConfigMap":
                meta |= {"namespace": "isthmus-system", "labels": {"isthmus.io/cluster": draw.choice(("c2", "c3"))}}
                return {"data": {"distrusted": "false"}}
            case "Pod":
                meta["labels"] = {"app": "web"}
                container = {"name": "a", "ports": [{"containerPort": 80, "hostPort": 8080}]}
                address = f"10.1.0.{draw.randrange(1, 9)}"
                status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "hostIP": "172.30.1.11"}
                ready = {"conditions": [{"type": "Ready", "status": "True"}]}
                return {"spec": {"nodeName": "n1", "containers": [container]}, "status": {**status, **ready}}
        return {}

    def _managed(self, meta: Object) -> None:
        """Isthmus wrote most of them; nothing of ours is built on those of others."""
        if self._draw.random() < 0.9:
            meta["annotations"] = {MANAGED_BY: "isthmus-operator"}

    def _service(self, meta: Object, service: str, number: int) -> Object:
        """A Service, or the one that represents an import of that name."""
        draw = self._draw
        if draw.random() < 0.5:
            name = ServiceName(f"{meta['namespace']}/{service}")
            meta |= {"name": split(derived(name))[1], "labels": {SERVICE_NAME: service}}
            self._managed(meta)
            address = f"10.96.1.{number}"
        else:
            address = f"10.96.0.{number}" if draw.random() < 0.8 else "None"
        spec = {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ports": draw.choice(PORTS)}
        return {"spec": {**spec, "selector": {"app": "web"}, "sessionAffinity": draw.choice(("None", "ClientIP"))}}

    def _l4_route(self, service: str) -> Object:
        """A route of a service, of an import or of an import's derived Service."""
        draw = self._draw
        parent = draw.choice(
            (
                {"group": "", "kind": "Service", "name": service},
                {"group": IMPORT, "kind": "ServiceImport", "name": service},
            )
        )
        backends = [
            {"name": draw.choice(SERVICES), "port": 80, "weight": draw.randrange(3)},
            {"group": IMPORT, "kind": "ServiceImport", "name": draw.choice(SERVICES), "port": draw.choice((53, 80))},
        ]
        if draw.random() < 0.3:
            backends[0]["namespace"] = draw.choice(SPACES)
        return {"parentRefs": [parent], "rules": [{"backendRefs": backends[: draw.choice((1, 2))]}]}

    def _route(self, kind: str, service: str) -> Object:
        draw = self._draw
        group = draw.choice(("", IMPORT))
        parent = {"group": group, "kind": "ServiceImport" if group else "Service", "name": service}
        if draw.random() < 0.2:
            parent["namespace"] = draw.choice(SPACES)
        header = {"name": "x", "value": "1", "type": draw.choice(("Exact", "RegularExpression"))}
        match: Object = {"headers": [header]}
        if kind == "HTTPRoute":
            match["path"] = {"type": draw.choice(("Exact", "PathPrefix", "RegularExpression")), "value": "/a"}
            match |= {"method": "GET", "queryParams": [{"name": "q", "value": "1"}]}
        else:
            match["method"] = {"service": "a.B", "method": "C"}
        backend: Object = draw.choice(
            (
                {"name": draw.choice(SERVICES), "port": 80, "weight": draw.randrange(3)},
                {"group": IMPORT, "kind": "ServiceImport", "name": draw.choice(SERVICES), "port": 80},
                {"group": "isthmus.io", "kind": "Cluster", "name": "c2"},
            )
        )
        rule: Object = {"backendRefs": [backend], "timeouts": {"request": "10s"}}
        if draw.random() < 0.7:
            rule["matches"] = [match]
        if draw.random() < 0.4:
            rule["filters"] = [draw.choice(FILTERS)]
        if draw.random() < 0.2:
            rule["retry"] = {"codes": [503], "attempts": 2, "backoff": "10ms"}
        return {"parentRefs": [parent], "rules": [rule] * draw.choice((1, 1, 2))}
