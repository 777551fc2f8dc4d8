"""The verbs, on any kind: what HTTP requests and the controllers of this process both go through."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from isthmus import bounds
from isthmus.times import timestamp
from isthmus_lab.apiserver import errors, fields, kinds, rules
from isthmus_lab.apiserver.addresses import Addresses
from isthmus_lab.apiserver.fields import Manager
from isthmus_lab.apiserver.kinds import Kind, Registry
from isthmus_lab.apiserver.objects import Object, clone, deleting, metadata, name_of, nested, whole
from isthmus_lab.apiserver.storage import Item, Store

Edit = Callable[[Object], Object]
"""Computes the next version of a stored object; must not modify its argument."""

TRIES = 32


class Author(NamedTuple):
    """The writer of a request: its field manager, API version, and whether it is a dry run."""

    manager: str = "unknown"
    version: str = ""
    dry_run: bool = False


class Deletion(NamedTuple):
    """DeleteOptions: grace period, propagation policy, preconditions."""

    grace: int | None = None
    propagation: str = ""
    uid: str = ""
    revision: str = ""
    dry_run: bool = False


class Api:
    """Create, read, change and delete objects of the kinds in the registry."""

    def __init__(self, store: Store, registry: Registry, addresses: Addresses, *, root_certificate: str = "") -> None:
        self.root_certificate = root_certificate
        """CA certificate by which pods trust this server (PEM)."""
        self.store = store
        self.registry = registry
        self.addresses = addresses

    def get(self, kind: Kind, namespace: str, name: str) -> Item:
        """One object; an ApiError where there is none."""
        item = self.store.get(kind.qualified, kind.key(namespace, name))
        if item is None:
            raise errors.not_found(kind.qualified, name)
        return item

    async def create(self, kind: Kind, namespace: str, body: Object, *, author: Author) -> Item:
        """A new object."""
        obj = rules.born(kind, rules.addressed(kind, namespace, "", body))
        obj = _owned(kind, None, obj, _manager(kind, author, "Update"))
        return await self._store_new(kind, namespace, obj, author)

    async def update(
        self, kind: Kind, namespace: str, name: str, body: Object, *, author: Author, subresource: str = ""
    ) -> Item:
        """Replace an object or its status. A resourceVersion in the body must match the stored one."""
        desired = rules.addressed(kind, namespace, name, body)
        return await self.edit(kind, namespace, name, lambda _: desired, author=author, subresource=subresource)

    async def edit(
        self, kind: Kind, namespace: str, name: str, edit: Edit, *, author: Author, subresource: str = ""
    ) -> Item:
        """Change the object as it is now; retried after a conflict, unless the result named a version."""
        manager = _manager(kind, author, "Update", subresource)

        def owned(old: Object) -> Object:
            new = rules.renewed(kind, old, rules.addressed(kind, namespace, name, edit(old)), subresource=subresource)
            return _owned(kind, old, new, manager)

        return await self._write(kind, namespace, name, owned, author)

    async def apply(
        self, kind: Kind, namespace: str, name: str, body: Object, *, author: Author, force: bool, subresource: str = ""
    ) -> tuple[Item, bool]:
        """Server-side apply: the fields of ``body`` are the manager's, those it no longer names go. (item, created)"""
        desired = rules.addressed(kind, namespace, name, body)
        if metadata(body).get("managedFields"):
            raise errors.bad_request("metadata.managedFields must be nil")
        scope = {"status"} if subresource == "status" else set(desired) - ({"status"} if kind.has_status else set())
        desired = {key: value for key, value in desired.items() if key in scope | {"apiVersion", "kind", "metadata"}}
        manager = _manager(kind, author, "Apply", subresource)
        if subresource == "" and self.store.get(kind.qualified, kind.key(namespace, name)) is None:
            try:
                merged = fields.applied(None, desired, kind.lists, manager, force=force)
                owned_by = metadata(merged).get("managedFields", [])
                merged["metadata"].pop("resourceVersion", None)  # a conflict where there is one, and else nothing
                obj = rules.born(kind, merged)
                obj["metadata"]["managedFields"] = owned_by
                return await self._store_new(kind, namespace, obj, author), True
            except errors.ApiError as error:
                if error.reason != "AlreadyExists":
                    raise

        def over(old: Object) -> Object:
            merged = fields.applied(old, desired, kind.lists, manager, force=force)
            return rules.renewed(kind, old, merged, subresource=subresource)

        return await self._write(kind, namespace, name, over, author), False

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

    async def _store_new(self, kind: Kind, namespace: str, obj: Object, author: Author) -> Item:
        self._check_namespace(kind, namespace, name_of(obj))
        if self.store.get(kind.qualified, kind.key(namespace, name_of(obj))) is not None:
            raise errors.already_exists(kind.qualified, name_of(obj))
        with self._addresses(kind, obj):
            if author.dry_run:
                return _unstored(kind, namespace, obj)
            key = kind.key(namespace, name_of(obj))
            item = await self.store.create(kind.qualified, key, obj, lifetime=kind.lifetime)
        if item is None:
            raise errors.already_exists(kind.qualified, name_of(obj))
        return item

    async def _write(self, kind: Kind, namespace: str, name: str, change: Edit, author: Author) -> Item:
        for _ in range(TRIES):
            item = self.get(kind, namespace, name)
            new = change(item.body)
            with self._addresses(kind, new, item.body):
                if rules.same(item.body, new):
                    return item
                if author.dry_run:
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
            if item.body["metadata"]["uid"] != nested(obj, "metadata", "uid")
        ]
        with self.addresses.allocated(obj, existing, before=nested(old, "spec", default={})):
            yield

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.namespaced:
            return
        home = self.store.get(kinds.NAMESPACE.qualified, namespace)
        if home is None:
            raise errors.not_found(kinds.NAMESPACE.qualified, namespace)
        if deleting(home.body):
            reason = f"unable to create new content in namespace {namespace} because it is being terminated"
            error = errors.forbidden(kind.qualified, name, reason)
            cause = {"reason": "NamespaceTerminating", "message": f"namespace {namespace} is being terminated"}
            error.details["causes"] = [cause | {"field": "metadata.namespace"}]
            raise error


