"""Requests to an issuer of cert-manager, and judgement of its answers. Pure but for the signature of a request.

An issuer may answer with anything, so a certificate counts only if it is for the requested key, name, hosts and use,
most of its life is left, and the authority in ``status.ca`` signed it itself.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from msgspec import Struct

from isthmus.clusterset import certificates, pki
from isthmus.clusterset.errors import LinkError, PkiError
from isthmus.clusterset.links import requests
from isthmus.config import KeysSection
from isthmus.kube.objects.cert_manager import CertificateRequest
from isthmus.kube.objects.meta import Condition
from isthmus.times import timestamp

MAX_MESSAGE: Final = 300
"""Characters of an issuer's message that are repeated."""
MAX_ANSWER: Final = 65_536
"""Characters of ``status.certificate`` and ``status.ca``, each."""
FAILED: Final = "Failed"
"""Reason of the condition Ready: cert-manager tries no more."""
DENIED: Final = "Denied"


class _EarlyError(PkiError):
    """A certificate that will be as requested, once its time has come: the issuer's clock is ahead."""


class SigningRequest(Struct, frozen=True, kw_only=True):
    """A certificate that an issuer is to sign."""

    csr: str
    """Certificate signing request, PEM."""
    subject: str
    """The one name of its subject, which etcd takes for a user."""
    hosts: tuple[str, ...] = ()
    """Subject alternative names; with any, unless they are identities alone, it is for a server."""
    server: bool = False

    @property
    def usage(self) -> str:
        """Its use, as cert-manager calls it."""
        return "server auth" if self.server else "client auth"


class Issued(Struct, frozen=True):
    """A certificate and the authority that signed it, PEM, one each."""

    certificate: bytes
    authority: bytes


class Answer(Struct, frozen=True, kw_only=True):
    """Judgement of a request: what was issued, or the reason why nothing was."""

    issued: Issued | None = None
    reason: str = ""
    final: bool = False
    """True if cert-manager will do no more about this request."""


def name(purpose: str, request: SigningRequest, section: KeysSection) -> str:
    """Name of the object for a request. Another key, issuer, lifetime or list of hosts is another object."""
    key = requests.requested_key(request.csr).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    facts = (request.subject, request.hosts, request.usage, _issuer(section), section.lifetime)
    return f"isthmus-{purpose}-{hashlib.sha256(key + msgspec.json.encode(facts)).hexdigest()[:12]}"


def body(request: SigningRequest, section: KeysSection) -> dict[str, Any]:
    """Spec of the object. cert-manager takes names from the request, and use and lifetime from the spec."""
    return {
        "spec": {
            "request": base64.b64encode(requests.rewritten(request.csr).encode()).decode(),
            "issuerRef": _issuer(section),
            "duration": f"{max(1, round(section.lifetime))}s",
            "usages": ["digital signature", request.usage],
            "isCA": False,
        }
    }


def _issuer(section: KeysSection) -> dict[str, str]:
    return {"name": section.issuer, "kind": section.issuer_kind, "group": section.issuer_group}


def answer(observed: CertificateRequest, request: SigningRequest, *, now: datetime | None = None) -> Answer:
    """Judge the state of a request."""
    conditions = {each.type: each for each in observed.status.conditions or ()}
    ready = conditions.get("Ready")
    for kind in (DENIED, "InvalidRequest"):
        if (condition := conditions.get(kind)) is not None and condition.status == "True":
            return Answer(reason=f"{kind}: {_message(condition)}", final=True)
    if ready is not None and ready.status != "True" and ready.reason in (FAILED, DENIED):
        return Answer(reason=f"{ready.reason}: {_message(ready)}", final=True)
    if ready is None or ready.status != "True":
        state = f"{ready.reason}: {_message(ready)}" if ready is not None else "no controller has taken it up"
        return Answer(reason=state)
    try:
        return Answer(issued=issued(request, observed.status.certificate, observed.status.ca, now=now))
    except _EarlyError as error:
        return Answer(reason=str(error))
    except PkiError as error:
        return Answer(reason=f"its answer cannot be used: {error}", final=True)


def _message(condition: Condition) -> str:
    return " ".join(condition.message.split())[:MAX_MESSAGE] or "no message"


def issued(request: SigningRequest, certificate: str | None, ca: str | None, *, now: datetime | None = None) -> Issued:
    """The certificate of an answer and its authority; PkiError with the reason why they cannot be used."""
    try:
        leaf = x509.load_pem_x509_certificate(_decoded("status.certificate", certificate))
        authority = requests.authorities(_decoded("status.ca", ca), "status.ca")
        first = pki.first(authority)
        signer = x509.load_pem_x509_certificate(first)
        pem = certificates.pem(leaf)
        # The authority's name, which is displayed, may be no text: nothing has read it before.
        subject, public, _ = [each.value for each in leaf.subject], leaf.public_key(), [*signer.subject]
        key = requests.requested_key(request.csr)
        hosts, uses, is_authority = pki.hosts_of(pem), pki.uses_of(pem), requests.signs(leaf)
    except LinkError as error:
        raise PkiError(str(error)) from None
    except requests.UNUSABLE:
        raise PkiError("status.certificate, or status.ca: it is no certificate that can be read") from None
    time = now or datetime.now(UTC)
    wrong = {
        "it is for another key": public != key,
        f"its subject is not {request.subject} alone": subject != [request.subject],
        f"it is not for {', '.join(request.hosts)}": not hosts >= {*request.hosts},
        f"it is not for {request.usage} alone": uses
        != {certificates.SERVER if request.server else certificates.CLIENT},
        "it is an authority's": is_authority,
        "its authority has ended": signer.not_valid_after_utc <= time,
        "too little of its life is left": not pki.lasts(leaf, signer.not_valid_after_utc, now=time),
        f"it or its authority has more than {requests.MAX_CERTIFICATE} bytes": max(len(pem), len(first))
        > requests.MAX_CERTIFICATE,
        "status.ca did not sign it itself, and certificates between them are not supported": not pki.issued(pem, first),
        "status.ca is not self-signed, so that not every program trusts it": not pki.issued(first, first),
    }
    if reasons := [reason for reason, holds in wrong.items() if holds]:
        raise PkiError(f"status.certificate: {reasons[0]}")
    if (begin := max(leaf.not_valid_before_utc, signer.not_valid_before_utc)) > time:
        raise _EarlyError(f"its certificate is valid from {timestamp(begin)} on")
    return Issued(pem, first)


def _decoded(field: str, value: str | None) -> bytes:
    if not value:
        raise PkiError(f"{field}: it is empty")
    if len(value) > MAX_ANSWER:
        raise PkiError(f"{field}: {len(value)} characters, want at most {MAX_ANSWER}")
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise PkiError(f"{field}: it is not base64") from None
