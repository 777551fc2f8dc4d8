"""Judges claims of addresses. One pure function judges every kind of claim; the table in docs/trust.md is its test.

A frontend takes the calls of every pod of the node. So a claim is valid only if the holder of the address allows it:
the API server that allocated it, the node that owns it, or the administrator who put its range into ``[claims]``.

Cluster IPs are not judged: the API server allocates them and refuses a ``spec.clusterIP`` outside the Service ranges,
and files of Services are written by the machine's administrator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, Literal

from msgspec import Struct

from isthmus import bounds
from isthmus.bounds import IPNetwork, OutOfBounds
from isthmus.config import Config, ConfigError
from isthmus.model.addresses import reserved
from isthmus.model.balancing import FrontendType

RefusalReason = Literal[
    "ReservedAddress",
    "ExternalIPsDisabled",
    "ClusterAddress",
    "NotAllocated",
    "UntrustedManager",
    "NotThisNode",
    "NamespaceNotAllowed",
    "OutOfRange",
]

TRUSTED_MANAGER: Final = "isthmus-operator"


class ClaimRules(Struct, frozen=True):
    """Addresses that the configuration allows beyond those that the API server allocates; by default none."""

    external_ips: bool = False
    clusterset_ranges: tuple[IPNetwork, ...] = ()
    """Ranges in which a trusted manager's import may claim an address that no derived Service has."""
    import_managers: tuple[str, ...] = (TRUSTED_MANAGER,)
    redirect_namespaces: tuple[str, ...] = ("kube-system",)
    redirect_ranges: tuple[IPNetwork, ...] = ()
    """The only addresses that a local redirect may name; empty allows all."""
    own_ranges: tuple[IPNetwork, ...] = ()
    """Pod, Service and node ranges of the own cluster."""


class AddressClaim(Struct, frozen=True, gc=False, kw_only=True):
    """An object's claim of an address, with the facts that the tables have about that address."""

    type: FrontendType
    address: str
    namespace: str = ""
    """Namespace of the claiming object."""
    manager: str = ""
    """Controller in an import's annotation ``isthmus.io/managed-by``."""
    allocated: tuple[str, ...] = ()
    """Addresses of an import's derived Service."""
    this_node: bool = False
    """The address is one of this node's."""
    any_node: bool = False
    """The address is one of some node of the cluster."""


class Refusal(Struct, frozen=True, gc=False):
    """Reason why a claim is refused: one word for machines, a sentence for people."""

    reason: RefusalReason
    message: str


ALLOWED: Final = None


def judge(claim: AddressClaim, rules: ClaimRules) -> Refusal | None:
    """Return the reason why a claim is refused; ``None`` if it is valid."""
    if claim.type in ("ClusterIP", "NodePort"):
        return ALLOWED  # the address is the API server's or this node's by construction
    kind = reserved(claim.address)
    # A redirect may name link-local addresses: metadata proxies and node-local name servers live there.
    if kind and not (claim.type == "LocalRedirect" and kind == "link-local"):
        return Refusal("ReservedAddress", f"{claim.address} is reserved ({kind}): nothing may claim it")
    match claim.type:
        case "ExternalIP":
            return _external_ip(claim, rules)
        case "HostPort":
            return ALLOWED if claim.this_node else Refusal("NotThisNode", f"{claim.address} is not this node's")
        case "Import":
            return _import(claim, rules)
        case "LocalRedirect":
            return _local_redirect(claim, rules)
        case _:
            return ALLOWED


def rules(config: Config) -> ClaimRules:
    """Read the rules from a configuration. Raises ConfigError for an invalid address range."""
    claims, cluster = config.claims, config.cluster
    return ClaimRules(
        external_ips=claims.external_ips,
        clusterset_ranges=networks("claims.clusterset_ranges", claims.clusterset_ranges),
        import_managers=claims.import_managers,
        redirect_namespaces=claims.redirect_namespaces,
        redirect_ranges=networks("claims.redirect_ranges", claims.redirect_ranges),
        own_ranges=networks("cluster.pod_ranges", cluster.pod_ranges)
        + networks("cluster.service_ranges", cluster.service_ranges)
        + networks("cluster.node_ranges", cluster.node_ranges),
    )


def _external_ip(claim: AddressClaim, rules: ClaimRules) -> Refusal | None:
    """Whoever may write a Service may write any external IP (CVE-2020-8554), so they are off by default."""
    if not rules.external_ips:
        return Refusal("ExternalIPsDisabled", f"{claim.address}: spec.externalIPs are off (claims.external_ips)")
    if claim.any_node:
        return Refusal("ClusterAddress", f"{claim.address} is a node's address")
    if own_range := _within(claim.address, rules.own_ranges):
        return Refusal("ClusterAddress", f"{claim.address} is in {own_range}, a range of this cluster")
    return ALLOWED


def is_allocated(addresses: Collection[str], address: str) -> bool:
    """True if an import may claim an address because it is one of its derived Service's ``addresses``."""
    return address in addresses and not reserved(address)


def _import(claim: AddressClaim, rules: ClaimRules) -> Refusal | None:
    if is_allocated(claim.allocated, claim.address):
        return ALLOWED
    if claim.allocated or not rules.clusterset_ranges:
        return Refusal("NotAllocated", f"{claim.address} is not an address of the import's derived Service")
    if claim.manager not in rules.import_managers:
        return Refusal("UntrustedManager", f"{claim.address}: the import is managed by none of claims.import_managers")
    if claim.any_node or not _within(claim.address, rules.clusterset_ranges):
        return Refusal("OutOfRange", f"{claim.address} is outside claims.clusterset_ranges, or a node's")
    return ALLOWED


def _local_redirect(claim: AddressClaim, rules: ClaimRules) -> Refusal | None:
    if claim.namespace not in rules.redirect_namespaces:
        allowed = ", ".join(rules.redirect_namespaces) or "no namespace"
        message = f"{claim.address}: policies of {allowed} may name an address (claims.redirect_namespaces)"
        return Refusal("NamespaceNotAllowed", message)
    if rules.redirect_ranges and not _within(claim.address, rules.redirect_ranges):
        return Refusal("OutOfRange", f"{claim.address} is outside claims.redirect_ranges")
    return ALLOWED


def _within(address: str, ranges: Iterable[IPNetwork]) -> IPNetwork | None:
    ip = bounds.ip(address)
    return next((network for network in ranges if ip in network), None)


def networks(field: str, texts: Iterable[str]) -> tuple[IPNetwork, ...]:
    """Parse the CIDRs of a configuration field. Raises ConfigError, which names the field."""
    try:
        return tuple(bounds.network(text, field=field) for text in texts)
    except OutOfBounds as error:
        raise ConfigError(str(error)) from None
