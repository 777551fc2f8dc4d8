"""Objects of the kinds that Isthmus writes, as the API server has them: rows of ``observed``."""

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
    """The conversion of objects of a kind; those without our annotation are rows where ``foreign`` is true."""

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

    def __init__(self, one: Sink[Any], other: Sink[Any]) -> None:
        self._sinks = (one, other)

    def __repr__(self) -> str:
        return " and ".join(map(repr, self._sinks))

    async def replace(self, items: Mapping[str, Any], *, partial: bool) -> None:
        """These are all objects."""
        for sink in self._sinks:
            await sink.replace(items, partial=partial)

    def apply(self, events: Sequence[Event[Any]]) -> None:
        """These changed."""
        for sink in self._sinks:
            sink.apply(events)
