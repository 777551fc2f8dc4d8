"""What happens in the story of load balancing: rows that come and go, and who is reached after each step."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from isthmus.model import tables
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.redirects import Listener, LocalRedirect, ProxyRedirect, Requirement
from isthmus.model.services import Condition, Endpoint, EndpointSet, Pod, Port, Service
from isthmus.statedb import Table

OWN: Final = ClusterName("c1")
NODE: Final = "n1"
CART: Final = ServiceName("shop/cart")
INPUTS: Final = (
    tables.SERVICES,
    tables.ENDPOINT_SETS,
    tables.LOCAL_REDIRECTS,
    tables.PROXY_REDIRECTS,
    tables.PODS,
)
TABLES: Final[dict[type, Table[Any, Any]]] = {table.row: table for table in INPUTS}

Reached = dict[str, list[str]]
"""Address called → backends, as cluster/address:port."""


class Chapter(NamedTuple):
    """A step: what it is called, what it shows, what changes, and who is reached then."""

    name: str
    says: str
    puts: tuple[Any, ...]
    deletes: tuple[Any, ...]
    reached: Reached


def _service(source: str, **fields: Any) -> Service:
    shared = (("service.cilium.io/global", "true"),)
    return Service(
        name=CART,
        source=source,
        ports=(Port("http", 80), Port("admin", 81)),
        cluster_ips=("10.96.0.50",),
        annotations=shared,
        **fields,
    )


def _endpoints(cluster: str, source: str, *addresses: str, ending: bool = False) -> EndpointSet:
    ports = (Port("http", 8080), Port("admin", 8081))
    condition = Condition.TERMINATING if ending else Condition.READY
    part = "record" if source == "clusterset" else "slice"
    endpoints = tuple(Endpoint(address, ports, condition) for address in addresses)
    return EndpointSet(service=CART, cluster=ClusterName(cluster), source=source, part=part, endpoints=endpoints)


SERVICE: Final = _service("kubernetes")
NEAR: Final = _endpoints("c1", "kubernetes", "10.1.1.1")
FAR: Final = _endpoints("c2", "clusterset", "10.2.1.1")
OF_FILES: Final = _endpoints("c1", "files", "10.1.1.1")
PROXY: Final = ProxyRedirect(
    service=CART,
    owner="HTTPRoute shop/cart",
    listeners=(Listener("169.254.7.2", 15001),),
    created="2026-01-01T00:00:00Z",
)
POLICY: Final = LocalRedirect(
    name=ServiceName("shop/cache"),
    service=CART,
    ports=(Port("", 80),),
    selector=(Requirement("app", "In", ("cache",)),),
    backend_ports=(Port("", 3128),),
)
CACHE: Final = Pod(
    name="shop/cache-x",
    uid="1",
    node=NODE,
    addresses=("10.1.1.9",),
    ready=True,
    labels=(("app", "cache"),),
    ports=(Port("", 3128),),
)

EVERYTHING: Final = (SERVICE, NEAR, FAR, PROXY, POLICY, CACHE)

HTTP, ADMIN = "10.96.0.50:80/TCP", "10.96.0.50:81/TCP"
THROUGH: Final = ["c1/169.254.7.2:15001"]


def _both(*hosts: str) -> Reached:
    return {HTTP: [f"{host}:8080" for host in hosts], ADMIN: [f"{host}:8081" for host in hosts]}


BOTH: Final = _both("c1/10.1.1.1", "c2/10.2.1.1")

CHAPTERS: Final = (
    Chapter("endpoints before their service", "they wait: nobody is called, no map has an entry", (NEAR,), (), {}),
    Chapter("the service", "its endpoints are its own at once", (SERVICE,), (), _both("c1/10.1.1.1")),
    Chapter("a second source", "cluster c2 says what it has, and both sets are one", (FAR,), (), BOTH),
    Chapter(
        "an L7 redirect",
        "every port goes through the proxy of the node; the backends wait behind it",
        (PROXY,),
        (),
        {HTTP: THROUGH, ADMIN: THROUGH},
    ),
    Chapter(
        "a local redirect, before its pod",
        "without a pod that is ready it says nothing",
        (POLICY,),
        (),
        {HTTP: THROUGH, ADMIN: THROUGH},
    ),
    Chapter(
        "the pod",
        "local comes before proxy, for the one port that is meant",
        (CACHE,),
        (),
        {HTTP: ["c1/10.1.1.9:3128"], ADMIN: THROUGH},
    ),
    Chapter(
        "the L7 redirect ends first",
        "the other port is back where it was, the moment the row goes",
        (),
        (PROXY,),
        {HTTP: ["c1/10.1.1.9:3128"], ADMIN: BOTH[ADMIN]},
    ),
    Chapter("the local redirect ends", "the original is back: nobody had to keep it", (), (POLICY, CACHE), BOTH),
    Chapter(
        "hand-over: another source says the same",
        "files speak of c1's endpoints too; the better source is right, nothing changes",
        (OF_FILES,),
        (),
        BOTH,
    ),
    Chapter("hand-over: the first one stops", "the other surfaces with the same endpoint", (), (NEAR,), BOTH),
    Chapter(
        "graceful end",
        "what is terminating serves nobody while another is ready",
        (_endpoints("c1", "files", "10.1.1.1", ending=True),),
        (),
        _both("c2/10.2.1.1"),
    ),
    Chapter("the service ends", "its addresses are in no map; its endpoints wait", (), (SERVICE,), {}),
    Chapter("the endpoints end", "nothing is left", (), (OF_FILES, FAR), {}),
)
