"""CallerIdentity objects as rows: the numbers of the own cluster's service accounts."""

from __future__ import annotations

from collections.abc import Callable

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.kube.objects.identities import CallerIdentity
from isthmus.model.identities import Identity, parse_number
from isthmus.model.names import LABEL, SUBDOMAIN, ClusterName
from isthmus.times import timestamp


def identity(cluster: ClusterName) -> Callable[[CallerIdentity], Identity]:
    """Return the conversion of a cluster's CallerIdentity objects. An unreadable time is as good as none."""

    def convert(wire: CallerIdentity) -> Identity:
        return Identity(
            cluster=cluster,
            number=parse_number(wire.metadata.name, field="metadata.name"),
            namespace=LABEL.text(wire.spec.namespace, field="spec.namespace"),
            service_account=SUBDOMAIN.text(wire.spec.service_account, field="spec.serviceAccount"),
            unused_since=_time(wire.status.unused_since if wire.status is not None else None),
        )

    return convert


def _time(text: str | None) -> str:
    try:
        return timestamp(bounds.timestamp(text)) if text else ""
    except OutOfBounds:
        return ""
