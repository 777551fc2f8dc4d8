"""The own cluster's endpoints of an exported Service, mirrored behind its derived Service slice by slice.

Only ports that the clusterset agrees on are offered: a call to the import's port 80 must not reach what this cluster
alone calls so.
"""

from __future__ import annotations

from collections.abc import Iterator

from isthmus.mcs import slices
from isthmus.mcs.exports import agreeing
from isthmus.mcs.view import View
from isthmus.mcs.words import SOURCE_SLICE
from isthmus.model.hosts import family
from isthmus.model.services import Endpoint, EndpointSet, Export


def mirrored(view: View) -> Iterator[slices.Part]:
    """The parts wanted for the endpoints of the own cluster, where it exports the Service."""
    cluster = view.settings.cluster
    agreed = view.agreed.get(cluster)
    if agreed is None:
        return
    taken: set[str] = set()
    for endpoint_set in view.sets:
        for suffix, endpoints in _cut(endpoint_set, *agreed, view.families):
            name = mirror_name(endpoint_set.part, suffix, service=view.short, derived=view.derived_short)
            if name in taken:
                name = slices.named(name, slices.digest(endpoint_set.part))
            taken.add(name)
            yield slices.Part(name, cluster, endpoints, annotations={SOURCE_SLICE: endpoint_set.part})


def mirror_name(source: str, suffix: str, *, service: str, derived: str) -> str:
    """The name of a slice's mirror: the derived Service's name, then what the source's name adds to the Service's."""
    return slices.named(derived, source.removeprefix(service).lstrip("-."), suffix)


def _cut(
    source: EndpointSet, export: Export, agreed: frozenset[str], families: tuple[str, ...]
) -> Iterator[tuple[str, list[Endpoint]]]:
    """The endpoints of one source as they are mirrored: one part, unless it is larger than any we write.

    A slice cannot change its family, but one of the other may be made under its name: mirrors of both do not share one.
    """
    kept = [each for e in source.endpoints if (each := agreeing(e, export, agreed)) and family(e.address) in families]
    for (of, _), endpoints in slices.group(kept).items():
        for suffix, part in slices.parts(endpoints):
            yield (suffix if of == "IPv4" else f"{of.lower()}{suffix}"), part
