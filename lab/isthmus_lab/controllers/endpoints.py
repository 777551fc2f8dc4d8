"""EndpointSlices of Services with a selector: who answers, on which ports, and in what state they are."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

import msgspec

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, Deletion
from isthmus_lab.apiserver.ipfamilies import family_of
from isthmus_lab.apiserver.objects import Object, deleting, items, labels_of, name_of, namespace_of, nested
from isthmus_lab.apiserver.storage import Change, Item
from isthmus_lab.controllers import pods
from isthmus_lab.controllers.loop import Controller, author

KIND = kinds.ENDPOINT_SLICE
AUTHOR = author("endpointslice-controller")
SERVICE_NAME: Final = "kubernetes.io/service-name"
MANAGED_BY: Final = "endpointslice.kubernetes.io/managed-by"
MANAGER: Final = "endpointslice-controller.k8s.io"
HEADLESS: Final = "service.kubernetes.io/headless"
ZONE: Final = "topology.kubernetes.io/zone"
SLICE_SIZE: Final = 100
"""Endpoints in one slice."""


class Slice(NamedTuple):
    """Desired content of one EndpointSlice."""

    family: str
    ports: list[Object]
    endpoints: list[Object]


def controller(api: Api) -> Controller:
    """The controller of EndpointSlices."""

    def keys(change: Change) -> Iterable[str]:
        if change.resource == kinds.SERVICE.qualified:
            return [change.key]
        if change.resource == KIND.qualified:
            return _slice_keys(change)
        return _pod_keys(api, change)

    async def reconcile(key: str) -> float | None:
        service = api.store.get(kinds.SERVICE.qualified, key)
        if service is not None and not deleting(service.body) and nested(service.body, "spec", "selector"):
            await _reconcile(api, service.body)
        return None

    follows = [kinds.SERVICE, kinds.POD, KIND]
    return Controller(api, name="endpointslices", follows=follows, keys=keys, reconcile=reconcile)


def slices(service: Object, chosen: Iterable[Object], *, zone: dict[str, str]) -> list[Slice]:
    """Desired slices of a Service for its selected pods; ``zone`` maps nodes to zones."""
    grouped: dict[tuple[str, bytes], Slice] = {}
    for pod in chosen:
        ports = _ports(service, pod)
        for family in nested(service, "spec", "ipFamilies", default=()):
            if address := _address(pod, family):
                group = grouped.setdefault((family, msgspec.json.encode(ports)), Slice(family, ports, []))
                group.endpoints.append(_endpoint(service, pod, address, zone))
    result = []
    for family, ports, endpoints in (group for _, group in sorted(grouped.items())):
        endpoints.sort(key=lambda endpoint: str(endpoint["addresses"]))
        result += [Slice(family, ports, endpoints[i : i + SLICE_SIZE]) for i in range(0, len(endpoints), SLICE_SIZE)]
    families = {each.family for each in result}
    missing = [family for family in nested(service, "spec", "ipFamilies", default=()) if family not in families]
    return result + [Slice(family, [], []) for family in missing]


def _slice_keys(change: Change) -> Iterable[str]:
    for item in (change.old, change.new):
        if item is not None and labels_of(item.body).get(MANAGED_BY) == MANAGER:
            yield f"{namespace_of(item.body)}/{labels_of(item.body).get(SERVICE_NAME, '')}"


def _pod_keys(api: Api, change: Change) -> Iterable[str]:
    namespace = change.key.partition("/")[0]
    labels = [labels_of(item.body).items() for item in (change.old, change.new) if item is not None]
    for service in api.store.items(kinds.SERVICE.qualified, namespace):
        selector = nested(service.body, "spec", "selector", default={}).items()
        if selector and any(selector <= have for have in labels):
            yield service.key


async def _reconcile(api: Api, service: Object) -> None:
    namespace = namespace_of(service)
    selector = service["spec"]["selector"].items()
    candidates = [item.body for item in api.store.items(kinds.POD.qualified, namespace)]
    chosen = [pod for pod in candidates if selector <= labels_of(pod).items() and _counts(pod)]
    nodes = [node.body for node in api.store.items(kinds.NODE.qualified)]
    zone = {name_of(node): labels_of(node)[ZONE] for node in nodes if ZONE in labels_of(node)}
    want = slices(service, chosen, zone=zone)
    have = [s for s in api.store.items(KIND.qualified, namespace) if _is_ours(s.body, service)]
    for item, desired in _matched(have, want):
        if desired is None and item is not None:
            await api.delete(KIND, namespace, name_of(item.body), Deletion(uid=item.body["metadata"]["uid"]))
        elif desired is not None:
            await _write(api, service, item, desired)


def _matched(have: list[Item], want: list[Slice]) -> list[tuple[Item | None, Slice | None]]:
    """Pair existing slices with desired ones of the same family, so that each changes least."""
    pairs: list[tuple[Item | None, Slice | None]] = []
    rest = list(have)
    for desired in want:
        same = [item for item in rest if item.body.get("addressType") == desired.family]
        best = max(same, key=lambda item: _likeness(item.body, desired), default=None)
        if best is not None:
            rest.remove(best)
        pairs.append((best, desired))
    return pairs + [(item, None) for item in rest]


def _likeness(body: Object, desired: Slice) -> tuple[bool, bool]:
    return body.get("ports") == desired.ports, body.get("endpoints") == desired.endpoints


async def _write(api: Api, service: Object, item: Item | None, desired: Slice) -> None:
    namespace, labels = namespace_of(service), _labels(service)
    content: Object = {"endpoints": desired.endpoints, "ports": desired.ports}
    if item is None:
        owner = pods.reference(kinds.SERVICE, service)
        meta: Object = {"generateName": f"{name_of(service)}-", "labels": labels, "ownerReferences": [owner]}
        await api.create(KIND, namespace, {"metadata": meta, "addressType": desired.family, **content}, author=AUTHOR)
        return

    def edit(old: Object) -> Object:
        return old | content | {"metadata": old["metadata"] | {"labels": labels}}

    if edit(item.body) != item.body:
        await api.edit(KIND, namespace, name_of(item.body), edit, author=AUTHOR)


def _is_ours(body: Object, service: Object) -> bool:
    labels = labels_of(body)
    return labels.get(MANAGED_BY) == MANAGER and labels.get(SERVICE_NAME) == name_of(service) and not deleting(body)


def _labels(service: Object) -> dict[str, str]:
    headless = {HEADLESS: ""} if nested(service, "spec", "clusterIP") == "None" else {}
    managed = {SERVICE_NAME: name_of(service), MANAGED_BY: MANAGER}
    return {key: value for key, value in labels_of(service).items() if key != HEADLESS} | headless | managed


def _counts(pod: Object) -> bool:
    return nested(pod, "status", "phase") not in ("Succeeded", "Failed")


def _address(pod: Object, family: str) -> str:
    addresses = [each.get("ip", "") for each in items(pod, "status", "podIPs")] or [
        nested(pod, "status", "podIP", default="")
    ]
    return next((ip for ip in addresses if family_of(ip) == family), "")


def _endpoint(service: Object, pod: Object, address: str, zone: dict[str, str]) -> Object:
    serving, terminating = pods.ready(pod), deleting(pod)
    always = nested(service, "spec", "publishNotReadyAddresses", default=False)
    conditions = {"ready": always or (serving and not terminating), "serving": serving, "terminating": terminating}
    endpoint: Object = {"addresses": [address], "conditions": conditions}
    endpoint["targetRef"] = {
        "kind": "Pod",
        "namespace": namespace_of(pod),
        "name": name_of(pod),
        "uid": pod["metadata"]["uid"],
    }
    node = nested(pod, "spec", "nodeName")
    if node:
        endpoint["nodeName"] = node
    if node in zone:
        endpoint["zone"] = zone[node]
    hostname = nested(pod, "spec", "hostname")
    if hostname and nested(pod, "spec", "subdomain") == name_of(service):
        endpoint["hostname"] = hostname
    return endpoint


def _ports(service: Object, pod: Object) -> list[Object]:
    """The Service's ports as they are on a pod; a target port the pod has no name for is left out."""
    ports = []
    for port in items(service, "spec", "ports"):
        number = _target(port, pod)
        if number is not None:
            resolved = {"name": port.get("name") or "", "port": number, "protocol": port.get("protocol", "TCP")}
            ports.append(resolved | ({"appProtocol": port["appProtocol"]} if port.get("appProtocol") else {}))
    return ports


def _target(port: Object, pod: Object) -> Any:
    target = port.get("targetPort") or port.get("port")
    if isinstance(target, int):
        return target
    for container in items(pod, "spec", "containers"):
        for container_port in items(container, "ports"):
            if container_port.get("name") == target and container_port.get("protocol", "TCP") == port.get(
                "protocol", "TCP"
            ):
                return container_port.get("containerPort")
    return None
