"""The derived Service of an import: where it is called inside the cluster. It selects nothing, slices stand behind it.

Its name is a function of the import's name, so the derived Services of all clusters are one global service: a Cilium
cluster of the clusterset finds its peers' endpoints by it.
"""

from __future__ import annotations

from typing import Any, Final

from isthmus.desired import Draft
from isthmus.desired.drafts import without_empty
from isthmus.mcs import words
from isthmus.mcs.slices import Behind
from isthmus.mcs.view import View
from isthmus.model.hosts import family
from isthmus.model.mcs import Merged
from isthmus.model.services import EXPORTERS, GLOBAL, Family, Port, Service

DEFAULT_TIMEOUT: Final = 10800


def derived_service(view: View, merged: Merged) -> Draft:
    """The Service wanted for an import that can be used here."""
    uid = view.found_import.uid if view.found_import is not None else ""
    return Draft(
        "Service",
        view.derived,
        content={"spec": _spec(view, merged)},
        labels=labels(view, merged),
        annotations=_annotations(view, merged),
        owner=("ServiceImport", view.name, uid),
        recreate_uid=_recreate_uid(view.derived_service, view, merged),
        preferred=_addresses(view, merged),
    )


def labels(view: View, merged: Merged) -> dict[str, str]:
    """Labels of the derived Service, which its slices have too."""
    return {**words.exported_labels(merged.labels), words.SERVICE_NAME: view.short}


def behind(view: View, merged: Merged) -> Behind:
    """The derived Service as slices refer to it."""
    return Behind(
        service=view.derived,
        uid=view.derived_service.uid if view.derived_service is not None else "",
        labels=labels(view, merged),
        headless=merged.type == "Headless",
    )


def _annotations(view: View, merged: Merged) -> dict[str, str]:
    return {
        **words.exported_annotations(merged.annotations),
        words.SUPPORTED_FAMILIES: ",".join(view.families),
        GLOBAL: "true",
        EXPORTERS: ",".join(sorted(merged.clusters)),
    }


def _spec(view: View, merged: Merged) -> dict[str, Any]:
    families = _families(view)
    spec: dict[str, Any] = {
        "type": "ClusterIP",
        "ipFamilies": list(families),
        "ipFamilyPolicy": "PreferDualStack" if len(families) > 1 else "SingleStack",
        "ports": [_port(port) for port in merged.ports],
        "sessionAffinity": merged.affinity,
        "internalTrafficPolicy": merged.internal_policy or "Cluster",
    }
    if merged.affinity == "ClientIP":
        spec["sessionAffinityConfig"] = {"clientIP": {"timeoutSeconds": _timeout(merged)}}
    if merged.type == "Headless":
        spec["clusterIP"] = "None"
    return {**spec, **without_empty({"trafficDistribution": merged.distribution})}


def _addresses(view: View, merged: Merged) -> dict[str, Any] | None:
    """The addresses it had before, in the order of its families: a type that flipped and came back changes none."""
    service, had = view.derived_service, view.had_addresses
    if merged.type == "Headless" or (service is not None and service.cluster_ips):
        return None
    by_family = {family(ip): ip for ip in had}
    addresses = [by_family[each] for each in _families(view) if each in by_family]
    if not addresses or family(addresses[0]) != _families(view)[0]:
        return None
    return {"spec": {"clusterIP": addresses[0], "clusterIPs": addresses}}


def _families(view: View) -> tuple[Family, ...]:
    """The import's that can be had here. One that the Service has first stays so: it keeps its first address."""
    service = view.derived_service
    first = service.families[0] if service is not None and service.families else None
    return tuple(sorted(view.families, key=lambda each: each != first))


def _timeout(merged: Merged) -> int:
    return DEFAULT_TIMEOUT if merged.affinity_timeout is None else merged.affinity_timeout


def _port(port: Port) -> dict[str, Any]:
    """A port of a Service. No target port: endpoints say what they listen on."""
    named = without_empty({"name": port.name, "appProtocol": port.app_protocol})
    return {"port": port.port, "protocol": port.protocol, **named}


def _recreate_uid(service: Service | None, view: View, merged: Merged) -> str:
    """A Service cannot become headless, nor cease to be; what has an address cannot lose its first family."""
    if service is None:
        return ""
    headless = merged.type == "Headless"
    lost = not headless and bool(service.families) and service.families[0] not in view.families
    return service.uid if service.headless != headless or lost else ""
