"""Envoy: what its discovery service gives it, the server of that, and the process itself.

What belongs here: how routes and plans become xDS resources (pure), the protocol that brings them to Envoy, and the
program's life. What never does: which backends a call may go to, and with which share; that is ``loadbalancer``'s, and
Envoy is given the result.

    attachment.py    which routes count for a Service, in which order
    route_objects.py what came of each route, as the status of its object
    refusals.py      routes that the node's Envoy refused, as its report
    explain.py       which rule gets a request, and why
    routing.py       routes as Envoy's routes
    clusters.py      plans as Envoy's clusters and endpoints
    listeners.py     listeners of HTTP
    derived.py       the derived tables of a node's Envoy
    ports.py         the ports that its listeners get
    messages.py      Envoy's messages, by name, from descriptors
    resources.py     rows of the table ``xds``, from fields
    rules.py         what Envoy would refuse, found before it is sent
    delta.py         the protocol as pure state: what an Envoy has, and what it gets next
    serving.py       a gRPC method on a unix socket, for Envoy
    ads.py           the server of the protocol
    bootstrap.py     what an Envoy starts with
    binary.py        finds and checks the program
    process.py       one Envoy
    filtering.py     drops what reaches its listeners from outside the node
    supervisor.py    keeps one running for a directory, and replaces it

For a node's Envoy and for a gateway's alike: fill the table ``xds``, run an :class:`AdsServer`, and have a
:class:`Wanted` write a bootstrap to the directory while an Envoy is wanted. ``isthmus envoy`` runs a
:class:`Supervisor` for that directory, in a unit of its own.
"""

from isthmus.proxy.ads import AdsServer, AdsStats
from isthmus.proxy.binary import NoEnvoyError
from isthmus.proxy.bootstrap import Wanted
from isthmus.proxy.derived import Listening, XdsSource, derived
from isthmus.proxy.resources import address, resource
from isthmus.proxy.supervisor import Settings, Supervisor, SupervisorStats

__all__ = [
    "AdsServer",
    "AdsStats",
    "Listening",
    "NoEnvoyError",
    "Settings",
    "Supervisor",
    "SupervisorStats",
    "Wanted",
    "XdsSource",
    "address",
    "derived",
    "resource",
]
