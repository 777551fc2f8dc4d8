"""The parts of objects that are addressed by themselves: scale, binding, eviction, finalize, token."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from isthmus import bounds
from isthmus.times import timestamp
from isthmus_lab.apiserver import errors, patches, requests
from isthmus_lab.apiserver.api import Api, Author
from isthmus_lab.apiserver.columns import selector
from isthmus_lab.apiserver.objects import Object, metadata, nested
from isthmus_lab.apiserver.replies import reply
from isthmus_lab.apiserver.requests import ObjectPath
from isthmus_lab.apiserver.storage import Item
from isthmus_lab.apiserver.tokens import LIFETIME, Tokens

SUCCESS: Final = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


async def answer(api: Api, tokens: Tokens, request: web.Request, target: ObjectPath) -> web.StreamResponse:
    """The reply to a request for a subresource other than status."""
    author = requests.author(request, target.version)
    match target.subresource, request.method:
        case "scale", "GET":
            return reply(scale(api.get(target.kind, target.namespace, target.name)))
        case "scale", "PUT" | "PATCH":
            return reply(scale(await _scale(api, request, target, author)))
        case "binding", "POST":
            await bind(api, target, nested(await requests.body(request), "target", "name", default=""), author=author)
            return reply(SUCCESS, status=201)
        case "eviction", "POST":
            options = nested(await requests.body(request), "deleteOptions", default={})
            await api.delete(target.kind, target.namespace, target.name, requests.deletion(request, options))
            return reply(SUCCESS, status=201)
        case "token", "POST":
            return reply(await _token(api, tokens, request, target), status=201)
        case "finalize", "PUT":
            return await _finalize(api, request, target, author)
    raise errors.method_not_allowed()


def scale(item: Item) -> Object:
    """The Scale of a workload."""
    meta = metadata(item.body)
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    status = {"replicas": nested(item.body, "status", "replicas", default=0)}
    chosen = selector("spec", "selector")(item.body)
    replicas = nested(item.body, "spec", "replicas", default=0)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: meta[name] for name in kept if name in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": status | ({"selector": chosen} if chosen != "<none>" else {}),
    }


async def bind(api: Api, target: ObjectPath, node: str, *, author: Author) -> Item:
    """Give a pod to a node, once."""
    kind, _, namespace, name, _ = target

    def to_node(old: Object) -> Object:
        if nested(old, "spec", "nodeName", default=node) != node:
            raise errors.conflict(
                kind.qualified, name, f"pod {name} is already assigned to node {old['spec']['nodeName']!r}"
            )
        return old | {"spec": old["spec"] | {"nodeName": node}}

    if not node:
        raise errors.bad_request("a Binding names a node in target.name")
    return await api.edit(kind, namespace, name, to_node, author=author)


async def _scale(api: Api, request: web.Request, target: ObjectPath, author: Author) -> Item:
    kind, _, namespace, name, _ = target
    body = await requests.body(request)

    def change(old: Object) -> Object:
        current = scale(Item(kind.qualified, "", 0, old, b""))
        match request.content_type:
            case "application/json-patch+json":
                desired = patches.json_patch(current, body)
            case _ if request.method == "PATCH":
                desired = patches.merge(current, body)
            case _:
                desired = body
        replicas = nested(desired, "spec", "replicas", default=0)
        revision = nested(desired, "metadata", "resourceVersion", default=old["metadata"]["resourceVersion"])
        meta = old["metadata"] | {"resourceVersion": revision}
        return old | {"metadata": meta, "spec": old["spec"] | {"replicas": replicas}}

    return await api.edit(kind, namespace, name, change, author=author)


async def _token(api: Api, tokens: Tokens, request: web.Request, target: ObjectPath) -> Object:
    """A TokenRequest with its answer."""
    account = api.get(target.kind, target.namespace, target.name).body
    asked = nested(await requests.body(request), "spec", default={})
    seconds = requests.number(asked.get("expirationSeconds") or LIFETIME, "spec.expirationSeconds")
    audiences = [str(each) for each in asked.get("audiences") or ()]
    uid = account["metadata"]["uid"]
    token, ends = tokens.issue(target.namespace, target.name, uid, seconds=seconds, audiences=audiences)
    status = {"token": token, "expirationTimestamp": timestamp(bounds.since_epoch(ends))}
    meta = {"name": target.name, "namespace": target.namespace, "creationTimestamp": timestamp()}
    spec = {"audiences": audiences, "expirationSeconds": seconds}
    return {
        "kind": "TokenRequest",
        "apiVersion": "authentication.k8s.io/v1",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


async def _finalize(api: Api, request: web.Request, target: ObjectPath, author: Author) -> web.Response:
    kind, _, namespace, name, _ = target
    finalizers = nested(await requests.body(request), "spec", "finalizers", default=[])
    item = await api.edit(kind, namespace, name, lambda old: old | {"spec": {"finalizers": finalizers}}, author=author)
    return reply(item.body)
