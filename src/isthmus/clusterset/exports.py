"""The export record: what one cluster publishes about one export.

Read with tolerance: an unknown value of a closed set costs the field, not the record. Written so that older peers
read it too: labels and annotations in both spellings, a session affinity always, times in whole seconds.
"""

from __future__ import annotations

from typing import Any, Final, Literal, cast

import msgspec
from msgspec import Struct

from isthmus.clusterset import decoding
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.services import Export, Family, Port

LIMIT: Final = 256 * 1024
DISTRIBUTIONS: Final = frozenset({"PreferClose", "PreferSameZone", "PreferSameNode"})


class _Port(Struct, gc=False):
    port: int
    name: str = ""
    protocol: str = ""
    app_protocol: str = msgspec.field(name="appProtocol", default="")


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
    """The export that a record of this cluster, under the key of this name, tells of; RecordError where it is none."""
    said = decoding.decode(value, _decoder, limit=LIMIT)
    decoding.check_owner(
        cluster=said.cluster, namespace=said.namespace, name=said.name, expected_cluster=cluster, expected=name
    )
    affinity: Literal["None", "ClientIP"] = "ClientIP" if said.affinity == "ClientIP" else "None"
    timeout = (
        said.affinity_config.client_ip.timeout if said.affinity_config and said.affinity_config.client_ip else None
    )
    policy = said.internal_policy if said.internal_policy in ("Cluster", "Local") else None
    return Export(
        cluster=cluster,
        name=name,
        created=decoding.parse_timestamp(said.created),
        type="Headless" if said.type == "Headless" else "ClusterSetIP",
        ports=tuple(port for each in said.ports or () if (port := _port(each)) is not None),
        affinity=affinity,
        affinity_timeout=timeout if timeout is not None and 0 < timeout <= 86_400 else None,
        families=_families(said.families or ()),
        internal_policy=cast("Literal['Cluster', 'Local'] | None", policy),
        distribution=said.distribution if said.distribution in DISTRIBUTIONS else None,
        labels=decoding.labels((said.labels or said.old_labels or {}).items()),
        annotations=decoding.labels((said.annotations or said.old_annotations or {}).items()),
    )


def encode(export: Export) -> bytes:
    """The record of an export."""
    namespace, name = split(export.name)
    said: dict[str, Any] = {"cluster": export.cluster, "name": name, "namespace": namespace}
    annotations, labels = dict(export.annotations), dict(export.labels)
    said |= {"annotations": annotations} if annotations else {}
    said |= {"labels": labels, "Labels": labels} if labels else {}
    said |= {"Annotations": annotations} if annotations else {}
    said |= {"exportCreationTimestamp": export.created}
    said |= {"ports": [_port_json(port) for port in export.ports]}
    said |= {"type": export.type, "sessionAffinity": export.affinity}
    if export.affinity_timeout is not None:
        said["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": export.affinity_timeout}}
    said |= {"ipFamilies": list(export.families)} if export.families else {}
    said |= {"internalTrafficPolicy": export.internal_policy} if export.internal_policy else {}
    said |= {"trafficDistribution": export.distribution} if export.distribution else {}
    return msgspec.json.encode(said)


def _port(said: _Port) -> Port | None:
    protocol = decoding.protocol(said.protocol)
    if protocol is None or not 0 < said.port < 65_536:
        return None
    return Port(said.name, said.port, protocol, said.app_protocol)


def _port_json(port: Port) -> dict[str, Any]:
    said: dict[str, Any] = {"name": port.name} if port.name else {}
    said |= {"protocol": port.protocol}
    said |= {"appProtocol": port.app_protocol} if port.app_protocol else {}
    return said | {"port": port.port}


def _families(said: Any) -> tuple[Family, ...]:
    return tuple(dict.fromkeys(family for family in said if family in ("IPv4", "IPv6")))
