"""Roles and bindings on a real kube-apiserver, for tests of a part that has the rights of its deployment alone."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from clusters.apiserver_world import TIMEOUT

from isthmus import kube
from isthmus.kube.objects.meta import Meta, Wire

GROUP: Final = "rbac.authorization.k8s.io"


class Rule(Wire, frozen=True):
    """A role or a binding of one."""

    metadata: Meta


KINDS: Final = {
    kind: kube.Kind(GROUP, "v1", f"{kind.lower()}s", kind, Rule, namespaced=not kind.startswith("Cluster"))
    for kind in ("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")
}


def user(name: str) -> dict[str, Any]:
    """The subject of a binding that gives a role to a user of ``kube_apiserver.TOKENS``."""
    return {"kind": "User", "apiGroup": GROUP, "name": name}


async def until_allowed(client: kube.Client, kind: kube.Kind[Any], namespace: str = "") -> None:
    """Wait until a client may list a kind: the authorizer gets roles by a watch for each kind of role."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                await client.list(kind, namespace)
                break
            except kube.Forbidden:
                await asyncio.sleep(0.02)
