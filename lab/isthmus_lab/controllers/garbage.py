"""Garbage: objects whose owners are all gone go too; owners that wait for theirs, or leave them behind, are let go.

All that is needed of every object is its uid and its owners'; both are kept by uid, so a change costs what it touches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from isthmus_lab.apiserver.api import Api, Deletion
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.objects import Object, deleting, items, name_of, namespace_of
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers.loop import Controller, author

AUTHOR = author("generic-garbage-collector")
FOREGROUND: Final = "foregroundDeletion"
ORPHAN: Final = "orphan"


class ObjectKey(NamedTuple):
    """Kind, namespace and name of an object."""

    resource: str
    key: str

    def __str__(self) -> str:
        return f"{self.resource}|{self.key}"


class Graph:
    """Owners and dependents, by uid."""

    def __init__(self) -> None:
        self._places: dict[str, ObjectKey] = {}
        self._dependents: dict[str, set[ObjectKey]] = {}

    def take(self, change: Change) -> set[ObjectKey]:
        """Note a change; gives the places that may have to go, or be let go, because of it."""
        place = ObjectKey(change.resource, change.key)
        old, new = change.old, change.new
        concerned: set[ObjectKey] = set()
        if old is not None and (new is None or _uid(old.body) != _uid(new.body)):
            self._places.pop(_uid(old.body), None)
            concerned |= self._dependents.get(_uid(old.body), set())
        if old is not None:
            for owner in _owners(old.body):
                self._dependents.get(owner, set()).discard(place)
                concerned |= {self._places[owner]} if owner in self._places else set()
        if new is not None:
            self._places[_uid(new.body)] = place
            for owner in _owners(new.body):
                self._dependents.setdefault(owner, set()).add(place)
            concerned.add(place)
        return concerned

    def exists(self, uid: str) -> bool:
        """True if an object with this uid exists."""
        return uid in self._places

    def dependents(self, uid: str) -> set[ObjectKey]:
        """Keys of the objects that name this uid as an owner."""
        return set(self._dependents.get(uid, ()))


def controller(api: Api) -> Controller:
    """The garbage collector."""
    graph = Graph()

    def keys(change: Change) -> Iterable[str]:
        return [str(place) for place in graph.take(change)]

    async def reconcile(key: str) -> float | None:
        item = api.store.get(*ObjectKey(*key.split("|", 1)))
        if item is None:
            return None
        owners = _owners(item.body)
        finalizers = item.body["metadata"].get("finalizers") or ()
        if owners and not any(graph.exists(uid) for uid in owners):
            await _delete(api, item)
        elif deleting(item.body) and FOREGROUND in finalizers:
            await _foreground(api, graph, item)
        elif deleting(item.body) and ORPHAN in finalizers:
            await _orphan(api, graph, item)
        return None

    return Controller(api, name="garbage", follows=None, keys=keys, reconcile=reconcile)


async def _foreground(api: Api, graph: Graph, owner: Item) -> None:
    """Delete what blocks the owner; with nothing left of that, let it go."""
    uid = _uid(owner.body)
    blocking = []
    for place in graph.dependents(uid):
        item = api.store.get(*place)
        if item is not None and any(
            r.get("uid") == uid and r.get("blockOwnerDeletion") for r in _references(item.body)
        ):
            blocking.append(item)
    for item in blocking:
        if not deleting(item.body):
            await _delete(api, item, propagation="Foreground")
    if not blocking:
        await _drop_finalizer(api, owner, FOREGROUND)


async def _orphan(api: Api, graph: Graph, owner: Item) -> None:
    """Take the owner out of what it owns, then let it go."""
    uid = _uid(owner.body)

    def disown(old: Object) -> Object:
        kept = [reference for reference in _references(old) if reference.get("uid") != uid]
        return old | {"metadata": old["metadata"] | {"ownerReferences": kept}}

    for place in graph.dependents(uid):
        item = api.store.get(*place)
        kind = api.registry.stored(place.resource)
        if item is not None and kind is not None:
            await api.edit(kind, namespace_of(item.body), name_of(item.body), disown, author=AUTHOR)
    await _drop_finalizer(api, owner, ORPHAN)


async def _drop_finalizer(api: Api, item: Item, finalizer: str) -> None:
    def edit(old: Object) -> Object:
        kept = [each for each in old["metadata"].get("finalizers") or () if each != finalizer]
        return old | {"metadata": old["metadata"] | {"finalizers": kept}}

    kind = api.registry.stored(item.resource)
    if kind is not None:
        await api.edit(kind, namespace_of(item.body), name_of(item.body), edit, author=AUTHOR)


async def _delete(api: Api, item: Item, *, propagation: str = "") -> None:
    kind = api.registry.stored(item.resource)
    if kind is None or deleting(item.body):
        return
    how = Deletion(uid=_uid(item.body), propagation=propagation)
    try:
        await api.delete(kind, namespace_of(item.body), name_of(item.body), how)
    except ApiError as error:
        if error.reason not in ("NotFound", "Conflict"):
            raise


def _references(body: Object) -> list[Object]:
    return list(items(body, "metadata", "ownerReferences"))


def _owners(body: Object) -> set[str]:
    return {str(reference.get("uid")) for reference in _references(body)}


def _uid(body: Object) -> str:
    return str(body["metadata"]["uid"])
