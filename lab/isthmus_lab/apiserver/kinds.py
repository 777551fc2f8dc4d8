"""The kinds that are served: one entry each. A new kind is a new entry; CRDs add theirs while the server runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from isthmus_lab.apiserver import columns, defaults, schema, validation
from isthmus_lab.apiserver.columns import Column
from isthmus_lab.apiserver.objects import Object
from isthmus_lab.apiserver.openapi import Schema
from isthmus_lab.apiserver.schema import Lists
from isthmus_lab.apiserver.validation import LABEL, LABEL_1035, SUBDOMAIN, NameRule, Validator

Default = Callable[[Object], None]
Inherit = Callable[[Object, Object], None]
"""Fills in what an update leaves out, from the object as it was."""
VERBS: Final = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One kind: what it is called, how it is shown, and what it does differently from the others."""

    kind: str
    resource: str
    group: str = ""
    versions: tuple[str, ...] = ("v1",)
    """The first is how it is stored."""
    short: tuple[str, ...] = ()
    namespaced: bool = True
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()
    columns: tuple[Column, ...] = columns.NAME_AGE
    shape: str = "Anything"
    """Name of the structure in ``shapes`` that objects must fit."""
    lists: Lists = field(default_factory=lambda: schema.CONDITIONS)
    default: Default = defaults.nothing
    inherit: Inherit = defaults.inherit_nothing
    validate: Validator = validation.nothing
    names: NameRule = SUBDOMAIN
    counted: bool = False
    """True if metadata.generation increases with each change of the desired state."""
    strategic: bool = True
    """True if strategic merge patches are supported (not for kinds of CRDs)."""
    singular_name: str = ""
    lifetime: int = 0
    """Seconds after which an object expires; 0 disables expiry."""
    warning: str = ""
    """Sent as a warning with every write of such an object."""
    schemas: Mapping[str, Schema] = field(default_factory=dict)
    """Structural schemas of the definition by version; empty for built-in kinds."""

    def schema(self, version: str = "") -> Schema:
        """Return the schema of a version, by default of the stored one; an empty schema accepts everything."""
        return self.schemas.get(version or self.versions[0], {})

    @property
    def singular(self) -> str:
        """Singular name, as in `kubectl get deployment`."""
        return self.singular_name or self.kind.lower()

    @property
    def qualified(self) -> str:
        """``deployments.apps``: the resource with its group, which is also where it is stored."""
        return f"{self.resource}.{self.group}" if self.group else self.resource

    def api_version(self, version: str = "") -> str:
        """``apps/v1``; without a version, the one it is stored as."""
        version = version or self.versions[0]
        return f"{self.group}/{version}" if self.group else version

    def key(self, namespace: str, name: str) -> str:
        """Storage key of an object below its resource."""
        return f"{namespace}/{name}" if self.namespaced else name

    @property
    def has_status(self) -> bool:
        """True if the kind has a status subresource."""
        return "status" in self.subresources


STATUS: Final = frozenset({"status"})
SCALED: Final = frozenset({"status", "scale"})
ALL: Final = ("all",)
MCS: Final = "multicluster.x-k8s.io"

