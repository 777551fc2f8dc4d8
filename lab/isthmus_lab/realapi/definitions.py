"""The CustomResourceDefinitions of ``deploy/crds``, applied to every server, and those of routes where Envoys are.

One of a kind that a server has built in changes nothing. The kinds of the Gateway API have a schema here that takes
everything: what is wrong with a route is in its status. Whoever wants the real ones applies these over them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import yaml

import isthmus_lab
from isthmus import kube
from isthmus.installation import shipped
from isthmus.kube.kind import Kind
from isthmus.kube.objects.gateway import GROUP as GATEWAY_API
from isthmus.kube.objects.meta import Meta, Wire

MANAGER: Final = "isthmus-lab"
CREATED: Final = ".metadata.creationTimestamp"


class Definition(Wire, frozen=True):
    """A CustomResourceDefinition."""

    metadata: Meta


DEFINITION: Final = Kind(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", Definition, namespaced=False
)


def directory() -> Path:
    """Return the directory of the definitions."""
    return shipped.directory("deploy/crds", isthmus_lab)


def bodies() -> list[dict[str, Any]]:
    """Definitions as parsed from the files."""
    return [yaml.safe_load(file.read_text()) for file in sorted(directory().glob("*.yaml"))]


def _of_routes(kind: str, plural: str, *versions: str, status: bool, columns: list[dict[str, str]]) -> dict[str, Any]:
    """A definition of the Gateway API. Its annotation is what a server asks for in groups of Kubernetes' own."""
    version = {
        "served": True,
        "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
        "subresources": {"status": {}} if status else {},
        "additionalPrinterColumns": [*columns, {"name": "Age", "type": "date", "jsonPath": CREATED}],
    }
    return {
        "metadata": {
            "name": f"{plural}.{GATEWAY_API}",
            "annotations": {"api-approved.kubernetes.io": "unapproved, of a lab: without a schema"},
        },
        "spec": {
            "group": GATEWAY_API,
            "scope": "Namespaced",
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [{"name": each, "storage": each == versions[0], **version} for each in versions],
        },
    }


def of_routes() -> list[dict[str, Any]]:
    """Routes, BackendTLSPolicy and ReferenceGrant, in the versions that the Gateway API serves."""
    hostnames = {"name": "Hostnames", "type": "string", "jsonPath": ".spec.hostnames"}
    return [
        _of_routes("HTTPRoute", "httproutes", "v1", "v1beta1", status=True, columns=[hostnames]),
        _of_routes("GRPCRoute", "grpcroutes", "v1", status=True, columns=[hostnames]),
        _of_routes("TCPRoute", "tcproutes", "v1", status=True, columns=[]),
        _of_routes("UDPRoute", "udproutes", "v1", status=True, columns=[]),
        _of_routes("BackendTLSPolicy", "backendtlspolicies", "v1", status=True, columns=[]),
        _of_routes("ReferenceGrant", "referencegrants", "v1beta1", "v1", status=False, columns=[]),
    ]


async def apply(client: kube.Client, *, routes: bool = False) -> None:
    """Apply all of them; a KubeError until the server serves each of their kinds."""
    applied = (*bodies(), *(of_routes() if routes else ()))
    for body in applied:
        await client.apply(DEFINITION, "", body["metadata"]["name"], body, field_manager=MANAGER)
    for spec in (body["spec"] for body in applied):
        for version in spec["versions"]:
            await client.kind(f"{spec['group']}/{version['name']}", spec["names"]["kind"], Definition)
