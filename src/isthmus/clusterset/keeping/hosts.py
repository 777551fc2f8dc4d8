"""Names and addresses of the own etcd, for its certificate. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from isthmus.kube.objects.core import Service

SERVICES: Final = ("isthmus-etcd", "isthmus-etcd-peers")
"""Services of deploy/etcd: for the own cluster and for the others. Where islands' gateways forward to the etcd, clients
verify the name of ``etcd_name`` instead of an address."""
REPLICAS: Final = ("isthmus-etcd-0", "isthmus-etcd-1", "isthmus-etcd-2")
"""Services of deploy/replicated, one for each etcd. Certificates have their names always, so that the component can be
added to a cluster whose certificates are in use."""
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
NO_ADDRESS: Final = ("", "None")


def hosts(services: Iterable[Service], more: Iterable[str] = ()) -> list[str]:
    """Hosts that the certificate must cover: of each Service its names and addresses, ``more``, and loopback."""
    named = (host for service in services for host in _hosts(service))
    return [*dict.fromkeys((*named, *more, *LOOPBACK))]


def names(service: str, namespace: str) -> tuple[str, ...]:
    """DNS names of a Service as pods of its cluster use them, but for those with the cluster's domain."""
    return (service, f"{service}.{namespace}", f"{service}.{namespace}.svc", f"{service}.{namespace}.svc.cluster.local")


def _hosts(service: Service) -> Iterator[str]:
    spec, ingress = service.spec, service.status.load_balancer
    yield from names(service.metadata.name, service.metadata.namespace)
    yield from (each for each in (spec.cluster_ip, *(spec.cluster_ips or ())) if each not in NO_ADDRESS)
    yield from spec.external_ips or ()
    for address in (ingress.ingress if ingress else None) or ():
        yield from filter(None, (address.ip, address.hostname))
