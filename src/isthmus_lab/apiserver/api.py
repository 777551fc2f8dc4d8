"""The verbs, on any kind: what HTTP requests and the controllers of this process both go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from isthmus.times import timestamp
from isthmus_lab.apiserver import errors, fields, kinds, rules
from isthmus_lab.apiserver.addresses import Addresses
from isthmus_lab.apiserver.fields import Manager
from isthmus_lab.apiserver.kinds import Kind, Registry
from isthmus_lab.apiserver.objects import Object, at, clone, deleting, metadata, name_of
from isthmus_lab.apiserver.storage import Item, Store

Edit = Callable[[Object], Object]
"""What a write makes of the object as it is; it must not change what it is given."""

TRIES = 32


class By(NamedTuple):
    """Who asks, and how much they mean it."""

    manager: str = "unknown"
    version: str = ""
    dry_run: bool = False


class Deletion(NamedTuple):
    """How to delete."""

    grace: int | None = None
    propagation: str = ""
    uid: str = ""
    revision: str = ""
    dry_run: bool = False


class Api:
    """Create, read, change and delete objects of the kinds in the registry."""

    def __init__(self, store: Store, registry: Registry, addresses: Addresses, *, root_certificate: str = "") -> None:
        self.root_certificate = root_certificate
        """What those inside the cluster trust this server by."""
        self.store = store
        self.registry = registry
        self.addresses = addresses

    def get(self, kind: Kind, namespace: str, name: str) -> Item:
        """One object; an ApiError where there is none."""
        item = self.store.get(kind.qualified, kind.key(namespace, name))
        if item is None:
            raise errors.not_found(kind.qualified, name)
        return item

    async def create(self, kind: Kind, namespace: str, body: Object, *, by: By) -> Item:
        """A new object."""
        obj = rules.born(kind, rules.addressed(kind, namespace, "", body))
        obj = _owned(kind, None, obj, _manager(kind, by, "Update"))
        return await self._store_new(kind, namespace, obj, by)

    async def update(
        self, kind: Kind, namespace: str, name: str, body: Object, *, by: By, subresource: str = ""
    ) -> Item:
        """Replace an object, or its status. With a resourceVersion only that one; else whatever is there."""
        wanted = rules.addressed(kind, namespace, name, body)
        return await self.edit(kind, namespace, name, lambda _: wanted, by=by, subresource=subresource)

    async def edit(self, kind: Kind, namespace: str, name: str, edit: Edit, *, by: By, subresource: str = "") -> Item:
        """Change the object as it is now; retried after a conflict, unless the result named a version."""
        manager = _manager(kind, by, "Update", subresource)

        def owned(old: Object) -> Object:
            new = rules.renewed(kind, old, rules.addressed(kind, namespace, name, edit(old)), subresource=subresource)
            return _owned(kind, old, new, manager)

        return await self._write(kind, namespace, name, owned, by)

    async def apply(
        self, kind: Kind, namespace: str, name: str, body: Object, *, by: By, force: bool, subresource: str = ""
    ) -> tuple[Item, bool]:
        """Server-side apply: the fields of ``body`` are the manager's, those it no longer names go. (item, created)"""
        wanted = rules.addressed(kind, namespace, name, body)
        if metadata(body).get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        scope = {"status"} if subresource == "status" else set(wanted) - ({"status"} if kind.has_status else set())
        wanted = {key: value for key, value in wanted.items() if key in scope | {"apiVersion", "kind", "metadata"}}
        manager = _manager(kind, by, "Apply", subresource)
        if subresource == "" and self.store.get(kind.qualified, kind.key(namespace, name)) is None:
            try:
                merged = fields.applied(None, wanted, kind.lists, manager, force=force)
                owned_by = metadata(merged).get("managedFields", [])
                merged["metadata"].pop("resourceVersion", None)  # a conflict where there is one, and else nothing
                obj = rules.born(kind, merged)
                obj["metadata"]["managedFields"] = owned_by
                return await self._store_new(kind, namespace, obj, by), True
            except errors.ApiError as error:
                if error.reason != "AlreadyExists":
                    raise

        def over(old: Object) -> Object:
            merged = fields.applied(old, wanted, kind.lists, manager, force=force)
            return rules.renewed(kind, old, merged, subresource=subresource)

        return await self._write(kind, namespace, name, over, by), False

    async def delete(self, kind: Kind, namespace: str, name: str, how: Deletion = Deletion()) -> tuple[Item, bool]:  # noqa: B008
        """Delete an object, or begin to. (the object as it last was, whether it is gone)"""
        for _ in range(TRIES):
            item = self.get(kind, namespace, name)
            _check_deletion(kind, item, how)
            marked = _marked(kind, item.body, how)
            if how.dry_run:
                return item, marked is None
            if marked is None:
                if await self.store.delete(item):
                    return _ended(kind, item), True
            elif rules.same(item.body, marked):
                return item, False
            elif (written := await self.store.update(item, marked, lifetime=kind.lifetime)) is not None:
                return written, False
        raise errors.conflict(kind.qualified, name)

    async def _store_new(self, kind: Kind, namespace: str, obj: Object, by: By) -> Item:
        self._check_namespace(kind, namespace, name_of(obj))
        if self.store.get(kind.qualified, kind.key(namespace, name_of(obj))) is not None:
            raise errors.already_exists(kind.qualified, name_of(obj))
        with self._addresses(kind, obj):
            if by.dry_run:
                return _unstored(kind, namespace, obj)
            key = kind.key(namespace, name_of(obj))
            item = await self.store.create(kind.qualified, key, obj, lifetime=kind.lifetime)
        if item is None:
            raise errors.already_exists(kind.qualified, name_of(obj))
        return item

    async def _write(self, kind: Kind, namespace: str, name: str, change: Edit, by: By) -> Item:
        for _ in range(TRIES):
            item = self.get(kind, namespace, name)
            new = change(item.body)
            with self._addresses(kind, new, item.body):
                if rules.same(item.body, new):
                    return item
                if by.dry_run:
                    return _unstored(kind, namespace, new)
                if _finished(kind, new):
                    if await self.store.delete(item):
                        return _unstored(kind, namespace, new)
                elif (written := await self.store.update(item, new, lifetime=kind.lifetime)) is not None:
                    return written
        raise errors.conflict(kind.qualified, name)

    @contextmanager
    def _addresses(self, kind: Kind, obj: Object, old: Object | None = None) -> Iterator[None]:
        if kind is not kinds.SERVICE:
            yield
            return
        existing = [
            item.body
            for item in self.store.items(kind.qualified)
            if item.body["metadata"]["uid"] != at(obj, "metadata", "uid")
        ]
        with self.addresses.allocated(obj, existing, before=at(old, "spec", default={})):
            yield

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.namespaced:
            return
        home = self.store.get(kinds.NAMESPACE.qualified, namespace)
        if home is None:
            raise errors.not_found(kinds.NAMESPACE.qualified, namespace)
        if deleting(home.body):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            error = errors.forbidden(kind.qualified, name, why)
            cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
            error.details["causes"] = [cause | {"field": "metadata.namespace"}]
            raise error


