"""Create the objects of an empty cluster: its namespaces and the Service ``kubernetes``."""

from __future__ import annotations

import asyncio

from isthmus import bounds, logs
from isthmus.reflector import Transient
from isthmus_lab.apiserver import definitions, kinds
from isthmus_lab.apiserver.api import Api, Author
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object

log = logs.get("apiserver")

AUTHOR = Author("kube-apiserver")
NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
LABELS = {"component": "apiserver", "provider": "kubernetes"}


async def bootstrap(api: Api, ready: asyncio.Event, *, host: str, port: int) -> None:
    """Create what is missing, then say that clients may come; again, should etcd lose it.

    ``host`` is where those inside the cluster reach us.
    """
    while True:
        try:
            await api.store.ready.wait()
            await _create_all(api, host, port)
            ready.set()
            await api.store.lost.wait()
        except (ApiError, Transient) as error:
            log.warning("not ready yet", why=str(error))
            await asyncio.sleep(0.2)


async def _create_all(api: Api, host: str, port: int) -> None:
    for item in api.store.items(kinds.CUSTOM_RESOURCE_DEFINITION.qualified):
        definitions.serve(api.registry, item.body)
    for name in NAMESPACES:
        await _ensure(api, kinds.NAMESPACE, "", {"metadata": {"name": name}})
    ports = [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": port}]
    spec = {"clusterIP": api.addresses.first(), "ports": ports}
    await _ensure(api, kinds.SERVICE, "default", {"metadata": {"name": "kubernetes", "labels": LABELS}, "spec": spec})
    address = bounds.ip(host)
    if address.is_unspecified:
        return
    labels = {"kubernetes.io/service-name": "kubernetes"}
    endpoints: Object = {
        "metadata": {"name": "kubernetes", "labels": labels},
        "addressType": f"IPv{address.version}",
        "endpoints": [{"addresses": [host], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
    }
    await _ensure(api, kinds.ENDPOINT_SLICE, "default", endpoints)


async def _ensure(api: Api, kind: Kind, namespace: str, obj: Object) -> None:
    try:
        await api.create(kind, namespace, obj, author=AUTHOR)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise
