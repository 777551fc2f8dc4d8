"""The API over HTTP: who may, what is asked, and which verb answers it."""

from __future__ import annotations

import asyncio
import base64
from typing import NamedTuple

import msgspec
from aiohttp import web

from isthmus import logs
from isthmus.etcd import TooLarge
from isthmus.reflector import Expired, Transient
from isthmus_lab.apiserver import discovery, errors, kinds, patches, requests, subresources
from isthmus_lab.apiserver.api import Api, Author
from isthmus_lab.apiserver.errors import ApiError, Problem
from isthmus_lab.apiserver.nodes import Nodes
from isthmus_lab.apiserver.objects import Object
from isthmus_lab.apiserver.replies import ResponseFormat, deleted, failure
from isthmus_lab.apiserver.requests import ObjectPath
from isthmus_lab.apiserver.schema import METADATA
from isthmus_lab.apiserver.storage import Item
from isthmus_lab.apiserver.tokens import Tokens
from isthmus_lab.apiserver.watching import Watch

log = logs.get("apiserver")

LARGEST_BODY = 3 * 1024 * 1024
APPLY = ("application/apply-patch+yaml", "application/apply-patch+json")


class _Token(msgspec.Struct, frozen=True):
    """A continue token: the page begins after a key, and is of a revision."""

    after: str
    revision: int


class _Where(NamedTuple):
    """A page that is asked for."""

    after: str
    revision: int


