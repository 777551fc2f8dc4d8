"""The simplest sink of a reflector: what a store has, as a dictionary."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Generic, TypeVar

from isthmus.reflector import Event

T = TypeVar("T")


class ObjectCache(Generic[T]):
    """Objects of a store by key; sets an event on every change."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self.items: dict[str, T] = {}
        self.complete = False

    async def replace(self, items: Mapping[str, T], *, partial: bool) -> None:
        """The reflector's."""
        self.items = {**self.items, **items} if partial else dict(items)
        self.complete = True
        self._changed.set()

    def apply(self, events: Sequence[Event[Any]]) -> None:
        """The reflector's."""
        for event in events:
            if event.item is None:
                self.items.pop(event.key, None)
            else:
                self.items[event.key] = event.item
        self._changed.set()
