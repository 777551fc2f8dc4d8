"""Other clusters' endpoints as EndpointSlices, for who reads those: kube-proxy, CoreDNS, gateways.

Behind a derived Service stand the endpoints of every cluster that exports it; behind a Service that is global by
annotation, those of the Services of the same name. Never those of a cluster on another network: their pods cannot be
reached from here, and their addresses may be somebody else's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from isthmus.desired import Draft
from isthmus.mcs import derived_services, slices
from isthmus.mcs.exports import agreed_ports, agreeing, annotated, takes_endpoints
from isthmus.mcs.view import View
from isthmus.mcs.words import SYNC_SLICES
from isthmus.model.hosts import family
from isthmus.model.mcs import Merged
from isthmus.model.names import split
from isthmus.model.services import Endpoint, EndpointSet, Service


def of_import(view: View, merged: Merged) -> Iterator[Draft]:
    """The slices wanted behind the derived Service for each cluster that exports it, but our own."""
    if not annotated(merged.annotations, SYNC_SLICES, default=True):
        return
    for each in view.remote(view.derived):
        export = view.exports.get(each.cluster)
        if export is None:
            continue  # a record may outlive the export for a moment: it does not bring it back
        agreed = agreed_ports(export, merged)
        behind = derived_services.behind(view, merged, cluster=each.cluster)
        yield from _slices(view, behind, each, keep=partial(agreeing, agreed=agreed))


def of_global(view: View, service: Service) -> Iterator[Draft]:
    """The slices wanted behind a Service that takes part by annotation, of every cluster's Service of its name."""
    if not takes_endpoints(service) or not annotated(service.annotations, SYNC_SLICES, default=service.headless):
        return
    for each in view.remote(view.name):
        behind = slices.Behind(
            service=view.name,
            uid=service.uid,
            cluster=each.cluster,
            labels=dict(service.labels),
            headless=service.headless,
        )
        yield from _slices(view, behind, each, keep=lambda e: e)


def _slices(
    view: View, behind: slices.Behind, source: EndpointSet, *, keep: Callable[[Endpoint], Endpoint | None]
) -> Iterator[Draft]:
    families = view.families if behind.service == view.derived else _families(view)
    kept = [each for e in source.endpoints if (each := keep(e)) and family(e.address) in families]
    for alike, endpoints in slices.group(kept).items():
        for suffix, part in slices.parts(endpoints):
            name = slices.named(split(behind.service)[1], source.cluster, slices.digest(repr(alike))[:6], suffix)
            yield slices.endpoint_slice(behind, part, name=name)


def _families(view: View) -> tuple[str, ...]:
    return (view.service.families if view.service is not None else ()) or view.settings.families
