"""The own cluster's endpoints of an exported Service, mirrored behind its derived Service slice by slice.

Only ports that the clusterset agrees on are offered: a call to the import's port 80 must not reach what this cluster
alone calls so.
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.desired import Draft
from isthmus.mcs import derived_services, slices
from isthmus.mcs.exports import agreed_ports, agreeing
from isthmus.mcs.view import View
from isthmus.mcs.words import SOURCE_SLICE
from isthmus.model.hosts import family
from isthmus.model.mcs import Merged
from isthmus.model.names import split
from isthmus.model.services import Endpoint, EndpointSet


def mirrored(view: View, merged: Merged) -> Iterator[Draft]:
    """The slices wanted for the endpoints of the own cluster, where it exports the Service."""
    if view.own is None or view.own.export is None:
        return
    agreed = agreed_ports(view.own.export, merged)
    behind = derived_services.behind(view, merged, cluster=view.settings.cluster)
    taken: set[str] = set()
    for each in view.sets:
        for suffix, endpoints in _cut(view, each, agreed):
            name = mirror_name(view, each.part, suffix)
            if name in taken:
                name = slices.named(name, slices.digest(each.part))
            taken.add(name)
            yield slices.endpoint_slice(behind, endpoints, name=name, annotations={SOURCE_SLICE: each.part})


def mirror_name(view: View, source: str, suffix: str = "") -> str:
    """What the mirror of a slice is called: the derived Service's name, then what told the source from its siblings."""
    rest = source.removeprefix(split(view.name)[1]).lstrip("-.")
    return slices.named(split(view.derived)[1], rest, suffix)


def _cut(view: View, source: EndpointSet, agreed: frozenset[str]) -> Iterator[tuple[str, list[Endpoint]]]:
    """The endpoints of one source as they are mirrored: one part, unless it is larger than any we write.

    A slice cannot change its family, but one of the other may be made under its name: mirrors of both do not share one.
    """
    kept = [each for e in source.endpoints if (each := agreeing(e, agreed)) and family(e.address) in view.families]
    for (of, _), endpoints in slices.group(kept).items():
        for suffix, part in slices.parts(endpoints):
            yield (suffix if of == "IPv4" else f"{of.lower()}{suffix}"), part
