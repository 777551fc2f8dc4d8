"""Chooses the BackendTLSPolicy of a Service's port, and the TLS that the node's Envoy then uses. Pure.

Of policies for one target the oldest applies, then by name; one for a port precedes one for the whole Service. A policy
that cannot be followed, or whose authorities cannot be read, leaves its target without endpoints: HTTP requests are
answered with 503, and nothing is sent unencrypted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from isthmus.loadbalancer.services import UNKNOWN_AGE, resolve
from isthmus.model.backend_tls import MAX_CERTIFICATES, BackendTls, NameType, TlsTarget
from isthmus.model.names import ServiceName
from isthmus.model.services import Port
from isthmus.model.tables import AUTHORITIES, BACKEND_TLS
from isthmus.proxy.messages import packed
from isthmus.statedb import Reader

UPSTREAM: Final = "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"


class PortTls(NamedTuple):
    """TLS to the backends of a port."""

    policy: BackendTls
    certificates: str
    """PEM of the authorities; empty if the port has no usable ones."""
    problem: str
    """Reason why the port has no endpoints; empty if it has TLS."""

    def socket(self) -> dict[str, Any]:
        """Return the transport socket: the authorities' certificates, the SNI, and the names that are accepted."""
        names = self.policy.names or (("DNS", self.policy.hostname),)
        validation = {
            "trusted_ca": {"inline_string": self.certificates},
            "match_typed_subject_alt_names": [_matcher(*each) for each in names],
        }
        context = packed(UPSTREAM, sni=self.policy.hostname, common_tls_context={"validation_context": validation})
        return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _matcher(kind: NameType, name: str) -> dict[str, Any]:
    exact = {"exact": name}
    return {"san_type": kind, "matcher": {"suffix": name[1:]} if kind == "DNS" and name[0] == "*" else exact}


def of_port(reader: Reader, service: ServiceName, port: Port) -> PortTls | None:
    """Return the TLS to a port's backends; ``None`` if no policy applies to it."""
    applying = [
        ((not target.section, *by_age(row)), row)
        for row in reader.by(BACKEND_TLS, "target", service)
        for target in row.targets
        if target.service == service and target.section in ("", port.name)
    ]
    if not applying:
        return None
    policy = min(applying, key=lambda each: each[0])[1]
    certificates = "\n".join(_certificates(reader, policy))
    problem = policy.invalid or ("" if certificates else "; ".join(message for _, message in failures(reader, policy)))
    return PortTls(policy, certificates, problem)


def problem(reader: Reader, service: ServiceName, number: int) -> str:
    """Name the policy by which a TCP port of a Service has no endpoints, and the reason; empty if there is none."""
    subject = resolve(reader, service, which="all")
    for port in subject.ports if subject is not None else ():
        if (port.port, port.protocol) == (number, "TCP") and (tls := of_port(reader, service, port)) and tls.problem:
            return f"BackendTLSPolicy {tls.policy.name}: {tls.problem}"
    return ""


def by_age(policy: BackendTls) -> tuple[str, str]:
    """Sort key of precedence between policies: age, name."""
    return policy.created or UNKNOWN_AGE, policy.name


def precedence(reader: Reader, policy: BackendTls, target: TlsTarget) -> BackendTls:
    """Return the policy that applies to a target of a policy: itself, unless another one precedes it."""
    same = (row for row in reader.by(BACKEND_TLS, "target", target.service) if _targets(row.targets, target))
    return min(same, key=by_age, default=policy)


def _targets(targets: Iterable[TlsTarget], target: TlsTarget) -> bool:
    return any((each.service, each.section) == (target.service, target.section) for each in targets)


def failures(reader: Reader, policy: BackendTls) -> Iterator[tuple[str, str]]:
    """Yield reason and message of each reference to an authority that cannot be used."""
    yield from policy.unresolved
    yield from (("InvalidCACertificateRef", message) for _, message in _read(reader, policy) if message)


def _certificates(reader: Reader, policy: BackendTls) -> Iterator[str]:
    return (certificates for certificates, _ in _read(reader, policy) if certificates)


def _read(reader: Reader, policy: BackendTls) -> Iterator[tuple[str, str]]:
    """Yield the certificates of each ConfigMap, or the reason why they are not used."""
    size = 0
    for name in policy.authorities:
        row = reader.get(AUTHORITIES, name)
        size += len(row.certificates) if row is not None else 0
        if row is None:
            yield "", f"ConfigMap {name} has not been read yet"
        elif size > MAX_CERTIFICATES:
            yield "", f"ConfigMap {name}: more than {MAX_CERTIFICATES} characters with those that are named before"
        else:
            yield row.certificates, row.problem


def by_policy(reader: Reader, old: BackendTls | None, new: BackendTls | None) -> set[ServiceName]:
    """A policy affects its targets, now and before."""
    return {target.service for row in (old, new) if row is not None for target in row.targets}


def by_authority(reader: Reader, old: Any, new: Any) -> set[ServiceName]:
    """A ConfigMap affects the targets of the policies that name it."""
    policies = reader.by(BACKEND_TLS, "authority", (new or old).name)
    return {target.service for policy in policies for target in policy.targets}
