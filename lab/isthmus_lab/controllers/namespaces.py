"""Namespaces: create a service account in each, and remove a deleted one once it is empty."""

from __future__ import annotations

from collections.abc import Iterable

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, Deletion
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object, deleting, name_of
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.NAMESPACE
AUTHOR = author("namespace-controller")


def controller(api: Api) -> Controller:
    """The controller of Namespaces."""

    def keys(change: Change) -> Iterable[str]:
        if change.resource == KIND.qualified:
            return [change.key]
        namespace, slash, _ = change.key.partition("/")
        home = api.store.get(KIND.qualified, namespace) if slash else None
        return [namespace] if home is not None and deleting(home.body) else []

    async def reconcile(key: str) -> float | None:
        item = api.store.get(KIND.qualified, key)
        if item is not None:
            await (_empty(api, key) if deleting(item.body) else _furnish(api, key))
        return None

    return Controller(api, name="namespaces", follows=None, keys=keys, reconcile=reconcile)


async def _furnish(api: Api, namespace: str) -> None:
    """Create what pods rely on: a service account and the API server's CA certificate."""
    desired: tuple[tuple[Kind, str, Object], ...] = (
        (kinds.SERVICE_ACCOUNT, "default", {}),
        (kinds.CONFIG_MAP, "kube-root-ca.crt", {"data": {"ca.crt": api.root_certificate}}),
    )
    for kind, name, content in desired:
        if api.store.get(kind.qualified, kind.key(namespace, name)) is None:
            try:
                await api.create(kind, namespace, {"metadata": {"name": name}, **content}, author=AUTHOR)
            except ApiError as error:
                if error.reason != "AlreadyExists":
                    raise


async def _empty(api: Api, namespace: str) -> None:
    """Delete the objects of a namespace; once it is empty, remove its finalizer."""
    remaining = [(kind, item) for kind in api.registry if kind.namespaced for item in _within(api, kind, namespace)]
    for kind, item in remaining:
        if not deleting(item.body):
            await _delete(api, kind, namespace, item)
    if not remaining:
        await api.edit(KIND, "", namespace, _let_go, author=AUTHOR)


def _within(api: Api, kind: Kind, namespace: str) -> list[Item]:
    return api.store.items(kind.qualified, namespace)


async def _delete(api: Api, kind: Kind, namespace: str, item: Item) -> None:
    try:
        await api.delete(kind, namespace, name_of(item.body), Deletion(uid=item.body["metadata"]["uid"]))
    except ApiError as error:
        if error.reason not in ("NotFound", "Conflict"):
            raise


def _let_go(old: Object) -> Object:
    return old | {"spec": {"finalizers": []}}
