"""ExportPolicy objects as rows.

An invalid policy is a row whose field ``invalid`` gives the reason for its status; such a row allows nobody. The bounds
are those of the definition's schema, kept here as well for servers that do not enforce one.
"""

from __future__ import annotations

from typing import Final, cast

from msgspec.structs import replace

from isthmus import bounds
from isthmus.bounds import OutOfBounds, Syntax
from isthmus.kube.objects import policies as wire
from isthmus.model.export_policies import NO_EXPORT, Allow, Enforce, ExportPolicy
from isthmus.model.names import ClusterName, valid_cluster
from isthmus.sources.normal import name_of
from isthmus.sources.policies import Invalid, cluster_labels

MAX_ALLOW: Final = 64
"""Entries of one policy."""
NAMESPACE: Final = Syntax(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", most=63, meaning="a namespace")
SERVICE_ACCOUNT: Final = Syntax(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", most=253, meaning="a service account")
EXPORT: Final = Syntax(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", most=63, meaning="a ServiceExport")


def export_policy(policy: wire.ExportPolicy) -> ExportPolicy:
    """The row of an ExportPolicy."""
    meta, spec = policy.metadata, policy.spec
    row = ExportPolicy(
        name=name_of(meta),
        audit=spec.audit,
        created=meta.creation_timestamp or "",
        uid=meta.uid,
        generation=meta.generation,
    )
    try:
        row = replace(row, target=_target(spec.target))
    except OutOfBounds as error:  # it must not become a policy of the whole namespace
        return replace(row, target=NO_EXPORT, invalid=str(error))
    try:
        return _filled(row, spec)
    except (Invalid, OutOfBounds) as error:
        return replace(row, invalid=str(error))


def _target(target: wire.ExportTarget | None) -> str:
    return EXPORT.text(target.name, field="spec.target.name") if target is not None else ""


def _filled(row: ExportPolicy, spec: wire.ExportPolicySpec) -> ExportPolicy:
    if spec.allow is None:
        raise Invalid("spec.allow: missing; an empty list allows nobody")
    if len(spec.allow) > MAX_ALLOW:
        raise Invalid(f"spec.allow: {len(spec.allow)} entries, more than {MAX_ALLOW}")
    enforce = bounds.choice(spec.enforce or "tcp", ("tcp", "all"), field="spec.enforce")
    unsigned = bounds.choice(spec.unsigned or "refuse", ("refuse", "address"), field="spec.unsigned")
    established = bounds.choice(spec.established or "keep", ("keep", "cut"), field="spec.established")
    return replace(
        row,
        allow=tuple(_allow(each, f"spec.allow[{number}]") for number, each in enumerate(spec.allow)),
        enforce=cast("Enforce", enforce),
        require=unsigned == "refuse",
        cut=established == "cut",
    )


def _allow(callers: wire.AllowedCallers, field: str) -> Allow:
    """The row of one entry. A field that is given and empty is invalid: it must not match every caller."""
    if callers.cluster is not None and not valid_cluster(callers.cluster):
        raise Invalid(f"{field}.cluster: {bounds.shown(callers.cluster)} is not a cluster's name")
    if callers.namespace is not None:
        NAMESPACE.text(callers.namespace, field=f"{field}.namespace")
    if callers.service_account is not None:
        SERVICE_ACCOUNT.text(callers.service_account, field=f"{field}.serviceAccount")
    if callers.cluster_labels is not None and not callers.cluster_labels:
        raise Invalid(f"{field}.clusterLabels: empty")
    return Allow(
        cluster=ClusterName(callers.cluster or ""),
        namespace=callers.namespace or "",
        service_account=callers.service_account or "",
        labels=cluster_labels(callers.cluster_labels or {}, f"{field}.clusterLabels"),
    )
