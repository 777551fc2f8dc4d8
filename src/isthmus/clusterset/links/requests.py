"""Certificate signing requests of peers, and what is signed over them. Pure but for randomness and the default clock.

A request was made by another cluster and may be hostile. It contributes only a public key on P-256 or P-384, whose
owner signed the request. Its subject and the extensions that it asks for are ignored. The certificate is for a client,
of the name that the caller gives, and for one cluster's etcd alone: each cluster has an authority of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from isthmus.clusterset import certificates, pki
from isthmus.clusterset.certificates import Pair
from isthmus.clusterset.errors import LinkError, PkiError

CURVES: Final = (ec.SECP256R1, ec.SECP384R1)
MAX_CERTIFICATES: Final = 8
"""Certificates in a bundle: two while an authority takes over, and room for intermediate ones."""
MAX_BUNDLE: Final = 16_384
MAX_CERTIFICATE: Final = 8_192
"""Bytes, as in deploy/crds/clusterlinks.yaml, and of what a peer publishes later: all links share Secrets of 1 MiB."""
UNUSABLE: Final = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
"""Errors of cryptography for a value of another cluster; not all of them are ValueErrors."""


def request(key: bytes, user: str) -> str:
    """The request for a certificate of this user by the owner of a private key, as PEM; PkiError if it is none."""
    _private(key)
    return certificates.request(key, user)


def requested_key(text: str) -> ec.EllipticCurvePublicKey:
    """The public key of a peer's request; LinkError for anything that is not to be signed."""
    try:
        parsed = x509.load_pem_x509_csr(text.encode())
        key = parsed.public_key()
        signed = parsed.is_signature_valid
    except (*UNUSABLE, InvalidSignature):
        raise LinkError("InvalidRequest", "spec.request: it is no certificate signing request") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, CURVES):
        raise LinkError("InvalidRequest", "spec.request: want a key on P-256 or P-384")
    if not signed:
        raise LinkError("InvalidRequest", "spec.request: it is not signed by its own key")
    return key


def issuable(text: str, user: str) -> None:
    """LinkError for a request that no issuer is given: it would grant what else the request asks for.

    An issuer takes names from the request, unlike :func:`sign`: so it must have this user's name and nothing more.
    """
    requested_key(text)
    parsed = x509.load_pem_x509_csr(text.encode())
    try:  # a subject is only read here, and may be no text
        names = [(each.oid, each.value) for each in parsed.subject]
        extended = len(parsed.extensions) > 0 or len(parsed.attributes) > 0
    except UNUSABLE:
        names, extended = [], True
    if names != [(x509.NameOID.COMMON_NAME, user)] or extended:
        raise LinkError(
            "InvalidRequest", f"spec.request: an issuer signs it: want the subject CN={user} and nothing else"
        )


def rewritten(text: str) -> str:
    """A request as nothing but that: other readers may take a block before it, or headers in it, for the request."""
    return x509.load_pem_x509_csr(text.encode()).public_bytes(serialization.Encoding.PEM).decode()


def is_issuable(text: str, user: str) -> bool:
    """True if an issuer may be given a request."""
    try:
        issuable(text, user)
    except LinkError:
        return False
    return True


def is_for(certificate: str, text: str, user: str) -> bool:
    """True if a certificate is for the key of a request, and for this user."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate.encode())
        return parsed.public_key() == requested_key(text) and _is_user(parsed, user)
    except (*UNUSABLE, LinkError):
        return False


def same_key(first: str, second: str) -> bool:
    """True if two requests are for one key, and both could be signed."""
    try:
        return requested_key(first) == requested_key(second)
    except LinkError:
        return False


def is_of(text: str, key: bytes) -> bool:
    """True if a request is for this private key, and could be signed; PkiError if the key is none."""
    public = _private(key).public_key()
    try:
        return requested_key(text) == public
    except LinkError:
        return False


def sign(ca: Pair, text: str, user: str, *, days: float, now: datetime | None = None) -> str:
    """The client certificate of a user over a peer's request, as PEM; LinkError if the request is not to be signed."""
    return certificates.sign(ca, requested_key(text), user, days=days, now=now).decode()


