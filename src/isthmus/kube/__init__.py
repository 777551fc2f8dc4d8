"""A Kubernetes API server: client, list and watch, apply, lease, events.

What belongs here: transport and thin wire objects (``objects/`` has a module per API group). What never does: rows of
the model, decisions about objects, anything of a second cluster: a client speaks to one API server.

    async with await kube.connect(config.kubernetes) as client:
        service = await client.get(SERVICE, "echo", "demo")
        reflector = Reflector(client.store(SERVICE), sink, name="kubernetes/services")
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from isthmus import lazily

if TYPE_CHECKING:
    from isthmus.kube.client import Client, connect
    from isthmus.kube.errors import (
        AlreadyExists,
        Conflict,
        Forbidden,
        Invalid,
        KubeError,
        NotFound,
        NotServed,
        Unauthorized,
        Unreachable,
    )
    from isthmus.kube.kind import Kind, Object
    from isthmus.kube.store import KubeStore
else:
    __getattr__ = lazily.names(
        __name__,
        {
            "client": (
                "Client",
                "connect",
            ),
            "errors": (
                "AlreadyExists",
                "Conflict",
                "Forbidden",
                "Invalid",
                "KubeError",
                "NotFound",
                "NotServed",
                "Unauthorized",
                "Unreachable",
            ),
            "kind": (
                "Kind",
                "Object",
            ),
            "store": ("KubeStore",),
        },
    )

__all__ = [
    "AlreadyExists",
    "Client",
    "Conflict",
    "Forbidden",
    "Invalid",
    "Kind",
    "KubeError",
    "KubeStore",
    "NotFound",
    "NotServed",
    "Object",
    "Unauthorized",
    "Unreachable",
    "connect",
]