def _manager(kind: Kind, author: Author, operation: str, subresource: str = "") -> Manager:
    return Manager(author.manager, operation, kind.api_version(author.version), subresource)


def _owned(kind: Kind, old: Object | None, new: Object, manager: Manager) -> Object:
    """A write with its fields owned by its manager. A status that is written by itself has no other owner."""
    if manager.subresource or not kind.has_status:
        return fields.updated(old, new, kind.lists, manager)
    old = {key: value for key, value in old.items() if key != "status"} if old is not None else None
    rest = {key: value for key, value in new.items() if key != "status"}
    return new | fields.updated(old, rest, kind.lists, manager)


def _unstored(kind: Kind, namespace: str, obj: Object) -> Item:
    """The response item for an object that is not stored: after a dry run or a removal."""
    return Item(kind.qualified, kind.key(namespace, name_of(obj)), 0, obj, msgspec.json.encode(obj))


def _check_deletion(kind: Kind, item: Item, how: Deletion) -> None:
    meta = item.body["metadata"]
    lost = "The object might have been deleted and then recreated"
    modified = "The object might have been modified"
    for what, expected, stored, then in (
        ("UID", how.uid, meta["uid"], lost),
        ("ResourceVersion", how.revision, meta["resourceVersion"], modified),
    ):
        if expected and expected != stored:
            reason = (
                f"the {what} in the precondition ({expected}) does not match the {what} in record ({stored}). {then}"
            )
            raise errors.conflict(kind.kind, meta["name"], reason)


def _ended(kind: Kind, item: Item) -> Item:
    """The response item for an immediate deletion. A pod carries its deletion timestamp, as in Kubernetes."""
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
    """True if a deletion was requested and neither finalizers nor a grace period remain."""
    meta = obj["metadata"]
    finalized_by = meta.get("finalizers") or (kind is kinds.NAMESPACE and nested(obj, "spec", "finalizers", default=()))
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
    finalized_by = bool(finalizers) or (kind is kinds.NAMESPACE and nested(obj, "spec", "finalizers", default=()))
    if not finalized_by and not grace:
        return None
    earlier: Any = meta.get("deletionGracePeriodSeconds")
    if not deleting(old) or (earlier is not None and grace < earlier):
        meta["deletionTimestamp"] = timestamp(bounds.after(datetime.now(UTC), grace))
        meta["deletionGracePeriodSeconds"] = grace
    if kind.counted and not deleting(old):
        meta["generation"] = whole(meta.get("generation")) + 1
    if kind is kinds.NAMESPACE:
        obj["status"] = {**obj.get("status", {}), "phase": "Terminating"}
    return obj


def _grace(kind: Kind, obj: Object, how: Deletion) -> int:
    """Seconds an object has to end by itself: only pods that a node runs have any."""
    if kind is not kinds.POD:
        return 0
    idle = not nested(obj, "spec", "nodeName") or nested(obj, "status", "phase") in ("Succeeded", "Failed")
    if idle:
        return 0
    seconds = how.grace if how.grace is not None else nested(obj, "spec", "terminationGracePeriodSeconds", default=30)
    return max(0, whole(seconds))
