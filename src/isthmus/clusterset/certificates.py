"""Certificates: authorities and the certificates that they sign. Pure but for random numbers and the default clock.

Keys are P-256. A key is only returned to the caller, who keeps it in a file of mode 0600.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

from isthmus import bounds

SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH

SKEW = timedelta(minutes=5)
"""Certificates are valid from this long before they are issued, because clocks differ."""

EXPIRY_WARNING: Final = timedelta(days=14)
"""Time before expiry at which status begins to warn: enough to renew within working hours."""


class Expiry(NamedTuple):
    """Time at which a certificate file expires."""

    file: str
    time: datetime
    """UTC."""


def expiry(certificate: tuple[str, bytes] | None, authorities: tuple[str, bytes] | None) -> Expiry | None:
    """Earlier expiry of a client certificate and a trust bundle, each a path and its content.

    A chain expires with its leaf, the first certificate in its file; a bundle with its longest-lived authority.
    None if neither is given or readable; opening the connection reports unreadable files.
    """
    expiries: list[Expiry] = []
    if certificate is not None and (times := ends(certificate[1])):
        expiries.append(Expiry(certificate[0], times[0]))
    if authorities is not None and (times := ends(authorities[1])):
        expiries.append(Expiry(authorities[0], max(times)))
    return min(expiries, key=lambda end: end.time, default=None)


def ends(content: bytes) -> list[datetime]:
    """Expiry times of the certificates in a file, in file order, UTC; empty if any of them is unreadable."""
    try:
        return [bounds.clamped(each.not_valid_after_utc) for each in x509.load_pem_x509_certificates(content)]
    except (ValueError, x509.InvalidVersion):
        return []


class Pair(Struct, frozen=True):
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def authority(name: str, *, days: int = 3650, now: datetime | None = None) -> Pair:
    """Return a new self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), days=days, now=now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    return Pair(pem(builder.sign(key, hashes.SHA256())), key_pem(key))


def new_key() -> bytes:
    """A private key on P-256, as PEM."""
    return key_pem(ec.generate_private_key(ec.SECP256R1()))


def is_key(content: bytes) -> bool:
    """True if this is a private key on an elliptic curve, as PEM."""
    try:
        return isinstance(serialization.load_pem_private_key(content, password=None), ec.EllipticCurvePrivateKey)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def request(key: bytes, name: str, *, hosts: Iterable[str] = (), identity: str = "") -> str:
    """Return a request for a certificate as :func:`issue` returns one, by the owner of a private key, as PEM."""
    private = serialization.load_pem_private_key(key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey), "our keys are on P-256"
    names = [_general(host) for host in hosts]
    names += [x509.UniformResourceIdentifier(identity)] if identity else []
    builder = x509.CertificateSigningRequestBuilder().subject_name(_name(name))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def issue(
    ca: Pair,
    name: str,
    *,
    hosts: Iterable[str] = (),
    identity: str = "",
    days: float = 365,
    now: datetime | None = None,
) -> Pair:
    """Return a server certificate for these addresses and DNS names; without any, a client certificate for this name.

    Never one for both uses: a stolen client key must not authenticate a server, nor the other way round.
    ``identity``: a URI as further subject (SPIFFE's X.509-SVID).
    """
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = sign(ca, key.public_key(), name, hosts=hosts, identity=identity, days=days, now=now)
    return Pair(certificate, key_pem(key))


def sign(
    ca: Pair,
    key: ec.EllipticCurvePublicKey,
    name: str,
    *,
    hosts: Iterable[str] = (),
    identity: str = "",
    days: float = 365,
    now: datetime | None = None,
) -> bytes:
    """Return a certificate as :func:`issue` does, as PEM, for a key whose private half is elsewhere."""
    names = [_general(host) for host in hosts]
    uses = SERVER if names else CLIENT
    names += [x509.UniformResourceIdentifier(identity)] if identity else []
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    signer = serialization.load_pem_private_key(ca.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "our authorities have P-256 keys"
    builder = _builder(_name(name), issuer.subject, key, days=days, now=now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([uses]), critical=False)
    vouched = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(vouched, critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return pem(builder.sign(signer, hashes.SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: float, now: datetime | None
) -> x509.CertificateBuilder:
    life = bounds.span(days * 86_400)
    began = (now or datetime.now(UTC)) - min(SKEW, life / 4)  # of a short life most is left when it is issued
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(bounds.after(began, life.total_seconds()))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(bounds.ip(host))
    except ValueError:
        return x509.DNSName(host)


def pem(certificate: x509.Certificate) -> bytes:
    """Encode a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKeyTypes) -> bytes:
    """Encode a private key as PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
