"""isthmus.io: numbers of service accounts. The operator writes them; agents read them."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class CallerIdentitySpec(Wire, frozen=True):
    """The account that a number identifies."""

    namespace: str = ""
    service_account: str = ""


class CallerIdentityStatus(Wire, frozen=True):
    """Use of a number."""

    unused_since: str | None = None


class CallerIdentity(Wire, frozen=True):
    """Named as the number, in decimal."""

    metadata: Meta
    spec: CallerIdentitySpec = CallerIdentitySpec()
    status: CallerIdentityStatus | None = None


CALLER_IDENTITY: Final = Kind(
    "isthmus.io", "v1alpha1", "calleridentities", "CallerIdentity", CallerIdentity, namespaced=False
)
