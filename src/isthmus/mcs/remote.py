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
from isthmus.model.services import Endpoint, Service


def of_import(view: View) -> Iterator[slices.Part]:
    """The parts wanted behind the derived Service for each cluster that exports it, but our own."""
    for each in view.published:
        agreed = view.agreed.get(each.cluster)
        # A record may outlive its export for a moment: it does not bring it back.
        if agreed is not None and each.service == view.derived:
            kept = [found for e in each.endpoints if (found := agreeing(e, agreed)) is not None]
            yield from _parts(view.derived_short, each.cluster, kept, view.families)


def of_global(view: View, service: Service) -> Iterator[slices.Part]:
    """The parts wanted behind a Service that is global by annotation, of every cluster's Service of its name."""
    families = service.families or view.settings.families
    for each in view.published:
        if each.service == view.name:
            yield from _parts(view.short, each.cluster, each.endpoints, families)


def _parts(
    service: str, cluster: ClusterName, endpoints: Iterable[Endpoint], families: tuple[str, ...]
) -> Iterator[slices.Part]:
    # Without nodes: another cluster's node may be called as one of ours.
    kept = [structs.replace(each, node="") for each in endpoints if family(each.address) in families]
    for alike, group in slices.group(kept).items():
        for suffix, part in slices.parts(group):
            name = slices.named(service, cluster, slices.digest(repr(alike))[:6], suffix)
            yield slices.Part(name, cluster, part)
