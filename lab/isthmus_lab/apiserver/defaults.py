"""Defaults of fields, for the kinds whose readers count on them. Each function changes the object it is given."""

from __future__ import annotations

import base64
from typing import Any

from isthmus_lab.apiserver import ipfamilies
from isthmus_lab.apiserver.objects import Object, items, nested


def nothing(obj: Object) -> None:
    """No defaults."""


def namespace(obj: Object) -> None:
    """Add the finalizer ``kubernetes`` and the label with the name."""
    obj.setdefault("spec", {}).setdefault("finalizers", ["kubernetes"])
    obj.setdefault("status", {}).setdefault("phase", "Active")
    labels = obj["metadata"].get("labels") or {}
    obj["metadata"]["labels"] = labels | {"kubernetes.io/metadata.name": obj["metadata"].get("name", "")}


def inherit_nothing(old: Object, new: Object) -> None:
    """Fields that an update leaves out are removed."""


def inherit_addresses(old: Object, new: Object) -> None:
    """A Service that is written anew without its addresses keeps them, as far as its type has any."""
    before, spec = nested(old, "spec", default={}), new.setdefault("spec", {})
    if spec.get("type") == "ExternalName":
        if before.get("type") != "ExternalName":
            for name in ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy", "internalTrafficPolicy"):
                spec.pop(name, None)
    elif before.get("type") != "ExternalName":
        ipfamilies.keep(before, spec)
    _inherit_node_ports(before, spec)


def _inherit_node_ports(before: Object, spec: Object) -> None:
    node_ports = {(each.get("port"), each.get("protocol")): each.get("nodePort") for each in items(before, "ports")}
    has_them = spec.get("type") in ("NodePort", "LoadBalancer")
    for port in items(spec, "ports"):
        same = node_ports.get((port.get("port"), port.get("protocol", "TCP")))
        if has_them and same and not port.get("nodePort"):
            port["nodePort"] = same
        elif not has_them and port.get("nodePort") == same:
            port.pop("nodePort", None)


def service(obj: Object) -> None:
    """Type, policies and ports; addresses are given out by ``addresses``."""
    spec = obj.setdefault("spec", {})
    kind = spec.setdefault("type", "ClusterIP")
    if spec.setdefault("sessionAffinity", "None") == "ClientIP":
        spec["sessionAffinityConfig"] = spec.get("sessionAffinityConfig") or {"clientIP": {"timeoutSeconds": 10800}}
    for port in items(spec, "ports"):
        port.setdefault("protocol", "TCP")
        if not port.get("targetPort"):
            port["targetPort"] = port.get("port")
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
        if spec.get("clusterIP"):
            spec.setdefault("clusterIPs", [spec["clusterIP"]])
    if kind in ("NodePort", "LoadBalancer"):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    elif not spec.get("externalIPs"):
        spec.pop("externalTrafficPolicy", None)  # as the API server drops what only another type has
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)
    obj.setdefault("status", {}).setdefault("loadBalancer", {})


def pod(obj: Object) -> None:
    """The pod's spec, and Pending until a node writes its status."""
    pod_spec(obj.setdefault("spec", {}))
    obj["spec"].setdefault("enableServiceLinks", True)
    obj["spec"].setdefault("serviceAccountName", "default")
    obj["spec"].setdefault("preemptionPolicy", "PreemptLowerPriority")
    obj["spec"].setdefault("priority", 0)
    _tolerate(obj["spec"])
    status = obj.setdefault("status", {})
    status.setdefault("phase", "Pending")
    status.setdefault("qosClass", "BestEffort")


def _tolerate(spec: Object) -> None:
    """Five minutes of toleration for a node that is away, unless the pod sets its own."""
    for what in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{what}"
        if not any(each.get("key") in (None, "", key) for each in items(spec, "tolerations")):
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            spec["tolerations"] = [*(spec.get("tolerations") or ()), toleration]


def pod_spec(spec: Object) -> None:
    """Defaults shared by pods and pod templates."""
    spec.setdefault("restartPolicy", "Always")
    spec.setdefault("terminationGracePeriodSeconds", 30)
    spec.setdefault("dnsPolicy", "ClusterFirst")
    spec.setdefault("schedulerName", "default-scheduler")
    spec.setdefault("securityContext", {})
    for name in ("containers", "initContainers"):
        for container in items(spec, name):
            _container(container)
    for volume in items(spec, "volumes"):
        _volume(volume)


def claim(obj: Object) -> None:
    """A file system, which a provisioner has to bind."""
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")
    obj.setdefault("status", {}).setdefault("phase", "Pending")


def deployment(obj: Object) -> None:
    """One replica, rolling a quarter at a time."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("progressDeadlineSeconds", 600)
    strategy = spec.setdefault("strategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        rolling = strategy.get("rollingUpdate") or {}
        strategy["rollingUpdate"] = {"maxUnavailable": "25%", "maxSurge": "25%"} | rolling
    _template(spec)


def replica_set(obj: Object) -> None:
    """One replica; the selector is the template's labels where it has none."""
    obj.setdefault("spec", {}).setdefault("replicas", 1)
    _template(obj["spec"])
    obj.setdefault("status", {}).setdefault("replicas", 0)


