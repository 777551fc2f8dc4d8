"""The table ``guards``: ports of this node's pods whose callers from other clusters are verified, with the policy.

Only addresses of the namespace's own pods are guarded. An EndpointSlice may list any address, and must not make
another namespace's pod refuse its callers. Pods of the host's network have no interface of their own, so they have no
guard. Of each pod a bounded number of ports is guarded: slices may name thousands, which would fill the kernel's map,
and leave pods of other namespaces without guards.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from isthmus.identity.allow import judging, precedence
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.names import ClusterName, split
from isthmus.model.services import ENDED, EndpointSet, ExportMark, Pod, Protocol
from isthmus.model.signing import Guard
from isthmus.model.sources import KUBERNETES
from isthmus.model.tables import ENDPOINT_SETS, EXPORT_MARKS, EXPORT_POLICIES, GUARDS, PODS
from isthmus.statedb import Derived, Reader, on_change, unit_of

MAX_PORTS: Final = 250
"""Ports of one pod that are guarded, the lowest ones: 65,536 entries of the kernel's map suffice for 260 pods."""

GuardedPort = tuple[str, int, Protocol]


def derived(cluster: ClusterName) -> Derived[Guard]:
    """Declare ``guards`` for a node of a cluster. Its unit is a namespace: exports of one may share pods."""

    def compute(reader: Reader, namespace: str) -> list[Guard]:
        return list(_guards(reader, namespace, cluster))

    def by_endpoints(reader: Reader, old: EndpointSet | None, new: EndpointSet | None) -> Iterable[str]:
        row = new or old
        if row is None or (row.cluster, row.source) != (cluster, KUBERNETES):
            return ()
        return _with_policies(reader, split(row.service)[0])

    return Derived(
        GUARDS,
        compute=compute,
        unit="namespace",
        reads={
            EXPORT_POLICIES: unit_of("namespace"),
            EXPORT_MARKS: on_change((), _by_object),
            ENDPOINT_SETS: by_endpoints,
            PODS: on_change(("uid", "addresses", "host_network", "phase"), _by_object),
        },
    )


def _by_object(reader: Reader, old: ExportMark | Pod | None, new: ExportMark | Pod | None) -> Iterable[str]:
    row = new or old
    return _with_policies(reader, row.name.partition("/")[0]) if row is not None else ()


def _with_policies(reader: Reader, namespace: str) -> Iterable[str]:
    """The namespace if it has policies; without any it has no guard, and its changes cost nothing more."""
    return (namespace,) if reader.by(EXPORT_POLICIES, "namespace", namespace) else ()


def _guards(reader: Reader, namespace: str, cluster: ClusterName) -> Iterator[Guard]:
    if not reader.by(EXPORT_POLICIES, "namespace", namespace):
        return
    pods = reader.by(PODS, "namespace", namespace)
    pod_of = {address: pod.uid for pod in pods if _has_interface(pod) for address in pod.addresses}
    if not pod_of:
        return
    judge = judging(reader)
    found: dict[GuardedPort, ExportPolicy] = {}
    for mark in reader.by(EXPORT_MARKS, "namespace", namespace):
        policy = judge(mark.name)
        if policy is None:
            continue
        for port in _ports(reader, mark, policy, cluster, pod_of):
            # A node sees the pod that is called, not the export, so a port of several exports has one policy.
            found[port] = min(policy, found.get(port, policy), key=precedence)
    for (address, number, protocol), policy in _bounded(found, pod_of):
        yield Guard(
            policy=policy.name,
            address=address,
            uid=pod_of[address],
            port=number,
            protocol=protocol,
            audit=policy.audit,
            require=policy.require,
            cut=policy.cut and not policy.audit,
        )


def _bounded(
    found: Mapping[GuardedPort, ExportPolicy], pod_of: Mapping[str, str]
) -> Iterator[tuple[GuardedPort, ExportPolicy]]:
    """Yield the lowest MAX_PORTS ports of each pod. The same port of two addresses of a pod is one."""
    kept: defaultdict[str, set[tuple[int, Protocol]]] = defaultdict(set)
    for port, policy in sorted(found.items(), key=lambda item: item[0][1:]):
        ports = kept[pod_of[port[0]]]
        if len(ports) < MAX_PORTS or port[1:] in ports:
            ports.add(port[1:])
            yield port, policy


def _has_interface(pod: Pod) -> bool:
    """False for a pod of the host's network, and one that has ended: its address may be another pod's by now."""
    return not pod.host_network and pod.phase not in ENDED


def _ports(
    reader: Reader, export: ExportMark, policy: ExportPolicy, cluster: ClusterName, addresses: Container[str]
) -> Iterator[GuardedPort]:
    """Yield the ports of an export's pods, at some addresses, that a policy judges."""
    protocols = ("TCP", "UDP") if policy.enforce == "all" else ("TCP",)
    for row in reader.by(ENDPOINT_SETS, "service", export.name):
        if (row.cluster, row.source) != (cluster, KUBERNETES):
            continue
        for endpoint in row.endpoints:
            if endpoint.address in addresses:
                yield from ((endpoint.address, p.port, p.protocol) for p in endpoint.ports if p.protocol in protocols)
