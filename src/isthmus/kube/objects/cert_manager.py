"""cert-manager.io/v1: requests for certificates by an issuer."""

from __future__ import annotations

from typing import Final

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Condition, Meta, Wire


class CertificateRequestStatus(Wire, frozen=True):
    """Answer to a request: PEM, encoded by base64 once more."""

    certificate: str | None = None
    ca: str | None = None
    conditions: list[Condition] | None = None


class CertificateRequest(Wire, frozen=True):
    """A request. Its spec is not read: the object's name has a digest of it."""

    metadata: Meta
    status: CertificateRequestStatus = CertificateRequestStatus()


CERTIFICATE_REQUEST: Final = Kind(
    "cert-manager.io", "v1", "certificaterequests", "CertificateRequest", CertificateRequest
)
