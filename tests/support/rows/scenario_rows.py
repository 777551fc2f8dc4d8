"""The words of scenarios: a line is an object of some source, and becomes the rows that its source would make of it.

service demo/echo ip=10.96.0.7 ports=http:80,dns:53/UDP,web:80>30080 type=NodePort …
slice   demo/echo/a 10.1.1.1 10.1.1.2!terminating 10.1.1.3@n1 10.1.1.4%z1 ports=http:8080
record  demo/echo/c2 10.2.1.1                    what cluster c2 publishes of a service
import  demo/echo ip=10.96.0.7 ports=http:80
node    n1 172.30.1.11 zone=z1
pod     demo/near 10.1.1.9 labels=app:near ports=http:8080 hostports=8080:80,53:53/UDP notready
local   demo/lrp service=demo/echo select=app:near backend=:8080      or address=… ports=…
proxy   demo/echo/demo/route at=15001 ports=80   by the route demo/route
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from rows.balancing_world import make

from isthmus.kube.objects import core
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.redirects import Requirement
from isthmus.model.services import Condition, Endpoint, Node, Port
from isthmus.sources.host_ports import host_ports

Options = dict[str, str]
CONDITIONS = {
    "": Condition.READY,
    "terminating": Condition.TERMINATING,
    "notready": Condition.NOT_READY,
    "gone": Condition.GONE,
}


def parse(line: str) -> list[Any]:
    """The rows of an object."""
    kind, name, *words = shlex.split(line)
    options = {key: value or "yes" for key, _, value in (word.partition("=") for word in words if _is_option(word))}
    values = [word for word in words if not _is_option(word)]
    return list(KINDS[kind](name, values, options))


def _is_option(word: str) -> bool:
    return "=" in word or word.isalpha()


def split(text: str | None) -> tuple[str, ...]:
    return tuple(part for part in (text or "").split(",") if part)


def ports(text: str | None) -> tuple[Port, ...]:
    """``name:port/PROTOCOL>nodePort``, all but the number optional."""
    return tuple(_port(part) for part in split(text))


def _port(text: str) -> Port:
    rest, _, node_port = text.partition(">")
    rest, _, protocol = rest.partition("/")
    name, colon, number = rest.rpartition(":")
    return Port(name if colon else "", int(number), protocol or "TCP", node_port=int(node_port or 0))  # type: ignore[arg-type]


def labels(text: str | None) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((key, value) for key, _, value in (part.partition(":") for part in split(text))))


def service(name: str, values: list[str], options: Options) -> Iterable[Any]:
    fields = {
        "cluster_ips": split(options.get("ip")),
        "external_ips": split(options.get("external")),
        "load_balancer_ips": split(options.get("lb")),
        "ports": ports(options.get("ports", "http:80")),
        "type": options.get("type", "ClusterIP"),
        "headless": "headless" in options,
        "affinity": "ClientIP" if "affinity" in options else "None",
        "affinity_timeout": int(options.get("affinity", 10800)),
        "internal_policy": options.get("internal", "Cluster"),
        "external_policy": options.get("externalpolicy", "Cluster"),
        "distribution": options.get("prefer", ""),
        "created": options.get("created", ""),
        "uid": options.get("uid", ""),
        "source": options.get("source", "kubernetes"),
    }
    notes = [("service.cilium.io/global", "true")] if "global" in options else []
    notes += [("service.cilium.io/affinity", options["first"])] if "first" in options else []
    notes += [("service.cilium.io/lb-algorithm", options["algorithm"])] if "algorithm" in options else []
    name, imported = _standing_for(name)
    yield make.service(name, annotations=tuple(sorted(notes)), import_of=imported, **fields)


def _standing_for(name: str) -> tuple[str, ServiceName]:
    """``derived:demo/echo`` is the derived Service of that import."""
    imported = ServiceName(name.removeprefix("derived:"))
    return (derived(imported), imported) if name.startswith("derived:") else (name, ServiceName(""))


def endpoint(text: str, offered: tuple[Port, ...]) -> Endpoint:
    rest, _, condition = text.partition("!")
    rest, _, zones = rest.partition("%")
    address, _, node = rest.partition("@")
    return Endpoint(address, offered, CONDITIONS[condition], node=node, for_zones=split(zones.replace("+", ",")))


def slice_(name: str, values: list[str], options: Options) -> Iterable[Any]:
    of, _, part = name.rpartition("/")
    yield _endpoints(of, "c1", part, options.get("source", "kubernetes"), values, options)


def record(name: str, values: list[str], options: Options) -> Iterable[Any]:
    of, _, cluster = name.rpartition("/")
    yield _endpoints(of, cluster, "record", "clusterset", values, options)


def _endpoints(of: str, cluster: str, part: str, source: str, values: list[str], options: Options) -> Any:
    offered = ports(options.get("ports", "http:8080"))
    found = [endpoint(value, offered) for value in values]
    return make.endpoints(cluster, *found, service=_standing_for(of)[0], part=part, source=source)


def import_(name: str, values: list[str], options: Options) -> Iterable[Any]:
    yield make.imported(name, ips=split(options.get("ip")), ports=ports(options.get("ports", "http:80")))


def node(name: str, values: list[str], options: Options) -> Iterable[Any]:
    yield Node(name, tuple(values), zone=options.get("zone", ""))


def pod(name: str, values: list[str], options: Options) -> Iterable[Any]:
    yield make.pod(
        name,
        addresses=tuple(values),
        labels=labels(options.get("labels")),
        ports=ports(options.get("ports")),
        ready="notready" not in options,
        phase=options.get("phase", "Running"),
    )
    for found in host_ports(_wire(name, values, options), cluster=ClusterName("c1")):
        yield from found


def _wire(name: str, addresses: list[str], options: Options) -> core.Pod:
    namespace, _, short = name.partition("/")
    listed = [_host_port(part, options) for part in split(options.get("hostports"))]
    wire = {
        "metadata": {"name": short, "namespace": namespace, "uid": options.get("uid", "1")},
        "spec": {"nodeName": "n1", "containers": [{"ports": listed}]},
        "status": {"phase": options.get("phase", "Running"), "podIPs": [{"ip": each} for each in addresses]},
    }
    return msgspec.convert(wire, core.Pod)


def _host_port(text: str, options: Options) -> dict[str, Any]:
    numbers, _, protocol = text.partition("/")
    host, _, own = numbers.partition(":")
    at = {"hostIP": options["at"]} if "at" in options else {}
    return {"hostPort": int(host), "containerPort": int(own), "protocol": protocol or "TCP", **at}


def local(name: str, values: list[str], options: Options) -> Iterable[Any]:
    yield make.local(
        name,
        options.get("service", ""),
        address=options.get("address", ""),
        ports=ports(options.get("ports")),
        selector=tuple(Requirement(key, "In", (value,)) for key, value in labels(options.get("select", "app:near"))),
        backend_ports=ports(options.get("backend", "8080")),
        skip_from_backend="skip" in options,
        created=options.get("created", ""),
    )


def proxy(name: str, values: list[str], options: Options) -> Iterable[Any]:
    namespace, short, owner = name.split("/", 2)
    of = f"{namespace}/{short}"
    numbers = map(int, split(options.get("ports")))
    yield make.proxied(
        *numbers,
        service=_standing_for(of)[0],
        owner=f"HTTPRoute {owner}",
        at=int(options["at"]),
        created=options.get("created", ""),
    )


def probe(name: str, values: list[str], options: Options) -> Iterable[Any]:
    namespace, short, cluster, address = name.split("/")
    yield make.probe(address, healthy="dead" not in options, cluster=cluster, service=f"{namespace}/{short}")


KINDS: dict[str, Callable[[str, list[str], Options], Iterable[Any]]] = {
    "service": service,
    "slice": slice_,
    "record": record,
    "import": import_,
    "node": node,
    "pod": pod,
    "local": local,
    "proxy": proxy,
    "probe": probe,
}