class Server:
    """Turns requests into verbs, once it is ready."""

    def __init__(self, api: Api, nodes: Nodes, tokens: Tokens, *, ready: asyncio.Event) -> None:
        self._api = api
        self._nodes = nodes
        self._ready = ready
        self._tokens = tokens

    def application(self) -> web.Application:
        """For aiohttp to run."""
        app = web.Application(client_max_size=LARGEST_BODY)
        app.router.add_route("*", "/{path:.*}", self.handle)
        return app

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answer a request; every error is a reply."""
        try:
            return await self._answer(request)
        except ApiError as error:
            return failure(error)
        except Expired as error:
            return failure(errors.expired(f"The provided resourceVersion or continue token is too old: {error}"))
        except Transient as error:
            return failure(errors.unavailable(str(error)))
        except TooLarge as error:
            return failure(ApiError(413, "RequestEntityTooLarge", str(error)))
        except web.HTTPRequestEntityTooLarge:
            return failure(ApiError(413, "RequestEntityTooLarge", f"the body is larger than {LARGEST_BODY} bytes"))
        except (ConnectionError, web.HTTPException):
            raise
        except Exception as error:
            log.exception("broken", method=request.method, path=request.path)
            return failure(ApiError(500, "InternalError", f"Internal error occurred: {error!r}"))

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in ("/healthz", "/livez", "/readyz"):
            ready = self._ready.is_set() or request.path != "/readyz"
            return web.Response(text="ok" if ready else "etcd has not been read yet", status=200 if ready else 500)
        self._check_token(request)
        path = request.path
        about = discovery.answer(self._api.registry, path, accept=request.headers.get("Accept", ""))
        if about is not None:
            return about
        if not path.startswith(("/api/", "/apis/")):
            raise errors.unknown_path()
        await self._ready.wait()
        await self._api.store.ready.wait()
        target = requests.target(self._api.registry, path)
        if target.kind is kinds.POD and target.subresource in ("log", "exec", "attach", "portforward"):
            return await self._nodes.answer(request, target)
        if target.subresource and target.subresource != "status":
            return await subresources.answer(self._api, self._tokens, request, target)
        return await (self._object(request, target) if target.name else self._collection(request, target))

    def _check_token(self, request: web.Request) -> None:
        if not self._tokens.admits(request.headers.get("Authorization", "").removeprefix("Bearer ")):
            reason = "no valid bearer token (kubectl sends none over plain http: serve TLS)"
            raise ApiError(401, "Unauthorized", reason)

    async def _collection(self, request: web.Request, target: ObjectPath) -> web.StreamResponse:
        match request.method:
            case "GET" if requests.truth(request, "watch"):
                return await Watch(request, self._api.store, target).serve(request)
            case "GET":
                return await self._list(request, target)
            case "POST" if target.namespace or not target.kind.namespaced:
                body = await requests.body(request)
                requests.check_fields(request, target, body)
                author = requests.author(request, target.version)
                item = await self._api.create(target.kind, target.namespace, body, author=author)
                return ResponseFormat(request, target).single(item, status=201)
            case "DELETE":
                return await self._delete_all(request, target)
        raise errors.method_not_allowed()

    async def _object(self, request: web.Request, target: ObjectPath) -> web.StreamResponse:
        kind, version, namespace, name, subresource = target
        author = requests.author(request, version)
        match request.method:
            case "GET" if requests.truth(request, "watch"):
                return await Watch(request, self._api.store, target).serve(request)
            case "GET":
                return ResponseFormat(request, target).single(self._api.get(kind, namespace, name))
            case "PUT":
                body = await requests.body(request)
                requests.check_fields(request, target, body)
                item = await self._api.update(kind, namespace, name, body, author=author, subresource=subresource)
                return ResponseFormat(request, target).single(item)
            case "PATCH":
                item, created = await self._patch(request, target, author)
                return ResponseFormat(request, target).single(item, status=201 if created else 200)
            case "DELETE" if not subresource:
                how = requests.deletion(request, await requests.body(request))
                item, removed = await self._api.delete(kind, namespace, name, how)
                return (
                    deleted(kind, item.body)
                    if removed and kind is not kinds.POD
                    else ResponseFormat(request, target).single(item)
                )
        raise errors.method_not_allowed()

    async def _patch(self, request: web.Request, target: ObjectPath, author: Author) -> tuple[Item, bool]:
        kind, _, namespace, name, subresource = target
        patch = await requests.body(request)
        lists = {**METADATA, **kind.lists}
        if request.content_type != "application/json-patch+json":
            requests.check_fields(request, target, patch)
        if request.content_type in APPLY:
            if not request.query.get("fieldManager"):
                missing = Problem("fieldManager", "Required value", "is required for apply patch")
                raise errors.invalid("PatchOptions", "meta.k8s.io", "", [missing])
            force = requests.truth(request, "force")
            return await self._api.apply(
                kind, namespace, name, patch, author=author, force=force, subresource=subresource
            )

        def edit(old: Object) -> Object:
            match request.content_type:
                case "application/json-patch+json":
                    return patches.json_patch(old, patch)
                case "application/merge-patch+json":
                    return _an_object(patches.merge(old, _an_object(patch)))
                case "application/strategic-merge-patch+json" if kind.strategic:
                    return patches.strategic(old, _an_object(patch), lists)
            raise ApiError(415, "UnsupportedMediaType", "415: Unsupported Media Type")

        return await self._api.edit(kind, namespace, name, edit, author=author, subresource=subresource), False

    async def _list(self, request: web.Request, target: ObjectPath) -> web.Response:
        limit = requests.number(request.query.get("limit") or 0, "limit")
        token = request.query.get("continue", "")
        if limit or token or request.query.get("resourceVersionMatch") == "Exact":
            return await self._page(request, target, limit, token)
        selected = requests.selector(request, "")
        items = self._api.store.items(target.kind.qualified, target.namespace)
        if selected is not None:
            items = [item for item in items if selected(item.body)]
        return ResponseFormat(request, target).many(items, {"resourceVersion": str(self._api.store.revision)})

    async def _page(self, request: web.Request, target: ObjectPath, limit: int, token: str) -> web.Response:
        """A page as of the revision the first one was read at; selectors may need several reads to fill it."""
        after, revision = _decode(token) if token else _Where("", _exact(request))
        selected = requests.selector(request, "")
        matches: list[Item] = []
        while True:
            kind, want = target.kind.qualified, max(limit - len(matches), 0)
            page = await self._api.store.page(kind, target.namespace, limit=want, after=after, revision=revision)
            after, revision = page.more, page.revision
            matches += [item for item in page.items if selected is None or selected(item.body)]
            if not after or (limit and len(matches) >= limit):
                break
        meta: Object = {"resourceVersion": str(revision)}
        if after:
            meta["continue"] = _encode(after, revision)
            meta |= {"remainingItemCount": page.remaining} if selected is None else {}
        return ResponseFormat(request, target).many(matches, meta)

    async def _delete_all(self, request: web.Request, target: ObjectPath) -> web.Response:
        how = requests.deletion(request, await requests.body(request))
        selected = requests.selector(request, "")
        removed = []
        for item in self._api.store.items(target.kind.qualified, target.namespace):
            if selected is None or selected(item.body):
                namespace, _, name = item.key.rpartition("/")
                try:
                    await self._api.delete(target.kind, namespace, name, how)
                except ApiError as error:
                    if error.code != 404:
                        raise
                removed.append(item)
        return ResponseFormat(request, target).many(
            removed, {"resourceVersion": str(self._api.store.revision)}, with_kind=False
        )


def _an_object(patch: object) -> Object:
    if not isinstance(patch, dict):
        raise errors.bad_request("a merge patch is an object")
    return patch


def _exact(request: web.Request) -> int:
    """The revision a list is to be of, 0 for the newest."""
    exact = request.query.get("resourceVersionMatch") == "Exact"
    return requests.number(request.query.get("resourceVersion") or 0, "resourceVersion") if exact else 0


def _encode(after: str, revision: int) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(_Token(after, revision))).decode().rstrip("=")


def _decode(token: str) -> _Where:
    try:
        position = msgspec.json.decode(base64.urlsafe_b64decode(token + "=="), type=_Token)
    except (ValueError, msgspec.MsgspecError):
        raise errors.bad_request("continue key is not valid") from None
    return _Where(position.after, position.revision)
