"""The keys found under one value of an index: nearly always one, sometimes a few, now and then thousands.

A few are a tuple, which costs a fifth of a map in time and memory; from there on they are a persistent map. Both are
immutable, so a snapshot's stay as they were. Nothing at all is None: an index holds no value without keys.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from typing import Any, Final

from immutables import Map

Keys = tuple[Any, ...] | Map[Any, None]

FEW: Final = 8


def with_key(keys: Keys, key: Any) -> Keys:
    """One more key, which is not among them."""
    if not isinstance(keys, tuple):
        return keys.set(key, None)
    if len(keys) < FEW:
        return (*keys, key)
    return Map(dict.fromkeys((*keys, key)))


def without_key(keys: Keys, key: Any) -> Keys | None:
    """One key less, which is among them."""
    if isinstance(keys, tuple):
        return tuple(each for each in keys if each != key) if len(keys) > 1 else None
    return keys.delete(key) or None


def add(index: Any, key: Any, values: Collection[Any]) -> None:  # hot:
    """In a mutable index, put a key under values, which may repeat."""
    for value in values:
        keys = index.get(value)
        if keys is None:
            index[value] = (key,)
        elif key not in keys:
            index[value] = with_key(keys, key)


def remove(index: Any, key: Any, values: Collection[Any]) -> None:  # hot:
    """In a mutable index, take a key from under the values it is under; they may repeat."""
    for value in values:
        keys = index.get(value)
        if keys is None or key not in keys:
            continue
        left = without_key(keys, key) if len(keys) > 1 else None
        if left is None:
            del index[value]
        else:
            index[value] = left


def move(index: Any, key: Any, before: Collection[Any], after: Collection[Any]) -> None:
    """In a mutable index, take a key from under the values it had and put it under those it has."""
    remove(index, key, set(before).difference(after))
    add(index, key, set(after).difference(before))


def build(rows: Map[Any, Any], values: Callable[[Any], Collection[Hashable]]) -> Any:
    """A mutable index of these rows."""
    index: Any = Map().mutate()
    for key, row in rows.items():
        add(index, key, values(row))
    return index
