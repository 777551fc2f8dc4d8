"""Hostile objects and records: every field of every kind, by the decoders' own types, with values beyond bounds."""

from __future__ import annotations

import random
from typing import Any, Final

import msgspec
from msgspec import inspect as types

from isthmus.clusterset.records import endpoints, exports, identity, refusals
from isthmus.kube.kind import Kind
from isthmus.kube.objects.gateway import GrpcRule, HttpRule, L4Rule

NAMES: Final = ("echo", "db", "derived-1", "x" * 63, "a.b", "kubernetes", "n1")
NAMESPACES: Final = ("demo", "evil", "aaa", "kube-system", "isthmus-system", "default")
TEXTS: Final = (
    "", "0", "-1", "80", "http", "65535", "65536", "9" * 4400, "٣", "²", "1e309", "NaN", "inf", "a", "a" * 5000, "\x00",
    "\x1b[31m", "\u202e", "é", "😀", "../..", "%2e", "(a+)+$", "[", "\\", "a=b", "k8s:app", "true", "None",
    "demo/echo", "echo", "c1", "c2", "*", ".", "n1", "east", "TCP", "UDP", "SCTP", "IPv4", "IPv6", "Local", "ClusterIP",
    "ClusterSetIP", "Headless", "LoadBalancer", "ExternalName", "Service", "ServiceImport", "Cluster", "Node", "Close",
    "Keep", "Exists", "In", "Exact", "PathPrefix", "RegularExpression", "50%", "150%", "1h", "10s", "99999999h", "-1s",
    "1h1h", "10.1.1.7", "10.96.0.1", "127.0.0.1", "169.254.169.254", "255.255.255.255", "0.0.0.0", "::", "::1",
    "fd00::7", "FD00::7", "::ffff:10.1.1.7", "fe80::1%eth0", "1.2.3.4.5", "010.1.1.1", "10.0.0.0/8", "10.0.0.1/33",
    "9999-12-31T23:59:59Z", "0999-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "2026-01-01T00:00:00Z",
    "2026-02-30T00:00:00Z", "2026-01-01T00:00:00+99:99", "2026-01-01", "now", "host:1", "[::1]:99999", "a" * 300 + ".b",
)  # fmt: skip
"""Text that has a meaning somewhere, at and beyond every bound."""
NUMBERS: Final = (
    0,
    1,
    -1,
    2,
    3,
    80,
    443,
    100,
    65535,
    65536,
    604_800,
    2**31 - 1,
    2**31,
    2**53,
    2**63 - 1,
    -(2**63),
    10**25,
)
USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "clusterIP": ("10.96.0.7", "10.96.0.8", "fd00:96::7", "None"),
    "clusterIPs": (["10.96.0.7"], ["10.96.0.7", "fd00:96::7"]),
    "addressType": ("IPv4", "IPv6"),
    "addresses": (["10.1.0.7"], ["10.1.0.8"], ["fd00:1::7"]),
    "ip": ("10.1.0.7", "10.2.0.7"),
    "ips": (["10.96.0.7"], []),
    "podIPs": ([{"ip": "10.1.0.7"}],),
    "hostIP": ("172.30.1.11",),
    "nodeName": ("n1",),
    "port": (80, 443, 8080),
    "containerPort": (80,),
    "hostPort": (8080,),
    "nodePort": (30080,),
    "protocol": ("TCP", "UDP"),
    "name": NAMES,
    "namespace": NAMESPACES,
    "kind": ("Service", "ServiceImport", "Cluster", "HTTPRoute", "Node"),
    "group": ("", "multicluster.x-k8s.io", "isthmus.io", "gateway.networking.k8s.io"),
    "phase": ("Running",),
    "conditions": ([{"type": "Ready", "status": "True"}], {"ready": True}),
    "weight": (1, 0, 9),
    "cluster": ("c1", "c2"),
    "ipFamilies": (["IPv4"], ["IPv6"], ["IPv4", "IPv6"]),
    "sessionAffinity": ("None", "ClientIP"),
    "backends": (
        {"10.2.0.7": {"http": {"Port": 80, "Protocol": "TCP"}}},
        {"10.2.0.8": {"": {"Port": 80, "Protocol": "TCP"}}},
    ),
    "labels": ({"app": "web"}, {"kubernetes.io/service-name": "echo"}, {"kubernetes.io/service-name": "db"}),
    "serviceName": ("echo", "db"),
    "toPorts": ([{"port": "80", "protocol": "TCP"}],),
    "matchLabels": ({"app": "web"},),
    "exportCreationTimestamp": ("2026-01-01T00:00:00Z",),
    "startTime": ("2026-05-31T00:00:00Z",),
    "ports": (
        [{"name": "http", "port": 80, "protocol": "TCP"}],
        [{"port": 80}, {"name": "dns", "port": 53, "protocol": "UDP"}],
    ),
    "parentRefs": (
        [{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "echo"}],
        [{"group": "", "kind": "Service", "name": "echo"}],
        [{"group": "", "kind": "Service", "name": "echo", "namespace": "demo"}],
    ),
    "backendRefs": (
        [{"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "echo", "port": 80}],
        [{"name": "echo", "port": 80}, {"name": "db", "port": 80, "weight": 3}],
        [{"group": "isthmus.io", "kind": "Cluster", "name": "c2"}],
    ),
    "hostnames": ([],),
    "network": ("", "c3"),
    "gateways": (["172.30.3.11:15443"], ["172.30.3.11:15443", "[fd00:3::b]:15443"]),
    "app_protocol": ("http",),
    "type": ("Exact", "PathPrefix", "ClusterSetIP", "ClusterIP", "RequestHeaderModifier", "ReplaceFullPath"),
    "filters": ([],),
    "method": ("GET", {"service": "a.B", "method": "C"}),
    "queryParams": ([],),
}
"""Valid values of fields by name. Without them nothing behind the first check is reached."""
PART: Final = 0.6
"""Part of the values that are usual ones, where a field has some."""
WRONG: Final = 0.003
"""Part of the values that have another type than their field."""


RULES: Final[dict[str, Any]] = {"HTTPRoute": HttpRule, "GRPCRoute": GrpcRule, "TCPRoute": L4Rule, "UDPRoute": L4Rule}
"""Rules of routes, which their objects contain as undecoded JSON."""

_types: dict[Any, types.Type] = {}


def _type(struct: Any) -> types.Type:
    if struct not in _types:
        _types[struct] = types.type_info(struct)
    return _types[struct]


class Hostile:
    """A source of objects and records that follows from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def obj(self, kind: Kind[Any], version: str) -> bytes:
        """An object of a kind. Names repeat, so that objects refer to each other, replace each other and go."""
        body = self._struct(_type(kind.struct), 0)
        meta = body.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        meta |= {"name": self._random.choice(NAMES), "uid": f"u{self._random.randrange(9)}", "resourceVersion": "1"}
        meta["creationTimestamp"] = meta.get("creationTimestamp") or "2026-01-01T00:00:00Z"
        if kind.namespaced:
            meta["namespace"] = self._random.choice(NAMESPACES)
        if (rule := RULES.get(kind.kind)) and isinstance(spec := body.setdefault("spec", {}), dict):
            spec["rules"] = [self._struct(_type(rule), 1) for _ in range(self._size())]
        return msgspec.json.encode(body | {"apiVersion": version, "kind": kind.kind, "metadata": meta})

    def record(self, kind: str, cluster: str, name: str) -> bytes:
        """A record of a peer for a service. Most have the right name, or nothing behind the first check is reached."""
        struct = exports._Export if kind == "serviceexports" else endpoints.Record
        body = self._struct(_type(struct), 0)
        namespace, _, short = name.partition("/")
        if self._random.random() > WRONG:
            body |= {"cluster": cluster, "namespace": namespace, "name": short}
        if kind == "serviceexports" and self._random.random() > WRONG:
            body["exportCreationTimestamp"] = self._random.choice(TEXTS[-12:])
        return self._cut(msgspec.json.encode(body))

    def description(self) -> bytes:
        """What a peer says about itself."""
        return self._cut(msgspec.json.encode(self._struct(_type(identity.Description), 0)))

    def refusals(self) -> bytes:
        """What a peer says about records of ours."""
        return self._cut(msgspec.json.encode(self._struct(_type(refusals._Refusals), 0)))

    def question(self, question: bytes) -> bytes:
        """A packet to a name server: a question in which some bytes are others, too many or too few."""
        draw, packet = self._random, bytearray(question)
        for _ in range(draw.choice((0, 1, 1, 2, 5))):
            place = draw.randrange(len(packet) + 1)
            match draw.randrange(6):
                case 0:
                    del packet[place:]
                case 1:
                    packet[place:place] = draw.randbytes(draw.choice((1, 2, 12, 300)))
                case 2:
                    packet[place:place] = bytes([0xC0, draw.randrange(256)])  # a pointer
                case 3:
                    packet[place : place + 2] = draw.choice((b"\xff\xff", b"\x00\x00", b"\x00\x29", b"\x3f"))
                case _:
                    packet[place : place + 1] = draw.randbytes(1)
        return bytes(packet)

    def _cut(self, raw: bytes) -> bytes:
        return raw if self._random.random() > WRONG else raw[: self._random.randrange(len(raw))]

    def spoiled(self, body: Any, changes: int = 1) -> Any:
        """A copy of an object in which some values, at any depth, are hostile ones."""
        copy = msgspec.json.decode(msgspec.json.encode(body))
        for _ in range(changes):
            node, key = self._place(copy)
            node[key] = self._random.choice(
                (self._random.choice(TEXTS), self._random.choice(TEXTS), self._random.choice(NUMBERS), None, [], {})
            )
        return copy

    def _place(self, body: Any) -> tuple[Any, Any]:
        """A random container within an object, and one of its keys."""
        node = body
        while True:
            keys = [*node] if isinstance(node, dict) else [*range(len(node))]
            key = self._random.choice(keys)
            inner = node[key]
            if not isinstance(inner, dict | list) or not inner or self._random.random() < 0.1:
                return node, key
            node = inner

    def _struct(self, described: types.Type, depth: int) -> Any:
        assert isinstance(described, types.StructType)
        absent = 0.25 if depth < 3 else 0.5
        draw = self._random
        found = {}
        for field in described.fields:
            usual = USUAL.get(field.encode_name, ())
            if usual and draw.random() < PART:
                found[field.encode_name] = draw.choice(usual)
            elif field.required or draw.random() > absent:
                found[field.encode_name] = self.value(field.type, depth + 1)
        return found

    def value(self, described: types.Type, depth: int) -> Any:
        """A value of a type, or now and then of another."""
        draw = self._random
        if draw.random() < WRONG:
            return draw.choice((None, True, [], {}, "x", 7, [[]], {"a": {"b": 1}}, 1.5, *TEXTS[:3]))
        match described:
            case types.Metadata(type=inner):
                return self.value(inner, depth)
            case types.StructType():
                return self._struct(described, depth)
            case types.UnionType(types=several):
                return self.value(draw.choice(several), depth)
            case types.BoolType():
                return draw.random() < 0.5
            case types.IntType():
                return draw.choice(NUMBERS)
            case types.FloatType():
                return draw.choice((0.0, 1e308, -1.0, 0.5, *NUMBERS[:8]))
            case types.LiteralType(values=words):
                return draw.choice((*words, *draw.choices(TEXTS, k=2)))
            case types.VarTupleType(item_type=item) | types.ListType(item_type=item) | types.SetType(item_type=item):
                return [self.value(item, depth + 1) for _ in range(self._size())]
            case types.DictType(value_type=value):
                return {draw.choice(TEXTS): self.value(value, depth + 1) for _ in range(self._size())}
            case types.NoneType():
                return None
            case types.AnyType() | types.RawType():
                return draw.choice((None, {}, [], "x", {"type": "Ready", "status": draw.choice(TEXTS)}))
            case _:
                return draw.choice(TEXTS)

    def _size(self) -> int:
        return self._random.choices((0, 1, 2, 3, 40), (20, 50, 20, 9, 1))[0]
