"""What a request asks for: its path, its parameters, its body."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import yaml
from aiohttp import web

from isthmus_lab.apiserver import errors, protobuf, selectors
from isthmus_lab.apiserver.api import By, Deletion
from isthmus_lab.apiserver.kinds import Kind, Registry
from isthmus_lab.apiserver.selectors import Predicate


class ObjectPath(NamedTuple):
    """What a path names: a kind, and as much of an object as the path has."""

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
    """What a path below /api or /apis names; an ApiError where nothing is served there.

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
    except msgspec.DecodeError as error:
        if "yaml" not in request.content_type:
            raise errors.bad_request(f"the body is not JSON: {error}") from None
    try:
        return yaml.load(raw, Loader=_Loader)
    except yaml.YAMLError as error:
        raise errors.bad_request(f"the body is not YAML: {' '.join(str(error).split())}") from None


def by(request: web.Request, version: str) -> By:
    """The field manager of a request: the one it names, else the program of its User-Agent."""
    agent = request.headers.get("User-Agent", "").partition("/")[0]
    manager = request.query.get("fieldManager") or agent or "unknown"
    return By(manager[:128], version, dry_run=bool(request.query.get("dryRun")))


def deletion(request: web.Request, options: Any) -> Deletion:
    """How to delete, from DeleteOptions and from parameters."""
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
        return int(text)
    except (TypeError, ValueError):
        raise errors.bad_request(f"{what}: {text!r} is not a number") from None


def selector(request: web.Request, name: str) -> Predicate | None:
    """Which objects are meant, None for all. A watch or a list at the path of one object means that one."""
    fields = request.query.get("fieldSelector", "")
    if name:
        fields = f"metadata.name={name}" + (f",{fields}" if fields else "")
    return selectors.both(request.query.get("labelSelector", ""), fields)


def truth(request: web.Request, parameter: str) -> bool:
    """A parameter that is yes or no."""
    return request.query.get(parameter, "").lower() in ("true", "1")


def as_table(request: web.Request) -> bool:
    """Whether the client would rather have a Table."""
    return "as=Table" in request.headers.get("Accept", "").replace(" ", "")
