"""The export record: what one cluster publishes about one export.

Read with tolerance: an unknown value of a closed set costs the field, not the record. Written so that older peers
read it too: labels and annotations in both spellings, a session affinity always, times in whole seconds.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.clusterset.records import decoding
from isthmus.clusterset.records.decoding import Text
from isthmus.model.names import LABEL, QUALIFIED, ClusterName, ServiceName, split
from isthmus.model.services import Export, Family, Port

LIMIT: Final = 256 * 1024
MAX_AFFINITY: Final = 86_400
"""Seconds: the bound of a Service's session affinity in Kubernetes."""
DISTRIBUTIONS: Final = frozenset({"PreferClose", "PreferSameZone", "PreferSameNode"})


class _Port(Struct, gc=False):
    port: int
    name: Text = ""
    protocol: str = ""
    app_protocol: Text = msgspec.field(name="appProtocol", default="")


class _ClientIp(Struct, gc=False):
    timeout: int | None = msgspec.field(name="timeoutSeconds", default=None)


class _AffinityConfig(Struct, gc=False):
    client_ip: _ClientIp | None = msgspec.field(name="clientIP", default=None)


class _Export(Struct):
    cluster: str
    name: str
    namespace: str
    created: str = msgspec.field(name="exportCreationTimestamp")
    type: str = ""
    ports: list[_Port] | None = None
    affinity: str = msgspec.field(name="sessionAffinity", default="")
    affinity_config: _AffinityConfig | None = msgspec.field(name="sessionAffinityConfig", default=None)
    families: list[str] | None = msgspec.field(name="ipFamilies", default=None)
    internal_policy: str | None = msgspec.field(name="internalTrafficPolicy", default=None)
    distribution: str | None = msgspec.field(name="trafficDistribution", default=None)
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    old_labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)
    old_annotations: dict[str, str] | None = msgspec.field(name="Annotations", default=None)


_decoder = msgspec.json.Decoder(_Export)


def decode(value: bytes, *, cluster: ClusterName, name: ServiceName) -> Export:
    """The export in a record of this cluster, under the key of this name; RecordError where it is none."""
    fields = decoding.decode(value, _decoder, limit=LIMIT)
    decoding.check_owner(
        cluster=fields.cluster, namespace=fields.namespace, name=fields.name, expected_cluster=cluster, expected=name
    )
    affinity: Literal["None", "ClientIP"] = "ClientIP" if fields.affinity == "ClientIP" else "None"
    timeout = (
        fields.affinity_config.client_ip.timeout
        if fields.affinity_config and fields.affinity_config.client_ip
        else None
    )
    policy = fields.internal_policy if fields.internal_policy in ("Cluster", "Local") else None
    return Export(
        cluster=cluster,
        name=name,
        created=decoding.parse_timestamp(fields.created),
        type="Headless" if fields.type == "Headless" else "ClusterSetIP",
        ports=tuple(port for each in fields.ports or () if (port := _port(each)) is not None),
        affinity=affinity,
        affinity_timeout=timeout if timeout is not None and 0 < timeout <= MAX_AFFINITY else None,
        families=_families(fields.families or ()),
        internal_policy=cast("Literal['Cluster', 'Local'] | None", policy),
        distribution=fields.distribution if fields.distribution in DISTRIBUTIONS else None,
        labels=decoding.labels((fields.labels or fields.old_labels or {}).items()),
        annotations=decoding.labels((fields.annotations or fields.old_annotations or {}).items()),
    )


def encode(export: Export) -> bytes:
    """The record of an export."""
    namespace, name = split(export.name)
    fields: dict[str, Any] = {"cluster": export.cluster, "name": name, "namespace": namespace}
    annotations, labels = dict(export.annotations), dict(export.labels)
    fields |= {"annotations": annotations} if annotations else {}
    fields |= {"labels": labels, "Labels": labels} if labels else {}
    fields |= {"Annotations": annotations} if annotations else {}
    fields |= {"exportCreationTimestamp": export.created}
    fields |= {"ports": [_port_json(port) for port in export.ports]}
    fields |= {"type": export.type, "sessionAffinity": export.affinity}
    if export.affinity_timeout is not None:
        fields["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": export.affinity_timeout}}
    fields |= {"ipFamilies": list(export.families)} if export.families else {}
    fields |= {"internalTrafficPolicy": export.internal_policy} if export.internal_policy else {}
    fields |= {"trafficDistribution": export.distribution} if export.distribution else {}
    return msgspec.json.encode(fields)


def _port(fields: _Port) -> Port | None:
    """A port of a Service; None where it cannot be one."""
    protocol = decoding.protocol(fields.protocol)
    app_protocol = fields.app_protocol if QUALIFIED.fits(fields.app_protocol) else ""
    if protocol is None or (fields.name and not LABEL.fits(fields.name)):
        return None
    try:
        return Port(fields.name, bounds.port(fields.port), protocol, app_protocol)
    except OutOfBounds:
        return None


def _port_json(port: Port) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": port.name} if port.name else {}
    fields |= {"protocol": port.protocol}
    fields |= {"appProtocol": port.app_protocol} if port.app_protocol else {}
    return fields | {"port": port.port}


def _families(fields: Any) -> tuple[Family, ...]:
    return tuple(dict.fromkeys(family for family in fields if family in ("IPv4", "IPv6")))
