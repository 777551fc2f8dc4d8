"""VIPs on loopback addresses, in a lab without namespaces: an Envoy of the cluster listens on each and passes calls on.

It is given its listeners and clusters by files, which it reads anew when another is moved in their place. Only TCP is
passed on. Servers see the node's address. A VIP that is sticky or hashed spreads by the caller's address: the pod's
where the caller binds that, as the lab's own does, else 127.0.0.1.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus_lab.layout import Node
from isthmus_lab.node.services import Destination, Vip

OPTIONS: Final = ("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
ATTEMPTS: Final = 3
"""Backends that are tried in one call."""
TYPE: Final = "type.googleapis.com/envoy."


def bootstrap_of(node: Node) -> Path:
    """The file that an Envoy is started with."""
    return _directory(node) / "bootstrap.json"


def admin_of(node: Node) -> Path:
    """The socket where an Envoy reports what it has: in a directory of this user, unlike an address of loopback."""
    return _directory(node) / "admin.sock"


def begin(node: Node) -> None:
    """Write the files of an Envoy without listeners."""
    _directory(node).mkdir(parents=True, exist_ok=True)
    _put(bootstrap_of(node), _bootstrap(node))
    write(node, ())


def write(node: Node, vips: Sequence[Vip]) -> None:
    """Have a node's Envoy listen on these. Clusters precede listeners: what listens knows where to pass calls on to."""
    _put(_directory(node) / "clusters.json", resources(clusters(node, vips)))
    _put(_directory(node) / "listeners.json", resources(listeners(node, vips)))


def resources(entries: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The file of some resources."""
    return {"resources": list(entries)}


def listeners(node: Node, vips: Iterable[Vip]) -> Iterator[dict[str, Any]]:
    """A listener of each VIP."""
    for vip in _passed(vips):
        hashed: dict[str, Any] = {"hash_policy": [{"source_ip": {}}]} if _by_caller(vip) else {}
        proxy = {"stat_prefix": "calls", "cluster": _name(vip), "max_connect_attempts": ATTEMPTS, **hashed}
        typed = {"@type": f"{TYPE}extensions.filters.network.tcp_proxy.v3.TcpProxy", **proxy}
        yield {
            "@type": f"{TYPE}config.listener.v3.Listener",
            "name": _name(vip),
            "address": _address(vip.address or node.address, node.cluster.lab.port(vip.port)),
            "filter_chains": [{"filters": [{"name": "envoy.filters.network.tcp_proxy", "typed_config": typed}]}],
        }


def clusters(node: Node, vips: Iterable[Vip]) -> Iterator[dict[str, Any]]:
    """A cluster of each VIP: its targets, with weights."""
    for vip in _passed(vips):
        endpoints = [
            {"endpoint": {"address": _address(*target)}, "load_balancing_weight": weight}
            for target, weight in weighted(vip)
        ]
        yield {
            "@type": f"{TYPE}config.cluster.v3.Cluster",
            "name": _name(vip),
            "connect_timeout": "1s",
            "lb_policy": "MAGLEV" if _by_caller(vip) else "ROUND_ROBIN",
            "load_assignment": {"cluster_name": _name(vip), "endpoints": [{"lb_endpoints": endpoints}]},
            "upstream_bind_config": {"source_address": {"address": node.address, "port_value": 0}},
        }


def weighted(vip: Vip) -> Iterator[tuple[Destination, int]]:
    """The targets of a VIP and their weights."""
    return zip(vip.targets, vip.weights or (1,) * len(vip.targets), strict=True)


def _passed(vips: Iterable[Vip]) -> Iterator[Vip]:
    return (vip for vip in vips if vip.protocol == "tcp")


def _by_caller(vip: Vip) -> bool:
    return vip.hashed or bool(vip.sticky)


def _name(vip: Vip) -> str:
    return f"{vip.address}:{vip.port}"


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}


def _bootstrap(node: Node) -> dict[str, Any]:
    def source(file: str) -> dict[str, Any]:
        return {"path_config_source": {"path": str(_directory(node) / file)}, "resource_api_version": "V3"}

    return {
        "node": {"id": node.name, "cluster": node.cluster.name},
        "admin": {"address": {"pipe": {"path": str(admin_of(node)), "mode": 0o600}}},
        "dynamic_resources": {"cds_config": source("clusters.json"), "lds_config": source("listeners.json")},
    }


def _directory(node: Node) -> Path:
    return node.directory / "calls"


def _put(path: Path, content: dict[str, Any]) -> None:
    """Moved in its place, which Envoy waits for."""
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(content))
    part.replace(path)
