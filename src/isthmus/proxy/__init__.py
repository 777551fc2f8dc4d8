"""Runs Envoy: its xDS resources, its discovery service, and the process itself.

What belongs here: the conversion of routes and plans to xDS resources (pure), the discovery protocol, and the lifecycle
of the process. What never does: the choice of backends and their shares of the calls, which ``loadbalancer`` makes and
Envoy only applies.

    protocols.py     ports that speak HTTP
    attachment.py    routes of a Service and their precedence
    port_routes.py   the table of routes by port and callers
    listener_shares.py  ports that get a listener, and its address
    route_parts.py   each route, encoded once
    route_objects.py status of each route
    refusals.py      the node's report of routes that its Envoy refused
    explain.py       the rule that matches a request, and the reason
    routing.py       routes as Envoy's routes
    backend_tls.py   TLS to backends, by policies
    backend_tls_objects.py  status of each BackendTLSPolicy
    clusters.py      plans as Envoy's clusters and endpoints
    listeners.py     HTTP listeners
    tracing.py       traces of requests
    derived.py       the derived tables of a node's Envoy
    ports.py         fair shares of a node's ports
    messages.py      Envoy's messages, by name, from descriptors
    resources.py     rows of the table ``xds``
    rules.py         validation of messages before they are sent
    delta.py         the delta xDS protocol as pure state
    serving.py       a gRPC method on a unix socket
    ads.py           the discovery server
    bootstrap.py     the bootstrap configuration
    binary.py        finds and checks the program
    process.py       one Envoy process
    probing.py       probes of the node's Envoy
    filtering.py     drops packets from outside the node
    supervisor.py    keeps an Envoy running for a directory, and replaces it

To run an Envoy for a node or a gateway, fill the table ``xds``, run an :class:`AdsServer`, and let a
:class:`BootstrapFile` write a bootstrap to the directory while an Envoy is needed. ``isthmus envoy`` runs a
:class:`Supervisor` for that directory, in a unit of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus import lazily
from isthmus.proxy.derived import XdsSource, derived

if TYPE_CHECKING:
    from isthmus.proxy.ads import AdsServer, AdsStats
    from isthmus.proxy.binary import NoEnvoyError
    from isthmus.proxy.bootstrap import BootstrapFile
    from isthmus.proxy.listener_shares import Listening
    from isthmus.proxy.probing import Prober
    from isthmus.proxy.resources import address, resource
    from isthmus.proxy.supervisor import Settings, Supervisor, SupervisorStats
else:
    __getattr__ = lazily.names(
        __name__,
        {
            "ads": ("AdsServer", "AdsStats"),
            "binary": ("NoEnvoyError",),
            "bootstrap": ("BootstrapFile",),
            "listener_shares": ("Listening",),
            "probing": ("Prober",),
            "resources": ("address", "resource"),
            "supervisor": ("Settings", "Supervisor", "SupervisorStats"),
        },
    )

__all__ = [
    "AdsServer",
    "AdsStats",
    "BootstrapFile",
    "Listening",
    "NoEnvoyError",
    "Prober",
    "Settings",
    "Supervisor",
    "SupervisorStats",
    "XdsSource",
    "address",
    "derived",
    "resource",
]
