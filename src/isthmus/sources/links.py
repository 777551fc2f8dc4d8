"""ClusterLink objects as rows, and the object that a command writes for a link.

An invalid object is a row whose field ``invalid`` gives the reason, which its status shows: a link that withdraws its
peer does so visibly. Certificates are judged later, by the room that signs them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.kube.objects.core import ConfigMap
from isthmus.kube.objects.links import CLUSTER_LINK, ClusterLink, ClusterLinkSpec, ClusterLinkStatus
from isthmus.model.addresses import is_range, overlap
from isthmus.model.links import Link, LinkCondition, LinkStatus
from isthmus.model.names import ClusterName, valid_cluster

MAX_ID: Final = 511
MAX_ENDPOINTS: Final = 16
MAX_ITEMS: Final = 64
"""Namespaces, or ranges."""
MAX_ENDPOINT: Final = 270
MAX_NAMESPACE: Final = 63
MAX_RANGE: Final = 49
MAX_NETWORK: Final = 253
MAX_BUNDLE: Final = 16_384
MAX_REQUEST: Final = 4_096
MAX_CERTIFICATE: Final = 8_192
"""Characters, as in deploy/crds/clusterlinks.yaml: a server without the schema admits more."""


def link(wire: ClusterLink) -> Link:
    """Return the row of a ClusterLink; it never raises for what an object may have."""
    meta = wire.metadata
    name = ClusterName(meta.name)
    row = Link(
        name=name,
        created=meta.creation_timestamp or "",
        generation=meta.generation,
        status=_status(wire.status),
    )
    try:
        return _filled(wire, row)
    except OutOfBounds as error:
        return _invalid(row, str(error))


def _filled(wire: ClusterLink, row: Link) -> Link:
    spec, name = wire.spec, row.name
    if not valid_cluster(name):
        return _invalid(row, f"metadata.name: {bounds.shown(name)} cannot be a cluster's name")
    if bool(spec.endpoints) == bool(spec.gateways):
        return _invalid(row, "spec: it wants either endpoints or gateways")
    urls = spec.endpoints or [f"https://{each}" for each in spec.gateways or ()]
    field = "spec.endpoints" if spec.endpoints else "spec.gateways"
    endpoints = [_endpoint(url, f"{field}[{number}]") for number, url in enumerate(_items(urls, MAX_ENDPOINTS, field))]
    ranges = _items(spec.pod_ranges or [], MAX_ITEMS, "spec.podRanges")
    for number, text in enumerate(ranges):
        if not is_range(bounds.text(text, least=1, most=MAX_RANGE, field=f"spec.podRanges[{number}]")):
            return _invalid(row, f"spec.podRanges[{number}]: {bounds.shown(text)} is no range of addresses")
    namespaces = _items(spec.namespaces or [], MAX_ITEMS, "spec.namespaces")
    for number, namespace in enumerate(namespaces):
        bounds.text(namespace, least=1, most=MAX_NAMESPACE, field=f"spec.namespaces[{number}]")
    return Link(
        name=name,
        id=bounds.count(spec.id, least=1, most=MAX_ID, field="spec.id"),
        endpoints=tuple(endpoints),
        by_gateways=not spec.endpoints,
        ca_bundle=bounds.size(spec.ca_bundle, least=1, most=MAX_BUNDLE, field="spec.caBundle"),
        namespaces=tuple(namespaces),
        pod_ranges=tuple(ranges),
        request=bounds.size(spec.request, most=MAX_REQUEST, field="spec.request"),
        certificate=bounds.size(spec.certificate, most=MAX_CERTIFICATE, field="spec.certificate"),
        created=row.created,
        generation=row.generation,
        status=row.status,
    )


def _items(items: list[str], most: int, field: str) -> list[str]:
    return bounds.size(items, most=most, field=field)


def _endpoint(url: str, field: str) -> str:
    """An https URL of host and port and nothing else."""
    bounds.text(url, least=1, most=MAX_ENDPOINT, field=field)
    try:
        parts = urlsplit(url)
        good = parts.scheme == "https" and parts.hostname and parts.port and url == f"https://{parts.netloc}"
    except ValueError:
        good = False
    if not good or "@" in url or not url.isprintable():
        raise OutOfBounds(f"{field}: {bounds.shown(url)}: want host and port, as https://host:port")
    return url


def _status(status: ClusterLinkStatus) -> LinkStatus:
    conditions = tuple(
        LinkCondition(
            type=each.type,
            status=each.status,
            reason=each.reason,
            message=each.message,
            generation=each.observed_generation,
            time=each.last_transition_time or "",
        )
        for each in status.conditions or ()
    )
    return LinkStatus(conditions=conditions, request=status.request, certificate=status.certificate)


def _invalid(row: Link, reason: str) -> Link:
    return Link(name=row.name, created=row.created, generation=row.generation, status=row.status, invalid=reason)


INFO: Final = "isthmus-cluster-info"
"""ConfigMap with what other clusters need of a cluster for a link. All of it is public."""

_texts = msgspec.json.Decoder(tuple[str, ...])


class Info(Struct, frozen=True, kw_only=True):
    """Facts about a cluster that its peers need for a link."""

    name: ClusterName
    id: int
    domain: str
    ca_bundle: str
    pod_ranges: tuple[str, ...] = ()
    network: str = ""
    """Its ``cluster.network``: clusters of another one call its pods through its gateways."""
    gateways: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    """URLs of its etcd for peers that use no gateway."""


def info_data(info: Info) -> dict[str, str]:
    """Encode it as the data of the ConfigMap."""
    lists = {"podRanges": info.pod_ranges, "gateways": info.gateways, "endpoints": info.endpoints}
    return {
        "name": info.name,
        "id": str(info.id),
        "domain": info.domain,
        "caBundle": info.ca_bundle,
        "network": info.network,
        **{name: msgspec.json.encode(value).decode() for name, value in lists.items()},
    }


def read_info(config_map: ConfigMap) -> Info:
    """Decode the ConfigMap; OutOfBounds names the field that cannot be used."""
    data = config_map.data or {}
    name = bounds.text(data.get("name"), least=1, most=63, field="name")
    if not valid_cluster(name):  # it becomes a path at the API servers of other clusters
        raise OutOfBounds(f"name: {bounds.shown(name)} cannot be a cluster's name")
    gateways, ranges = _decoded(data, "gateways", MAX_ENDPOINTS), _decoded(data, "podRanges", MAX_ITEMS)
    if bad := [each for each in ranges if not is_range(each)]:
        raise OutOfBounds(f"podRanges: {bounds.shown(bad[0])} is no range of addresses")
    for gateway in gateways:
        _endpoint(f"https://{gateway}", "gateways")
    return Info(
        name=ClusterName(name),
        id=bounds.count(data.get("id"), least=1, most=MAX_ID, field="id"),
        domain=bounds.text(data.get("domain"), least=1, most=253, field="domain"),
        ca_bundle=bounds.size(data.get("caBundle", ""), least=1, most=MAX_BUNDLE, field="caBundle"),
        pod_ranges=ranges,
        network=bounds.text(data.get("network", ""), most=MAX_NETWORK, field="network"),
        gateways=gateways,
        endpoints=tuple(_endpoint(each, "endpoints") for each in _decoded(data, "endpoints", MAX_ENDPOINTS)),
    )


def _decoded(data: Mapping[str, str], field: str, most: int) -> tuple[str, ...]:
    try:
        return bounds.size(bounds.json(data.get(field, "[]").encode(), _texts), most=most, field=field)
    except msgspec.MsgspecError:
        raise OutOfBounds(f"{field}: want a list of texts as JSON") from None


def unreachable(info: Info) -> str:
    """Reason why no other cluster can reach a cluster's etcd; empty if they have an address."""
    if info.gateways or info.endpoints:
        return ""
    return (
        f"cluster {info.name} has no address at which others reach its etcd: neither gateways nor a load "
        f"balancer for Service isthmus-etcd-peers. Name one: --endpoint {info.name}=https://HOST:PORT"
    )


