"""CustomResourceDefinitions: serve the kinds they define, and delete these objects with the definition."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus_lab.apiserver import definitions, kinds
from isthmus_lab.apiserver.api import Api, Deletion
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object, deleting, name_of, namespace_of
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers import pods
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.CUSTOM_RESOURCE_DEFINITION
AUTHOR = author("customresourcedefinition-controller")
CLEAN_UP = "customresourcecleanup.apiextensions.k8s.io"


def controller(api: Api) -> Controller:
    """The controller of CustomResourceDefinitions."""

    def keys(change: Change) -> Iterable[str]:
        if change.resource == KIND.qualified:
            return [change.key]
        definition = api.store.get(KIND.qualified, change.resource)
        return [change.resource] if definition is not None and deleting(definition.body) else []

    async def reconcile(key: str) -> float | None:
        item = api.store.get(KIND.qualified, key)
        if item is not None:
            await (_withdraw(api, item) if deleting(item.body) else _establish(api, item))
        return None

    return Controller(api, name="definitions", follows=None, keys=keys, reconcile=reconcile)


async def _establish(api: Api, item: Item) -> None:
    definitions.serve(api.registry, item.body)
    spec = item.body["spec"]
    names = {"singular": spec["names"]["kind"].lower(), "listKind": f"{spec['names']['kind']}List"} | spec["names"]
    status = {
        "acceptedNames": names,
        "storedVersions": [version["name"] for version in spec["versions"] if version.get("storage")],
        "conditions": pods.conditions(
            item.body,
            NamesAccepted=(True, "NoConflicts", "no conflicts found"),
            Established=(True, "InitialNamesAccepted", "the initial names have been accepted"),
        ),
    }
    await pods.write_status(api, KIND, item, status, author=AUTHOR)
    if CLEAN_UP not in item.body["metadata"].get("finalizers", ()):
        await api.edit(KIND, "", name_of(item.body), _hold, author=AUTHOR)


async def _withdraw(api: Api, item: Item) -> None:
    """Delete what was made of it; with nothing left, let it go."""
    kind = definitions.kind_of(item.body)
    served = api.registry.stored(kind.qualified)
    remaining = api.store.items(kind.qualified) if served is not None and not definitions.built_in(kind) else []
    for obj in remaining:
        if not deleting(obj.body):
            await _delete(api, kind, obj)
    if not remaining:
        if not definitions.built_in(kind):
            api.registry.remove(kind)
        await api.edit(KIND, "", name_of(item.body), _let_go, author=AUTHOR)


async def _delete(api: Api, kind: Kind, item: Item) -> None:
    try:
        how = Deletion(uid=item.body["metadata"]["uid"])
        await api.delete(kind, namespace_of(item.body), name_of(item.body), how)
    except ApiError as error:
        if error.reason not in ("NotFound", "Conflict"):
            raise


def _hold(old: Object) -> Object:
    finalizers = [*old["metadata"].get("finalizers", ()), CLEAN_UP]
    return old | {"metadata": old["metadata"] | {"finalizers": sorted(set(finalizers))}}


def _let_go(old: Object) -> Object:
    kept = [each for each in old["metadata"].get("finalizers", ()) if each != CLEAN_UP]
    return old | {"metadata": old["metadata"] | {"finalizers": kept}}