def _manager(kind: Kind, by: By, operation: str, subresource: str = "") -> Manager:
    return Manager(by.manager, operation, kind.api_version(by.version), subresource)


def _owned(kind: Kind, old: Object | None, new: Object, manager: Manager) -> Object:
    """A write with its fields owned by its manager. A status that is written by itself has no other owner."""
    if manager.subresource or not kind.has_status:
        return fields.updated(old, new, kind.lists, manager)
    old = {key: value for key, value in old.items() if key != "status"} if old is not None else None
    rest = {key: value for key, value in new.items() if key != "status"}
    return new | fields.updated(old, rest, kind.lists, manager)


def _unstored(kind: Kind, namespace: str, obj: Object) -> Item:
    """What is answered of an object that is not kept: by a dry run, by the write that lets it go."""
    return Item(kind.qualified, kind.key(namespace, name_of(obj)), 0, obj, msgspec.json.encode(obj))


def _check_deletion(kind: Kind, item: Item, how: Deletion) -> None:
    meta = item.body["metadata"]
    lost = "The object might have been deleted and then recreated"
    modified = "The object might have been modified"
    for what, wanted, there, then in (
        ("UID", how.uid, meta["uid"], lost),
        ("ResourceVersion", how.revision, meta["resourceVersion"], modified),
    ):
        if wanted and wanted != there:
            why = f"the {what} in the precondition ({wanted}) does not match the {what} in record ({there}). {then}"
            raise errors.conflict(kind.kind, meta["name"], why)


def _ended(kind: Kind, item: Item) -> Item:
    """What is answered of an object that is gone at once: of a pod, itself with the marks of its deletion."""
    if kind is not kinds.POD:
        return item
    meta = item.body["metadata"]
    marks = {
        "deletionTimestamp": timestamp(),
        "deletionGracePeriodSeconds": 0,
        "generation": meta.get("generation", 0) + (not deleting(item.body)),
    }
    return _unstored(kind, meta["namespace"], item.body | {"metadata": meta | marks})


def _finished(kind: Kind, obj: Object) -> bool:
    """Whether nothing holds an object any more whose deletion was asked for."""
    meta = obj["metadata"]
    finalized_by = meta.get("finalizers") or (kind is kinds.NAMESPACE and at(obj, "spec", "finalizers", default=()))
    return deleting(obj) and not finalized_by and not meta.get("deletionGracePeriodSeconds")


def _marked(kind: Kind, old: Object, how: Deletion) -> Object | None:
    """The object as a deletion leaves it, None where nothing is left."""
    obj = clone(old)
    meta = obj["metadata"]
    grace = _grace(kind, old, how)
    finalizers = [f for f in meta.get("finalizers") or () if f not in ("orphan", "foregroundDeletion")]
    finalizers += {"Orphan": ["orphan"], "Foreground": ["foregroundDeletion"]}.get(how.propagation, [])
    if not how.propagation:
        finalizers = list(meta.get("finalizers") or ())
    meta["finalizers"] = finalizers
    if not finalizers:
        del meta["finalizers"]
    finalized_by = bool(finalizers) or (kind is kinds.NAMESPACE and at(obj, "spec", "finalizers", default=()))
    if not finalized_by and not grace:
        return None
    earlier: Any = meta.get("deletionGracePeriodSeconds")
    if not deleting(old) or (earlier is not None and grace < earlier):
        meta["deletionTimestamp"] = timestamp(datetime.now(UTC) + timedelta(seconds=grace))
        meta["deletionGracePeriodSeconds"] = grace
    if kind.counted and not deleting(old):
        meta["generation"] = int(meta.get("generation", 0)) + 1
    if kind is kinds.NAMESPACE:
        obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}
    return obj


def _grace(kind: Kind, obj: Object, how: Deletion) -> int:
    """Seconds an object has to end by itself: only pods that a node runs have any."""
    if kind is not kinds.POD:
        return 0
    idle = not at(obj, "spec", "nodeName") or at(obj, "status", "phase") in ("Succeeded", "Failed")
    if idle:
        return 0
    wanted = how.grace if how.grace is not None else at(obj, "spec", "terminationGracePeriodSeconds", default=30)
    return max(0, int(wanted))
