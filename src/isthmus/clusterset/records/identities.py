"""The identity record: the labels of a number, in Cilium's layout.

Cilium numbers sets of labels; ours have three: cluster, namespace and service account. Of Cilium's the same three are
read, so that several of its numbers may be one account here. A number without an account (``reserved:host``) is no
caller that a policy names, and no row.
"""

from __future__ import annotations

from typing import Final

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.records.identity import Most
from isthmus.model.identities import BITS, Identity, numbers, parse_number
from isthmus.model.names import LABEL, SUBDOMAIN, ClusterName

LIMIT: Final = 32 * 1024
"""Bytes of a record: Cilium's have all labels of a pod and of its namespace."""
CLUSTER: Final = "k8s:io.cilium.k8s.policy.cluster"
ACCOUNT: Final = "k8s:io.cilium.k8s.policy.serviceaccount"
NAMESPACE: Final = "k8s:io.kubernetes.pod.namespace"


def encode(identity: Identity) -> bytes:
    """The record of an identity: its labels in order, with a semicolon after each."""
    labels = {CLUSTER: identity.cluster, ACCOUNT: identity.service_account, NAMESPACE: identity.namespace}
    return "".join(f"{key}={value};" for key, value in sorted(labels.items())).encode()


def decode(value: bytes, *, cluster: ClusterName, cluster_id: int, number: str, most: Most) -> Identity | None:
    """The identity in a record of this cluster; ``None`` for one without an account. RecordError if it is unusable.

    ``most``: the own maxConnectedClusters, by which the number's upper part has to be the cluster's id.
    """
    if len(value) > LIMIT:
        raise RecordError(f"{len(value)} bytes, at most {LIMIT} are taken")
    known = parse(number)
    own = numbers(cluster_id, most)
    if known not in own:
        raise RecordError(f"{known} is not in the range of its cluster, {own[0]} to {own[-1]}")
    labels = _labels(value)
    if not {NAMESPACE, ACCOUNT} <= labels.keys():
        return None
    if (named := labels.get(CLUSTER, "")) != cluster:
        raise RecordError(f"it speaks for cluster {bounds.shown(named)}, not for {cluster}")
    return Identity(
        cluster=cluster,
        number=known,
        namespace=LABEL.text(labels[NAMESPACE], field=NAMESPACE),
        service_account=SUBDOMAIN.text(labels[ACCOUNT], field=ACCOUNT),
    )


def parse(key: str) -> int:
    """The number that a key below the prefix names; RecordError if it names none."""
    try:
        return parse_number(key, field="the key")
    except OutOfBounds as error:
        raise RecordError(f"it is no number of {BITS} bits: {error}") from None


def _labels(value: bytes) -> dict[str, str]:
    """The labels that we read; RecordError if one is there twice."""
    try:
        text = value.decode()
    except UnicodeDecodeError:
        raise RecordError("it is not UTF-8") from None
    found: dict[str, str] = {}
    for label in text.split(";"):
        key, _, of_key = label.partition("=")
        if key in (CLUSTER, ACCOUNT, NAMESPACE):
            if key in found:
                raise RecordError(f"it has the label {key} twice")
            found[key] = of_key
    return found
