"""Rows of the model back into the objects they were read from: what an API server that has them shows."""

from __future__ import annotations

from typing import Any

import msgspec

from isthmus.mcs.slices import CONDITIONS
from isthmus.model.names import ServiceName
from isthmus.model.objects import Observed
from isthmus.model.services import EndpointSet, ExportMark, Import, Port, Service, StatusCondition


def seen(row: Any, *, metadata: dict[str, Any], version: str) -> Observed | None:
    """The row of ``observed`` that comes with a row of an object; None for rows of anything else."""
    match row:
        case Import():
            kind, body = "ServiceImport", _import(row)
        case Service(source="kubernetes"):
            kind, body = "Service", _service(row)
        case EndpointSet(source="kubernetes"):
            kind, body = "EndpointSlice", {"metadata": metadata, **_slice(row)}
        case ExportMark():
            kind, body = "ServiceExport", {"status": {"conditions": [_condition(c) for c in row.conditions]}}
        case _:
            return None
    named = f"{row.service.partition('/')[0]}/{row.part}" if isinstance(row, EndpointSet) else row.name
    uid = getattr(row, "uid", "")
    return Observed(kind=kind, name=ServiceName(named), uid=uid, version=version, body=msgspec.json.encode(body))


def _import(row: Import) -> dict[str, Any]:
    return {
        "metadata": {"labels": dict(row.labels), "annotations": dict(row.annotations)},
        "spec": {
            "type": row.type,
            "ports": [_port(port) for port in row.ports],
            "ips": list(row.ips),
            "sessionAffinity": row.affinity,
            "sessionAffinityConfig": _timeout(row.affinity_timeout),
            "ipFamilies": list(row.families),
            "internalTrafficPolicy": row.internal_policy,
            "trafficDistribution": row.distribution,
        },
        "status": {
            "endpointSliceObjects": "Present",
            "clusters": [{"cluster": cluster} for cluster in row.clusters],
            "conditions": [_condition(each) for each in row.conditions],
        },
    }


def _service(row: Service) -> dict[str, Any]:
    families = list(row.families)
    return {
        "metadata": {"labels": dict(row.labels), "annotations": dict(row.annotations)},
        "spec": {
            "type": row.type,
            "ports": [_port(port) for port in row.ports],
            "clusterIP": "None" if row.headless else (*row.cluster_ips, "")[0],
            "selector": dict(row.selector),
            "ipFamilies": families,
            "ipFamilyPolicy": "PreferDualStack" if len(families) > 1 else "SingleStack",
            "sessionAffinity": row.affinity,
            "sessionAffinityConfig": _timeout(row.affinity_timeout) if row.affinity == "ClientIP" else None,
            "internalTrafficPolicy": row.internal_policy,
            "trafficDistribution": row.distribution,
        },
    }


def _slice(row: EndpointSet) -> dict[str, Any]:
    first = row.endpoints[0] if row.endpoints else None
    return {
        "addressType": "IPv6" if first is not None and ":" in first.address else "IPv4",
        "ports": [_port(port) for port in first.ports] if first is not None else [],
        "endpoints": [
            {
                "addresses": [each.address],
                "conditions": CONDITIONS[each.condition],
                "hostname": each.hostname,
                "nodeName": each.node,
                "zone": each.zone,
                "hints": {"forZones": [{"name": zone} for zone in each.for_zones]} if each.for_zones else None,
                "targetRef": dict(zip(("namespace", "name"), each.pod.split("/"), strict=True), kind="Pod")
                if each.pod
                else None,
            }
            for each in row.endpoints
        ],
    }


def _port(port: Port) -> dict[str, Any]:
    return {"name": port.name, "port": port.port, "protocol": port.protocol, "appProtocol": port.app_protocol}


def _timeout(seconds: int | None) -> dict[str, Any] | None:
    return {"clientIP": {"timeoutSeconds": seconds}} if seconds is not None else None


def _condition(row: StatusCondition) -> dict[str, Any]:
    return {
        "type": row.type,
        "status": row.status,
        "reason": row.reason,
        "message": row.message,
        "observedGeneration": row.generation,
    }
