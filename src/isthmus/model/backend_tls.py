"""Input rows: TLS from Envoy to backends, and the authorities by which it trusts them (BackendTLSPolicy, GEP-1897)."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import Struct

from isthmus.model.names import ServiceName, derived
from isthmus.model.routes import ParentKind

NameType = Literal["DNS", "URI"]

MAX_CERTIFICATES: Final = 16 * 1024
"""Characters of all certificates of a policy, some ten of them: each port of each target has a copy in every Envoy."""


class TlsTarget(Struct, frozen=True, gc=False, order=True):
    """A Service or ServiceImport, or one of its ports."""

    kind: ParentKind
    name: ServiceName
    section: str = ""
    """Name of the port; empty for every port."""

    @property
    def service(self) -> ServiceName:
        """The Service itself, the derived one of an import."""
        return self.name if self.kind == "Service" else derived(self.name)


class BackendTls(Struct, frozen=True, gc=False, kw_only=True):
    """A BackendTLSPolicy."""

    name: ServiceName
    targets: tuple[TlsTarget, ...] = ()
    authorities: tuple[ServiceName, ...] = ()
    """ConfigMaps with the certificates of authorities."""
    unresolved: tuple[tuple[str, str], ...] = ()
    """Reason and message of each reference to an authority that is no ConfigMap."""
    hostname: str = ""
    """The name that is asked for (SNI), and that of the certificate unless ``names`` are given."""
    names: tuple[tuple[NameType, str], ...] = ()
    """Names of which the certificate must have one; of DNS, a first label of ``*`` is any number of labels."""
    invalid: str = ""
    """Reason why the policy cannot be followed; calls of its targets fail then."""
    unread: tuple[str, ...] = ()
    """Fields that nothing follows."""
    created: str = ""
    generation: int = 0


class Authority(Struct, frozen=True, gc=False, kw_only=True):
    """The certificates in a ConfigMap that a BackendTLSPolicy refers to."""

    name: ServiceName
    certificates: str = ""
    """PEM."""
    problem: str = ""
    """Reason why it has none."""
