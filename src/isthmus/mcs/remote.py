"""Other clusters' endpoints as EndpointSlices, for readers of those: kube-proxy, CoreDNS, gateways.

Behind a derived Service stand the endpoints of every cluster that exports it; behind a Service that is global by
annotation, those of the Services of the same name. Never those of a cluster on another network: their pods cannot be
reached from here, and their addresses may be in use here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from msgspec import structs

from isthmus.mcs import slices
from isthmus.mcs.exports import agreeing
from isthmus.mcs.view import View
from isthmus.model.hosts import family
from isthmus.model.names import ClusterName
from isthmus.model.services import Endpoint, Port, Service


def of_import(view: View) -> Iterator[slices.Part]:
    """The parts wanted behind the derived Service for each cluster that exports it, but our own."""
    for endpoint_set in view.published:
        agreed = view.agreed.get(endpoint_set.cluster)
        # A record may outlive its export for a moment: it does not bring it back.
        if agreed is not None and endpoint_set.service == view.derived:
            kept = [found for e in endpoint_set.endpoints if (found := agreeing(e, *agreed)) is not None]
            yield from _parts(view.derived_short, endpoint_set.cluster, kept, view.families)


def of_global(view: View, service: Service) -> Iterator[slices.Part]:
    """The parts wanted behind a Service that is global by annotation, of every cluster's Service of its name."""
    families = service.families or view.settings.families
    for endpoint_set in view.published:
        if endpoint_set.service == view.name:
            yield from _parts(view.short, endpoint_set.cluster, endpoint_set.endpoints, families)


def _parts(
    service: str, cluster: ClusterName, endpoints: Iterable[Endpoint], families: tuple[str, ...]
) -> Iterator[slices.Part]:
    # Without nodes: another cluster's node may be called as one of ours.
    kept = [
        structs.replace(endpoint, node="", ports=ports)
        for endpoint in endpoints
        if family(endpoint.address) in families
        for ports in _with_distinct_names(endpoint.ports)
    ]
    for alike, group in slices.group(kept).items():
        for suffix, part in slices.parts(group):
            name = slices.named(service, cluster, slices.digest(repr(alike))[:6], suffix)
            yield slices.Part(name, cluster, part)


def _with_distinct_names(ports: tuple[Port, ...]) -> list[tuple[Port, ...]]:
    """Split the ports of an endpoint into those of one slice each: a slice has a name once."""
    split: list[dict[str, Port]] = [{}]
    for port in ports:
        target = next((names for names in split if port.name not in names), None)
        if target is None:
            split.append(target := {})
        target[port.name] = port
    return [tuple(names.values()) for names in split]
