"""Clusters and the placement of our etcd → the members of the clusterset. Pure.

A member is a Cluster in which Karmada places the Service ``isthmus-system/isthmus-etcd-peers``: where Isthmus is
installed is decided by a PropagationPolicy, and there is no second list to keep. Its address is what that Service's
status has there, which Karmada collects in the ResourceBinding.

Whether a Cluster is Ready decides nothing: Karmada needs half a minute and more to notice that one died, and calls
avoid it by then. It leaves when its Cluster is deleted, or the Service is placed elsewhere. Where there is no placement
at all (a policy that is made anew, a scheduler that finds no place), whoever has keys stays.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from msgspec import Struct, structs

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.config import LABEL
from isthmus.kube.objects.karmada import AggregatedStatus, Cluster, ResourceBinding
from isthmus.model.addresses import is_range
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, valid_cluster

SYSTEM: Final = "isthmus-system"
"""Where Isthmus runs in members."""
ETCD_SERVICE: Final = "isthmus-etcd-peers"
ETCD_PORT: Final = 2379

ID: Final = "isthmus.io/cluster-id"
"""Annotation of a Cluster: its number in the clusterset, where that must be a certain one."""
ENDPOINTS: Final = "isthmus.io/etcd-endpoints"
"""Annotation: URLs at which other members reach its etcd, with commas, in place of what the Service's status has."""
POD_RANGES: Final = "isthmus.io/pod-ranges"
"""Annotation: where its pods have their addresses, as CIDRs with commas; no endpoint of it counts elsewhere."""
MOST_ID: Final = 255


class Member(Struct, frozen=True, kw_only=True):
    """A Cluster as a member of the clusterset, or why it is none."""

    name: ClusterName
    id: int = 0
    endpoints: tuple[str, ...] = ()
    """URLs of its etcd; empty: not known yet, so no peer can follow it."""
    pod_ranges: tuple[str, ...] = ()
    region: str = ""
    zones: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    """Of the Cluster, and its provider, as ``key=value``: policies select clusters by them."""
    ready: bool = False
    taints: tuple[str, ...] = ()
    problem: str = ""
    """Why it is no member; nothing is written for it then."""
    warning: str = ""
    """What is wrong with an annotation; it is a member without what that asks for."""

    @property
    def joins(self) -> bool:
        """Whether it gets keys."""
        return not self.problem


def members(
    clusters: Iterable[Cluster], bindings: Iterable[ResourceBinding], *, ids: Mapping[str, int]
) -> list[Member]:
    """All Clusters, by name. ``ids``: numbers that were given before; a member keeps its own while it has keys."""
    etcd_bindings = [each for each in bindings if is_etcds(each)]
    placed = {target.name for binding in etcd_bindings for target in binding.spec.clusters or ()} or set(ids)
    seen = {each.cluster_name: each for binding in etcd_bindings for each in _statuses(binding)}
    taken: dict[int, ClusterName] = {}
    all_of_them = []
    for cluster in sorted(clusters, key=lambda each: _precedence(each, ids)):
        member = _member(cluster, placed=placed, seen=seen.get(cluster.metadata.name))
        if member.joins:
            member = _numbered(member, cluster, ids=ids, taken=taken)
        if member.joins:
            taken[member.id] = member.name
        all_of_them.append(member)
    return sorted(all_of_them, key=lambda each: each.name)


def _precedence(cluster: Cluster, ids: Mapping[str, int]) -> tuple[bool, bool, str, str]:
    """Who has a number first: who asks for one, then who had one, then the oldest."""
    meta = cluster.metadata
    return (
        ID not in (meta.annotations or {}),
        meta.name not in ids,
        meta.creation_timestamp or "~",
        meta.name,
    )


def _member(cluster: Cluster, *, placed: Collection[str], seen: AggregatedStatus | None) -> Member:
    meta, spec = cluster.metadata, cluster.spec
    given = meta.annotations or {}
    ranges = _listed(given.get(POD_RANGES, ""))
    bad = [each for each in ranges if not is_range(each)]
    if not valid_cluster(meta.name):
        problem = "its name cannot be a cluster's in a clusterset: 1 to 32 of a-z, 0-9 and -"
    elif meta.deletion_timestamp:
        problem = "it is being deleted"
    else:
        problem = "" if meta.name in placed else f"Karmada does not place Service {SYSTEM}/{ETCD_SERVICE} in it"
    return Member(
        name=ClusterName(meta.name),
        endpoints=_listed(given.get(ENDPOINTS, "")) or tuple(_endpoints(seen)),
        pod_ranges=tuple(each for each in ranges if each not in bad),
        region=spec.region or "",
        zones=tuple(spec.zones or filter(None, (spec.zone,))),
        labels=tuple(_labels(cluster)),
        ready=any(each.type == "Ready" and each.status == "True" for each in _conditions(cluster)),
        taints=tuple(f"{each.key}:{each.effect}" for each in spec.taints or ()),
        problem=problem,
        warning=f"annotation {POD_RANGES}: '{bad[0]}' is no range of addresses" if bad else "",
    )


def _numbered(member: Member, cluster: Cluster, *, ids: Mapping[str, int], taken: Mapping[int, ClusterName]) -> Member:
    """The member with the number that it asks for, or had before, or the lowest free one."""
    asked = (cluster.metadata.annotations or {}).get(ID, "")
    try:
        number = bounds.count(asked, least=1, most=MOST_ID)
    except OutOfBounds:
        number = 0
    if asked and not number:
        member = structs.replace(member, warning=f"annotation {ID}: {bounds.shown(asked)} is not 1 to {MOST_ID}")
    elif asked and number in taken:
        member = structs.replace(member, warning=f"annotation {ID}: {number} is the id of {taken[number]}")
    elif asked:
        return structs.replace(member, id=number)
    before, reserved = ids.get(member.name, 0), {*taken, *ids.values()}
    free = (each for each in range(1, MOST_ID + 1) if each not in reserved)
    number = before if before and before not in taken else next(free, 0)
    return structs.replace(member, id=number, problem="" if number else f"all {MOST_ID} ids are taken")


def is_etcds(binding: ResourceBinding) -> bool:
    """Whether it places the Service by which members reach our etcd."""
    resource = binding.spec.resource
    return (resource.kind, resource.namespace, resource.name) == ("Service", SYSTEM, ETCD_SERVICE)


def _statuses(binding: ResourceBinding) -> list[AggregatedStatus]:
    return list(binding.status.aggregated_status or ()) if binding.status else []


def _endpoints(seen: AggregatedStatus | None) -> Iterable[str]:
    """Where a load balancer was given to the Service, as URLs."""
    balancer = (seen.status or {}).get("loadBalancer") if seen is not None else None
    ingress = balancer.get("ingress") if isinstance(balancer, dict) else None
    for each in ingress if isinstance(ingress, list) else ():
        host = each.get("ip") or each.get("hostname") if isinstance(each, dict) else None
        if isinstance(host, str):
            yield f"https://{joined(host, str(ETCD_PORT))}"


def _labels(cluster: Cluster) -> list[str]:
    own = [f"{key}={value}" for key, value in (cluster.metadata.labels or {}).items() if "karmada.io/" not in key]
    provider = [f"provider={cluster.spec.provider}"] if cluster.spec.provider else []
    return sorted(each for each in {*own, *provider} if LABEL.fits(each) and "," not in each)


def _conditions(cluster: Cluster) -> Iterable[Any]:
    return (cluster.status.conditions or ()) if cluster.status else ()


def _listed(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
