"""Chooses the pods of this node whose calls are not translated: those of a service mesh, and those that ask for it.

A mesh redirects the connects of its pods to a proxy in the pod. Translated before, a connect would hide from that proxy
which service was called, and succeed at the proxy even if the backend is dead. So such a pod calls the addresses of
imports as they are, and its proxy or kube-proxy answers them.

The choice on the pod precedes that on its namespace, and both precede the mesh. If this node translates every Service,
nothing else may answer, so a mesh alone changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from isthmus.loadbalancer.services import Which
from isthmus.model.pods import IgnoredPod
from isthmus.model.services import ENDED, Namespace, Pod
from isthmus.model.tables import IGNORED_PODS, NAMESPACES, PODS
from isthmus.statedb import Derived, Reader, on_change, through, unit_of


def derived(node: str, *, which: Which) -> Derived[IgnoredPod]:
    """Declare the table for a node."""
    return Derived(
        IGNORED_PODS,
        compute=partial(compute, node=node, which=which),
        reads={
            PODS: unit_of("name"),
            NAMESPACES: on_change(("datapath",), through(PODS, "name", index="namespace")),
        },
    )


def compute(reader: Reader, name: str, *, node: str, which: Which) -> Iterator[IgnoredPod]:
    """Yield the row of a pod if it is left alone."""
    pod = reader.get(PODS, name)
    if pod is None or pod.node != node or pod.phase in ENDED:
        return
    if reason := _reason(pod, reader.get(NAMESPACES, name.partition("/")[0]), detect=which != "all"):
        yield IgnoredPod(name, pod.uid, reason, () if pod.host_network else pod.addresses)


def _reason(pod: Pod, namespace: Namespace | None, *, detect: bool) -> str:
    if pod.datapath:
        return "isthmus.io/datapath of the pod" if pod.datapath == "ignore" else ""
    if namespace is not None and namespace.datapath:
        return "isthmus.io/datapath of its namespace" if namespace.datapath == "ignore" else ""
    return pod.mesh if detect else ""