def conflict(infos: Sequence[Info]) -> str:
    """Reason why these clusters cannot be linked to each other; empty if they can."""
    for number, info in enumerate(infos):
        for other in infos[:number]:
            if info.name == other.name:
                return f"two clusters are called {info.name}; each needs a name of its own"
            if info.id == other.id:
                return f"clusters {other.name} and {info.name} have the id {info.id}; each needs an id of its own"
            if info.domain != other.domain:
                return (
                    f"cluster {other.name} has the domain {other.domain}, cluster {info.name} {info.domain}: want one"
                )
            islands = info.network != other.network and info.gateways and other.gateways
            if not islands and (pair := overlap(other.pod_ranges, info.pod_ranges)):
                shared = " and ".join(pair)
                return f"pods of clusters {other.name} and {info.name} are in the same ranges: {shared}"
    return ""


def spec_of(peer: Info, *, before: ClusterLinkSpec, request: str, certificate: str, ready: bool) -> dict[str, Any]:
    """Spec of a link to a peer.

    ``before``: what it has now; ``request`` and ``certificate``: what the peer's own link displays. While the link is
    ready, what began it stays: later authorities and certificates are read from the peer's etcd. A peer with another
    key may be another installation, which a link that is still displayed as ready does not read.
    """
    ready = ready and request in ("", before.request)
    where = {"gateways": list(peer.gateways)} if peer.gateways else {"endpoints": list(peer.endpoints)}
    spec = {
        "id": peer.id,
        **where,
        "caBundle": before.ca_bundle if ready else peer.ca_bundle,
        "podRanges": list(peer.pod_ranges),
        "request": request or before.request,
        "certificate": before.certificate if ready or not certificate else certificate,
    }
    return {field: value for field, value in spec.items() if value}


def changes(before: ClusterLinkSpec, spec: Mapping[str, Any]) -> list[str]:
    """Fields of a spec that differ from what the link has now."""
    current = msgspec.to_builtins(before)
    return [field for field, value in spec.items() if current.get(field) != value]


def body(name: ClusterName, spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ClusterLink object of a peer, to be applied."""
    return {
        "apiVersion": CLUSTER_LINK.api_version,
        "kind": CLUSTER_LINK.kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "isthmus"}},
        "spec": dict(spec),
    }