NAMESPACE: Final = Kind(
    kind="Namespace",
    resource="namespaces",
    short=("ns",),
    namespaced=False,
    subresources=frozenset({"status", "finalize"}),
    shape="Namespace",
    columns=columns.NAMESPACE,
    default=defaults.namespace,
    names=LABEL,
)
SERVICE: Final = Kind(
    kind="Service",
    resource="services",
    short=("svc",),
    categories=ALL,
    subresources=STATUS,
    shape="Service",
    columns=columns.SERVICE,
    lists=schema.SERVICE,
    default=defaults.service,
    inherit=defaults.inherit_addresses,
    validate=validation.service,
    names=LABEL_1035,
)
POD: Final = Kind(
    kind="Pod",
    resource="pods",
    short=("po",),
    categories=ALL,
    subresources=frozenset({"status", "binding", "eviction", "log", "exec", "attach", "portforward"}),
    shape="Pod",
    columns=columns.POD,
    lists=schema.POD,
    default=defaults.pod,
    validate=validation.pod,
    counted=True,
)
NODE: Final = Kind(
    kind="Node",
    resource="nodes",
    short=("no",),
    namespaced=False,
    subresources=STATUS,
    shape="Node",
    columns=columns.NODE,
    lists=schema.NODE,
)
CONFIG_MAP: Final = Kind(
    shape="ConfigMap", kind="ConfigMap", resource="configmaps", short=("cm",), columns=columns.CONFIG_MAP
)
SECRET: Final = Kind(
    shape="Secret",
    kind="Secret",
    resource="secrets",
    columns=columns.SECRET,
    default=defaults.secret,
    validate=validation.secret,
)
SERVICE_ACCOUNT: Final = Kind(
    kind="ServiceAccount",
    resource="serviceaccounts",
    short=("sa",),
    subresources=frozenset({"token"}),
)
ENDPOINTS: Final = Kind(
    shape="Endpoints",
    kind="Endpoints",
    resource="endpoints",
    short=("ep",),
    singular_name="endpoints",
)
PERSISTENT_VOLUME_CLAIM: Final = Kind(
    kind="PersistentVolumeClaim",
    resource="persistentvolumeclaims",
    short=("pvc",),
    subresources=STATUS,
    default=defaults.claim,
)
PERSISTENT_VOLUME: Final = Kind(
    kind="PersistentVolume",
    resource="persistentvolumes",
    short=("pv",),
    namespaced=False,
    subresources=STATUS,
)
EVENT: Final = Kind(shape="Event", kind="Event", resource="events", short=("ev",), columns=columns.EVENT, lifetime=3600)
DEPLOYMENT: Final = Kind(
    group="apps",
    kind="Deployment",
    resource="deployments",
    short=("deploy",),
    categories=ALL,
    subresources=SCALED,
    shape="Workload",
    columns=columns.DEPLOYMENT,
    lists=schema.WORKLOAD,
    default=defaults.deployment,
    validate=validation.workload,
    counted=True,
)
REPLICA_SET: Final = Kind(
    group="apps",
    kind="ReplicaSet",
    resource="replicasets",
    short=("rs",),
    categories=ALL,
    subresources=SCALED,
    shape="Workload",
    columns=columns.REPLICA_SET,
    lists=schema.WORKLOAD,
    default=defaults.replica_set,
    validate=validation.workload,
    counted=True,
)
STATEFUL_SET: Final = Kind(
    group="apps",
    kind="StatefulSet",
    resource="statefulsets",
    short=("sts",),
    categories=ALL,
    subresources=SCALED,
    shape="Workload",
    columns=columns.STATEFUL_SET,
    lists=schema.WORKLOAD,
    default=defaults.stateful_set,
    validate=validation.workload,
    counted=True,
)
DAEMON_SET: Final = Kind(
    group="apps",
    kind="DaemonSet",
    resource="daemonsets",
    short=("ds",),
    categories=ALL,
    subresources=STATUS,
    shape="Workload",
    columns=columns.DAEMON_SET,
    lists=schema.WORKLOAD,
    default=defaults.daemon_set,
    validate=validation.workload,
    counted=True,
)
JOB: Final = Kind(
    group="batch",
    kind="Job",
    resource="jobs",
    categories=ALL,
    subresources=STATUS,
    shape="Workload",
    columns=columns.JOB,
    lists=schema.WORKLOAD,
    default=defaults.job,
    inherit=defaults.inherit_job,
    validate=validation.job,
    counted=True,
)
ENDPOINT_SLICE: Final = Kind(
    group="discovery.k8s.io",
    kind="EndpointSlice",
    resource="endpointslices",
    shape="EndpointSlice",
    columns=columns.ENDPOINT_SLICE,
    default=defaults.endpoint_slice,
    validate=validation.endpoint_slice,
    counted=True,
)
CUSTOM_RESOURCE_DEFINITION: Final = Kind(
    group="apiextensions.k8s.io",
    kind="CustomResourceDefinition",
    resource="customresourcedefinitions",
    short=("crd", "crds"),
    namespaced=False,
    categories=("api-extensions",),
    subresources=STATUS,
    shape="CustomResourceDefinition",
    columns=columns.DEFAULT,
    validate=validation.definition,
    counted=True,
)
LEASE: Final = Kind(shape="Lease", group="coordination.k8s.io", kind="Lease", resource="leases")
SERVICE_EXPORT: Final = Kind(
    group=MCS,
    versions=("v1beta1", "v1alpha1"),
    kind="ServiceExport",
    resource="serviceexports",
    short=("svcex",),
    shape="Reporting",
    subresources=STATUS,
    columns=columns.SERVICE_EXPORT,
    counted=True,
    strategic=False,
)
SERVICE_IMPORT: Final = Kind(
    group=MCS,
    versions=("v1beta1", "v1alpha1"),
    kind="ServiceImport",
    resource="serviceimports",
    short=("svcim",),
    subresources=STATUS,
    shape="ServiceImport",
    columns=columns.SERVICE_IMPORT,
    lists=schema.SERVICE_IMPORT,
    default=defaults.service_import,
    validate=validation.service_import,
    counted=True,
    strategic=False,
)

BUILT_IN: Final = (
    NAMESPACE,
    SERVICE,
    POD,
    NODE,
    CONFIG_MAP,
    SECRET,
    SERVICE_ACCOUNT,
    ENDPOINTS,
    EVENT,
    DEPLOYMENT,
    REPLICA_SET,
    STATEFUL_SET,
    DAEMON_SET,
    PERSISTENT_VOLUME_CLAIM,
    PERSISTENT_VOLUME,
    JOB,
    ENDPOINT_SLICE,
    LEASE,
    CUSTOM_RESOURCE_DEFINITION,
    SERVICE_EXPORT,
    SERVICE_IMPORT,
)


class Registry:
    """The kinds that are served now, found by what a path, an object or a key in etcd calls them."""

    def __init__(self, kinds: Iterable[Kind]) -> None:
        self._by_resource: dict[tuple[str, str], Kind] = {}
        for kind in kinds:
            self.add(kind)

    def __iter__(self) -> Iterator[Kind]:
        return iter(self._by_resource.values())

    def add(self, kind: Kind) -> None:
        """Serve a kind, or serve it differently."""
        self._by_resource[kind.group, kind.resource] = kind

    def remove(self, kind: Kind) -> None:
        """Serve it no longer."""
        self._by_resource.pop((kind.group, kind.resource), None)

    def resource(self, group: str, version: str, resource: str) -> Kind | None:
        """The kind at a path."""
        kind = self._by_resource.get((group, resource))
        return kind if kind is not None and version in kind.versions else None

    def kind(self, api_version: str, kind: str) -> Kind | None:
        """The kind of an object's apiVersion and kind."""
        group = api_version.partition("/")[0] if "/" in api_version else ""
        return next((k for k in self if k.group == group and k.kind == kind), None)

    def stored(self, qualified: str) -> Kind | None:
        """The kind of what is stored under a resource."""
        resource, _, group = qualified.partition(".")
        return self._by_resource.get((group, resource))

    def groups(self) -> dict[str, list[str]]:
        """Versions by group, the core group under ''; the preferred version of each is first."""
        by_group: dict[str, list[str]] = {}
        for kind in self:
            versions = by_group.setdefault(kind.group, [])
            versions += [version for version in kind.versions if version not in versions]
        return by_group