def stateful_set(obj: Object) -> None:
    """Ordered, rolling from the last."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("replicas", 1)
    spec.setdefault("revisionHistoryLimit", 10)
    spec.setdefault("podManagementPolicy", "OrderedReady")
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy["rollingUpdate"] = {"partition": 0} | (strategy.get("rollingUpdate") or {})
    spec.setdefault("persistentVolumeClaimRetentionPolicy", {"whenDeleted": "Retain", "whenScaled": "Retain"})
    _template(spec)
    obj.setdefault("status", {"replicas": 0, "availableReplicas": 0})


def daemon_set(obj: Object) -> None:
    """One pod per node, replaced one at a time."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("revisionHistoryLimit", 10)
    strategy = spec.setdefault("updateStrategy", {})
    if strategy.setdefault("type", "RollingUpdate") == "RollingUpdate":
        strategy["rollingUpdate"] = {"maxUnavailable": 1, "maxSurge": 0} | (strategy.get("rollingUpdate") or {})
    _template(spec)
    counts = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
    obj.setdefault("status", dict.fromkeys(counts, 0))


def job(obj: Object) -> None:
    """One completion, six tries; its pods are selected by the job's uid."""
    spec = obj.setdefault("spec", {})
    if "parallelism" not in spec and "completions" not in spec:
        spec["completions"] = 1
    for name, value in (
        ("parallelism", 1),
        ("backoffLimit", 6),
        ("completionMode", "NonIndexed"),
        ("suspend", False),
        ("podReplacementPolicy", "TerminatingOrFailed"),
        ("manualSelector", False),
    ):
        spec.setdefault(name, value)
    _template(spec)
    if "selector" not in spec:
        uid, name = obj["metadata"]["uid"], obj["metadata"].get("name", "")
        prefix = "batch.kubernetes.io/"
        mine = {f"{prefix}controller-uid": uid, f"{prefix}job-name": name, "controller-uid": uid, "job-name": name}
        meta = spec["template"]["metadata"]
        meta["labels"] = {**(meta.get("labels") or {}), **mine}
        spec["selector"] = {"matchLabels": {f"{prefix}controller-uid": uid}}
        if not obj["metadata"].get("labels"):
            obj["metadata"]["labels"] = dict(meta["labels"])


def inherit_job(old: Object, new: Object) -> None:
    """The selector and labels that the server gave a job stay."""
    new["spec"] = {**new.get("spec", {}), "selector": old["spec"]["selector"], "template": old["spec"]["template"]}


def secret(obj: Object) -> None:
    """``stringData`` is written and never read."""
    obj.setdefault("type", "Opaque")
    texts = obj.pop("stringData", None) or {}
    if texts:
        encoded = {key: base64.b64encode(str(text).encode()).decode() for key, text in texts.items()}
        obj["data"] = (obj.get("data") or {}) | encoded


def endpoint_slice(obj: Object) -> None:
    """Ports have a name, if an empty one, and a protocol."""
    for port in items(obj, "ports"):
        port.setdefault("name", "")
        port.setdefault("protocol", "TCP")


def service_import(obj: Object) -> None:
    """Default the protocol of ports, as the CRD's schema does."""
    for port in items(obj, "spec", "ports"):
        port.setdefault("protocol", "TCP")


def _template(spec: dict[str, Any]) -> None:
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_spec(template.setdefault("spec", {}))


def _container(container: Object) -> None:
    container.setdefault("resources", {})
    container.setdefault("terminationMessagePath", "/dev/termination-log")
    container.setdefault("terminationMessagePolicy", "File")
    image = str(container.get("image", ""))
    latest = ":" not in image.rsplit("/", 1)[-1] or image.endswith(":latest")
    container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
    for port in items(container, "ports"):
        port.setdefault("protocol", "TCP")
    for name in ("livenessProbe", "readinessProbe", "startupProbe"):
        if isinstance(container.get(name), dict):
            _probe(container[name])
    for variable in items(container, "env"):
        if isinstance(ref := nested(variable, "valueFrom", "fieldRef"), dict):
            ref.setdefault("apiVersion", "v1")


def _probe(probe: Object) -> None:
    for name, value in (("timeoutSeconds", 1), ("periodSeconds", 10), ("successThreshold", 1), ("failureThreshold", 3)):
        probe.setdefault(name, value)
    if isinstance(http := probe.get("httpGet"), dict):
        http.setdefault("path", "/")
        http.setdefault("scheme", "HTTP")


def _volume(volume: Object) -> None:
    if len(volume) == 1:
        volume["emptyDir"] = {}
    if isinstance(volume.get("hostPath"), dict):
        volume["hostPath"].setdefault("type", "")
    for name in ("configMap", "secret", "projected", "downwardAPI"):
        if isinstance(volume.get(name), dict):
            volume[name].setdefault("defaultMode", 420)
