"""The types of the fields that anything here reads: an object that does not fit is refused before it is read.

Only types, and only of what is read; the values are checked by ``validation``, and what is not named here is
kept unchanged. A field is ``name`` (a string) or ``name type``: ``i`` a number, ``b`` yes or no, ``is`` a number or a
string, ``{}`` any map, ``{s}`` a map of strings, another shape, and any of these in ``[…]``.
"""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Struct

from isthmus_lab.apiserver.objects import Object

_DECLARED: Final = {
    "OwnerReference": "uid, name, kind, apiVersion, controller b, blockOwnerDeletion b",
    "ManagedFields": "manager, operation, apiVersion, subresource, fieldsV1 {}",
    "Metadata": "name, generateName, namespace, uid, resourceVersion, labels {s}, annotations {s}, finalizers [s], "
    "ownerReferences [OwnerReference], managedFields [ManagedFields], generation i, creationTimestamp, "
    "deletionTimestamp, deletionGracePeriodSeconds i",
    "Condition": "type, status, reason, lastTransitionTime",
    "Status": "conditions [Condition]",
    "Anything": "metadata Metadata",
    "Reporting": "metadata Metadata, spec {}, status Status",
    "ConfigMap": "metadata Metadata, data {s}, binaryData {s}",
    "Secret": "metadata Metadata, data {s}, stringData {s}, type",
    "NamespaceSpec": "finalizers [s]",
    "NamespaceStatus": "phase, conditions [Condition]",
    "Namespace": "metadata Metadata, spec NamespaceSpec, status NamespaceStatus",
    "ServicePort": "name, port i, protocol, targetPort is, nodePort i, appProtocol",
    "ServiceSpec": "type, selector {s}, ports [ServicePort], clusterIP, clusterIPs [s], ipFamilies [s], "
    "ipFamilyPolicy, externalIPs [s], externalName, sessionAffinity, sessionAffinityConfig {}, "
    "publishNotReadyAddresses b, internalTrafficPolicy, externalTrafficPolicy",
    "LoadBalancer": "ingress [{}]",
    "ServiceStatus": "loadBalancer LoadBalancer, conditions [Condition]",
    "Service": "metadata Metadata, spec ServiceSpec, status ServiceStatus",
    "ContainerPort": "name, containerPort i, hostPort i, protocol",
    "EnvSource": "fieldRef {s}, configMapKeyRef {}, secretKeyRef {}, resourceFieldRef {}",
    "EnvVar": "name, value, valueFrom EnvSource",
    "Probe": "httpGet {}, tcpSocket {}, exec {}, periodSeconds i, timeoutSeconds i, initialDelaySeconds i, "
    "failureThreshold i, successThreshold i",
    "VolumeMount": "name, mountPath",
    "Container": "name, image, command [s], args [s], ports [ContainerPort], env [EnvVar], resources {}, "
    "volumeMounts [VolumeMount], volumeDevices [{}], livenessProbe Probe, readinessProbe Probe, startupProbe Probe",
    "Volume": "name, configMap {}, secret {}, projected {}, downwardAPI {}, hostPath {}, emptyDir {}",
    "Toleration": "key, operator, value, effect",
    "HostAlias": "ip, hostnames [s]",
    "LocalReference": "name",
    "PodSpec": "containers [Container], initContainers [Container], ephemeralContainers [Container], "
    "volumes [Volume], nodeName, nodeSelector {s}, tolerations [Toleration], restartPolicy, hostname, subdomain, "
    "hostAliases [HostAlias], imagePullSecrets [LocalReference], topologySpreadConstraints [{}], "
    "terminationGracePeriodSeconds i, activeDeadlineSeconds i",
    "StateReason": "reason, finishedAt",
    "ContainerState": "waiting StateReason, terminated StateReason",
    "ContainerStatus": "name, ready b, restartCount i, state ContainerState",
    "PodIP": "ip",
    "PodStatus": "phase, reason, podIP, podIPs [PodIP], conditions [Condition], "
    "containerStatuses [ContainerStatus], initContainerStatuses [ContainerStatus]",
    "Pod": "metadata Metadata, spec PodSpec, status PodStatus",
    "Requirement": "key, operator, values [s]",
    "LabelSelector": "matchLabels {s}, matchExpressions [Requirement]",
    "Template": "metadata Metadata, spec PodSpec",
    "RollingUpdate": "maxSurge is, maxUnavailable is, partition i",
    "Strategy": "type, rollingUpdate RollingUpdate",
    "Ordinals": "start i",
    "WorkloadSpec": "replicas i, selector LabelSelector, template Template, strategy Strategy, "
    "updateStrategy Strategy, minReadySeconds i, revisionHistoryLimit i, progressDeadlineSeconds i, paused b, "
    "serviceName, ordinals Ordinals, "
    "volumeClaimTemplates [Anything], parallelism i, completions i, backoffLimit i, ttlSecondsAfterFinished i",
    "WorkloadStatus": "replicas i, readyReplicas i, availableReplicas i, updatedReplicas i, succeeded i, "
    "startTime, completionTime, conditions [Condition]",
    "Workload": "metadata Metadata, spec WorkloadSpec, status WorkloadStatus",
    "Taint": "key, effect, value",
    "NodeSpec": "taints [Taint], unschedulable b",
    "NodeAddress": "type, address",
    "NodeStatus": "addresses [NodeAddress], conditions [Condition], nodeInfo {}, daemonEndpoints {}",
    "Node": "metadata Metadata, spec NodeSpec, status NodeStatus",
    "Involved": "kind, name, namespace",
    "Event": "metadata Metadata, involvedObject Involved, message, type, reason, lastTimestamp, eventTime, series {}",
    "EndpointConditions": "ready b, serving b, terminating b",
    "Endpoint": "addresses [s], conditions EndpointConditions, nodeName, hostname, zone, targetRef {}",
    "SlicePort": "name, port i, protocol, appProtocol",
    "EndpointSlice": "metadata Metadata, addressType, endpoints [Endpoint], ports [SlicePort]",
    "Subset": "addresses [PodIP], notReadyAddresses [PodIP], ports [SlicePort]",
    "Endpoints": "metadata Metadata, subsets [Subset]",
    "LeaseSpec": "holderIdentity, leaseDurationSeconds i, renewTime",
    "Lease": "metadata Metadata, spec LeaseSpec",
    "ImportSpec": "type, ips [s], ports [SlicePort]",
    "ImportCluster": "cluster",
    "ImportStatus": "clusters [ImportCluster], conditions [Condition]",
    "ServiceImport": "metadata Metadata, spec ImportSpec, status ImportStatus",
    "PrinterColumn": "name, type, jsonPath, priority i",
    "VersionSchema": "openAPIV3Schema {}",
    "DefinitionVersion": "name, served b, storage b, subresources {}, additionalPrinterColumns [PrinterColumn], "
    "schema VersionSchema",
    "DefinitionNames": "plural, singular, kind, shortNames [s], categories [s]",
    "DefinitionSpec": "group, scope, names DefinitionNames, versions [DefinitionVersion]",
    "CustomResourceDefinition": "metadata Metadata, spec DefinitionSpec, status Status",
}
"""Each shape after those it is made of."""

Number = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]

_TYPES: dict[str, Any] = {
    "s": str,
    "i": Number,
    "b": bool,
    "is": Number | str,
    "{}": dict[str, Any],
    "{s}": dict[str, str],
}


def _type(declared: str) -> Any:
    return list[_type(declared[1:-1])] if declared.startswith("[") else _TYPES[declared]  # type: ignore[misc]


def _shape(name: str, declared: str) -> type[Struct]:
    fields = []
    for declaration in declared.split(", "):
        field, _, declared = declaration.partition(" ")
        fields.append((field, _type(declared or "s") | msgspec.UnsetType, msgspec.UNSET))
    return msgspec.defstruct(name, fields, gc=False)


for _name, _fields in _DECLARED.items():
    _TYPES[_name] = _shape(_name, _fields)


def misfit(shape: str, obj: Object) -> str:
    """Describe the first field that does not fit a shape; '' if all fit."""
    try:
        msgspec.convert(obj, _TYPES[shape])
    except msgspec.ValidationError as error:
        return str(error)
    return ""
