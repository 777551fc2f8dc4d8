"""Parse a request: its path, its parameters, its body."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import yaml
from aiohttp import web

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus_lab.apiserver import errors, openapi, protobuf, selectors
from isthmus_lab.apiserver.api import Author, Deletion
from isthmus_lab.apiserver.kinds import Kind, Registry
from isthmus_lab.apiserver.selectors import Predicate


class ObjectPath(NamedTuple):
    """Parsed API path: a kind, and the namespace, name and subresource that the path contains."""

    kind: Kind
    version: str
    namespace: str
    name: str
    subresource: str


class _Loader(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: times are strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, regex) for tag, regex in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def target(registry: Registry, path: str) -> ObjectPath:
    """Parse a path below /api or /apis. Raises ApiError if nothing is served there.

    ``/api/v1/namespaces/a`` is a Namespace, ``/api/v1/namespaces/a/pods`` are the pods in it.
    """
    parts = [part for part in path.split("/") if part]
    root, parts = parts[0], parts[1:]
    group = parts.pop(0) if root == "apis" and parts else ""
    version = parts.pop(0) if parts else ""
    namespace = ""
    if len(parts) > 2 and parts[0] == "namespaces" and parts[2] not in ("status", "finalize"):
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = (*parts, "", "", "")[:3]
    kind = registry.resource(group, version, resource)
    if kind is None and version not in registry.groups().get(group, ()):
        raise web.HTTPNotFound(text="404 page not found\n")  # as a real server, which has no handler there
    if kind is None or len(parts) > 3 or (subresource and subresource not in kind.subresources):
        raise errors.unknown_path()
    if kind.namespaced and name and not namespace:
        raise errors.unknown_path()
    return ObjectPath(kind, version, namespace, name, subresource)


async def body(request: web.Request) -> Any:
    """The body as JSON or YAML; an ApiError where it is neither."""
    raw = await request.read()
    if not raw:
        return {}
    if raw.startswith(protobuf.MAGIC):
        return protobuf.decode(raw)
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "yaml" not in request.content_type:
            raise errors.bad_request(f"the body is not JSON: {error}") from None
    try:
        return yaml.load(raw, Loader=_Loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: a number of 4,300 digits, no UTF-8
        raise errors.bad_request(f"the body is not YAML: {' '.join(str(error).split())}") from None


def author(request: web.Request, version: str) -> Author:
    """The field manager of a request: the one it names, else the program of its User-Agent."""
    agent = request.headers.get("User-Agent", "").partition("/")[0]
    manager = request.query.get("fieldManager") or agent or "unknown"
    return Author(manager[:128], version, dry_run=bool(request.query.get("dryRun")))


def check_fields(request: web.Request, target: ObjectPath, body: Any) -> None:
    """Raise an ApiError for unknown fields of the body if the request asks for ``fieldValidation=Strict``.

    kubectl does so by default (``--validate``). Without it unknown fields are dropped by a kind with a schema.
    """
    if request.query.get("fieldValidation") != "Strict" or not isinstance(body, dict):
        return
    kind = target.kind
    if kind.schemas:
        unknown = list(openapi.unknown(kind.schema(target.version), body))
    else:
        unknown = list(protobuf.unknown(kind.api_version(target.version), kind.kind, body))
    if unknown:
        fields = ", ".join(f'unknown field "{each}"' for each in unknown)
        version = target.version
        reason = (
            f'{kind.kind} in version "{version}" cannot be handled as a {kind.kind}: strict decoding error: {fields}'
        )
        raise errors.bad_request(reason)


def deletion(request: web.Request, options: Any) -> Deletion:
    """Merge DeleteOptions from the body and the query parameters."""
    body = options if isinstance(options, dict) else {}
    grace = request.query.get("gracePeriodSeconds", body.get("gracePeriodSeconds"))
    preconditions = body.get("preconditions") or {}
    return Deletion(
        grace=None if grace is None else number(grace, "gracePeriodSeconds"),
        propagation=str(request.query.get("propagationPolicy") or body.get("propagationPolicy") or ""),
        uid=str(preconditions.get("uid") or ""),
        revision=str(preconditions.get("resourceVersion") or ""),
        dry_run=bool(request.query.get("dryRun") or body.get("dryRun")),
    )


def number(text: Any, what: str) -> int:
    """A whole number, or an ApiError that names it."""
    try:
        return bounds.count(text, least=-bounds.MAX_INT64, most=bounds.MAX_INT64, field=what)
    except OutOfBounds as error:
        raise errors.bad_request(str(error)) from None


def selector(request: web.Request, name: str) -> Predicate | None:
    """Predicate for the requested objects; None selects all. A named path selects that object only."""
    fields = request.query.get("fieldSelector", "")
    if name:
        fields = f"metadata.name={name}" + (f",{fields}" if fields else "")
    return selectors.combined(request.query.get("labelSelector", ""), fields)


def truth(request: web.Request, parameter: str) -> bool:
    """A parameter that is yes or no."""
    return request.query.get(parameter, "").lower() in ("true", "1")


def as_table(request: web.Request) -> bool:
    """True if the client prefers a Table."""
    return "as=Table" in request.headers.get("Accept", "").replace(" ", "")
