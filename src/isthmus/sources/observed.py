"""Objects of the kinds that Isthmus writes, in their present state on the API server: rows of ``observed``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from isthmus import kube
from isthmus.desired import is_ours
from isthmus.model.names import ServiceName
from isthmus.model.objects import Observed
from isthmus.reflector import Event, Sink


def observed(kind: kube.Kind[Any], *, foreign: bool) -> Callable[[kube.Object], Observed | None]:
    """Return the conversion of objects of a kind. ``foreign`` includes objects without our annotation."""

    def convert(wire: kube.Object) -> Observed | None:
        meta = wire.metadata
        if not (foreign or is_ours(meta)):
            return None
        return Observed(
            kind=kind.kind,
            name=ServiceName(f"{meta.namespace}/{meta.name}"),
            uid=meta.uid,
            version=meta.resource_version,
            body=msgspec.json.encode(wire),
        )

    return convert


class Both:
    """Two sinks of one store, so that each object is watched once."""

    def __init__(self, first: Sink[Any], other: Sink[Any]) -> None:
        self._sinks = (first, other)

    def __repr__(self) -> str:
        return " and ".join(map(repr, self._sinks))

    async def replace(self, items: Mapping[str, Any], *, partial: bool) -> None:
        """Pass a list on to both sinks."""
        for sink in self._sinks:
            await sink.replace(items, partial=partial)

    def apply(self, events: Sequence[Event[Any]]) -> None:
        """Pass changes on to both sinks."""
        for sink in self._sinks:
            sink.apply(events)