def holds(
    certificate: str, authority: bytes, text: str, user: str, *, issuers: bool = False, now: datetime | None = None
) -> bool:
    """True if a certificate that was signed before is still right: by this authority, for this user and request, and
    with more than a third of its life left.

    ``issuers``: the authority is an issuer's, which may end before what it signed.
    """
    try:
        parsed = x509.load_pem_x509_certificate(certificate.encode())
        signer = x509.load_pem_x509_certificate(authority)
        parsed.verify_directly_issued_by(signer)
    except (*UNUSABLE, InvalidSignature):
        return False
    ends = [signer.not_valid_after_utc] if issuers else []
    return parsed.public_key() == requested_key(text) and _is_user(parsed, user) and pki.lasts(parsed, *ends, now=now)


def best(candidates: tuple[str, ...], key: bytes, user: str, bundle: bytes, *, now: datetime | None = None) -> bytes:
    """Return the best certificate for a private key, rewritten as one certificate; empty if no candidate is valid, for
    this key and user, and signed by an authority of the bundle.

    The one that was signed last is the best, since the peer had a reason to sign it, such as another authority; of
    several of one time the one that lasts longest.
    """
    public, time = _private(key).public_key(), now or datetime.now(UTC)
    usable: list[x509.Certificate] = []
    for text in candidates:
        if len(text) > MAX_CERTIFICATE:
            continue
        try:
            signers = x509.load_pem_x509_certificates(bundle)
            parsed = x509.load_pem_x509_certificate(text.encode())
            if parsed.public_key() == public and parsed.not_valid_after_utc > time and _is_user(parsed, user):
                usable += [parsed] if any(_is_signed(parsed, signer) for signer in signers) else []
        except UNUSABLE:
            continue
    last = max(usable, key=lambda each: (each.not_valid_before_utc, each.not_valid_after_utc), default=None)
    return certificates.pem(last) if last is not None else b""


def _is_user(certificate: x509.Certificate, user: str) -> bool:
    return [attribute.value for attribute in certificate.subject] == [user]


def _is_signed(certificate: x509.Certificate, signer: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(signer)
    except (*UNUSABLE, InvalidSignature):
        return False
    return True


def authorities(bundle: bytes, field: str = "spec.caBundle") -> bytes:
    """A peer's authorities, rewritten as nothing but certificates; LinkError where they are none, or too many."""
    if len(bundle) > MAX_BUNDLE:
        raise LinkError("InvalidCertificate", f"{field}: {len(bundle)} bytes, want at most {MAX_BUNDLE}")
    try:
        parsed = x509.load_pem_x509_certificates(bundle)
        able = all(signs(each) for each in parsed)
    except UNUSABLE:
        raise LinkError("InvalidCertificate", f"{field}: it is no bundle of certificates") from None
    if len(parsed) > MAX_CERTIFICATES:
        raise LinkError("InvalidCertificate", f"{field}: {len(parsed)} certificates, want 1 to {MAX_CERTIFICATES}")
    if not able:
        raise LinkError("InvalidCertificate", f"{field}: a certificate of it is no authority's")
    return b"".join(map(certificates.pem, parsed))


def signs(certificate: x509.Certificate) -> bool:
    """True if a certificate is an authority's."""
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def is_key(key: bytes) -> bool:
    """True if this is a private key that a link can have."""
    try:
        _private(key)
    except PkiError:
        return False
    return True


def _private(key: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        private = serialization.load_pem_private_key(key, password=None)
    except UNUSABLE:
        raise PkiError("the key of a link cannot be read") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, CURVES):
        raise PkiError("the key of a link is not on P-256 or P-384")
    return private
