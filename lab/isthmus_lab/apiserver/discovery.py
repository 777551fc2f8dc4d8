"""Discovery: groups, versions, resources, and as much of OpenAPI as kubectl needs.

The OpenAPI documents have no schemas; they announce server-side field validation, so kubectl skips its own.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from isthmus_lab.apiserver.kinds import VERBS, Kind, Registry
from isthmus_lab.apiserver.objects import Object
from isthmus_lab.apiserver.replies import reply

VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.4+isthmus-lab", "platform": "linux/amd64"}
VERSION |= dict.fromkeys(("gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler"), "")
SWAGGER = {"swagger": "2.0", "info": {"title": "Kubernetes", "version": "v1.32.4"}, "paths": {}, "definitions": {}}
SWAGGER_PROTOBUF = b"\x0a\x032.0\x12\x15\x0a\x0aKubernetes\x12\x07v1.32.4"
"""The version document as gnostic's message Document: swagger = 1, info = 2 {title = 1, version = 2}."""

SUBRESOURCE_VERBS = {
    "status": ("get", "patch", "update"),
    "scale": ("get", "patch", "update"),
    "finalize": ("update",),
    "binding": ("create",),
    "eviction": ("create",),
    "log": ("get",),
    "exec": ("create", "get"),
    "attach": ("create", "get"),
    "portforward": ("create", "get"),
    "token": ("create",),
}
OTHER_KINDS = {
    "scale": {"kind": "Scale", "group": "autoscaling", "version": "v1"},
    "eviction": {"kind": "Eviction", "group": "policy", "version": "v1"},
    "token": {"kind": "TokenRequest", "group": "authentication.k8s.io", "version": "v1"},
    "binding": {"kind": "Binding"},
}
"""Subresources that are objects of a kind of their own."""


def answer(registry: Registry, path: str, *, accept: str) -> web.Response | None:
    """The reply to a request that is about the server and not about objects; None for others."""
    match [part for part in path.split("/") if part]:
        case []:
            return reply({"paths": ["/api", "/apis", "/healthz", "/livez", "/openapi/v3", "/readyz", "/version"]})
        case ["version"]:
            return reply(VERSION)
        case ["api"]:
            return reply({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
        case ["apis"]:
            groups = [group(name, versions) for name, versions in registry.groups().items() if name]
            return reply({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
        case ["apis", name] if name in registry.groups():
            return reply({"kind": "APIGroup", "apiVersion": "v1", **group(name, registry.groups()[name])})
        case ["api", version] if version in registry.groups()[""]:
            return reply(resources(registry, "", version))
        case ["apis", name, version] if version in registry.groups().get(name, ()):
            return reply(resources(registry, name, version))
        case ["openapi", "v2"]:
            return _swagger(accept)
        case ["openapi", "v3"]:
            paths = {f"{_root(g)}/{v}": {"serverRelativeURL": f"/openapi/v3/{_root(g)}/{v}"} for g, v in _all(registry)}
            return reply({"paths": paths})
        case ["openapi", "v3", "api", version] if version in registry.groups()[""]:
            return reply(openapi(registry, "", version))
        case ["openapi", "v3", "apis", name, version] if version in registry.groups().get(name, ()):
            return reply(openapi(registry, name, version))
    return None


def group(name: str, versions: list[str]) -> Object:
    """An APIGroup."""
    entries = [{"groupVersion": f"{name}/{version}", "version": version} for version in versions]
    return {"name": name, "versions": entries, "preferredVersion": entries[0]}


def resources(registry: Registry, group_name: str, version: str) -> Object:
    """An APIResourceList."""
    entries: list[Object] = []
    for kind in registry:
        if kind.group == group_name and version in kind.versions:
            entries.append(_resource(kind))
            entries += [_subresource(kind, name) for name in sorted(kind.subresources)]
    version = f"{group_name}/{version}" if group_name else version
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": version, "resources": entries}


def openapi(registry: Registry, group_name: str, version: str) -> Object:
    """An OpenAPI v3 document with one fact for each kind: that its PATCH takes ``fieldValidation``."""
    paths: Object = {}
    for kind in registry:
        if kind.group != group_name or version not in kind.versions:
            continue
        space = "/namespaces/{namespace}" if kind.namespaced else ""
        where = f"/{_root(group_name)}/{version}{space}/{kind.resource}/{{name}}"
        parameters = [
            {"name": name, "in": "query", "schema": {"type": "string"}}
            for name in ("dryRun", "fieldManager", "fieldValidation")
        ]
        operation: dict[str, Any] = {
            "operationId": f"patch{kind.kind}",
            "parameters": parameters,
            "responses": {"200": {"description": "OK"}},
            "x-kubernetes-action": "patch",
            "x-kubernetes-group-version-kind": {"group": group_name, "version": version, "kind": kind.kind},
        }
        paths[where] = {"patch": operation}
    return {"openapi": "3.0.0", "info": SWAGGER["info"], "paths": paths, "components": {"schemas": {}}}


def _all(registry: Registry) -> list[tuple[str, str]]:
    return [(name, version) for name, versions in registry.groups().items() for version in versions]


def _root(group_name: str) -> str:
    return f"apis/{group_name}" if group_name else "api"


def _resource(kind: Kind) -> Object:
    entry: Object = {
        "name": kind.resource,
        "singularName": kind.singular,
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(VERBS),
    }
    entry |= {"shortNames": list(kind.short)} if kind.short else {}
    return entry | ({"categories": list(kind.categories)} if kind.categories else {})


def _subresource(kind: Kind, name: str) -> Object:
    entry: Object = {
        "name": f"{kind.resource}/{name}",
        "singularName": "",
        "namespaced": kind.namespaced,
        "kind": kind.kind,
        "verbs": list(SUBRESOURCE_VERBS[name]),
    }
    return entry | OTHER_KINDS.get(name, {})


def _swagger(accept: str) -> web.Response:
    if "protobuf" in accept:
        kind = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
        return web.Response(body=SWAGGER_PROTOBUF, content_type=kind)
    return reply(SWAGGER)
