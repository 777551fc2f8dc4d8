"""cilium.io: what we read of Cilium's own kinds."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class PortInfo(Wire, frozen=True):
    """A port of a frontend or of a backend; the number is text there."""

    port: str = ""
    protocol: str | None = None
    name: str | None = None


class AddressMatcher(Wire, frozen=True):
    """Calls of an address that is no service's."""

    ip: str = ""
    to_ports: list[PortInfo] | None = None


class ServiceMatcher(Wire, frozen=True):
    """Calls of a Service."""

    service_name: str = ""
    namespace: str = ""
    to_ports: list[PortInfo] | None = None


class RedirectFrontend(Wire, frozen=True):
    """Calls that the policy redirects: exactly one of the two fields is set."""

    address_matcher: AddressMatcher | None = None
    service_matcher: ServiceMatcher | None = None


class SelectorRequirement(Wire, frozen=True):
    """Requirement of a selector on one label."""

    key: str
    operator: str
    values: list[str] | None = None


class LabelSelector(Wire, frozen=True):
    """Selector of pods."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[SelectorRequirement] | None = None


class RedirectBackend(Wire, frozen=True):
    """Targets of redirected calls: ports of pods on the caller's node."""

    local_endpoint_selector: LabelSelector = LabelSelector()
    to_ports: list[PortInfo] | None = None


class LocalRedirectSpec(Wire, frozen=True):
    """The wish."""

    redirect_frontend: RedirectFrontend = RedirectFrontend()
    redirect_backend: RedirectBackend = RedirectBackend()
    skip_redirect_from_backend: bool = False


class LocalRedirectPolicy(Wire, frozen=True):
    """Calls of a service or an address go to pods of the caller's own node."""

    metadata: Meta
    spec: LocalRedirectSpec = LocalRedirectSpec()


LOCAL_REDIRECT_POLICY: Final = Kind(
    "cilium.io", "v2", "ciliumlocalredirectpolicies", "CiliumLocalRedirectPolicy", LocalRedirectPolicy
)
