"""Certificates: an authority, and what it vouches for. Pure but for the random numbers and the clock that is passed in.

Keys are P-256; a key is only ever given back to the caller, who keeps it in a file of mode 0600.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

SERVER = ExtendedKeyUsageOID.SERVER_AUTH
CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH

SKEW = timedelta(minutes=5)
"""A certificate is good a little before it is made: clocks differ."""


class Expiry(NamedTuple):
    """The end of what a file certifies."""

    file: str
    at: datetime
    """UTC."""


def expiry(certificate: tuple[str, bytes] | None, authorities: tuple[str, bytes] | None) -> Expiry | None:
    """What ends first of a certificate and of the authorities that the other side is verified by; each a path and its
    content. A chain ends with its leaf, which is the first in its file; a bundle of authorities with the last of them.
    None: neither is given, or what is given cannot be read, which whoever uses it finds out."""
    found: list[Expiry] = []
    if certificate is not None and (times := ends(certificate[1])):
        found.append(Expiry(certificate[0], times[0]))
    if authorities is not None and (times := ends(authorities[1])):
        found.append(Expiry(authorities[0], max(times)))
    return min(found, key=lambda each: each.at, default=None)


def ends(content: bytes) -> list[datetime]:
    """When the certificates of a file end, in their order, UTC; none where one of them cannot be read."""
    try:
        return [each.not_valid_after_utc for each in x509.load_pem_x509_certificates(content)]
    except (ValueError, x509.InvalidVersion):
        return []


class Pair(Struct, frozen=True):
    """A certificate and its private key, both as PEM."""

    certificate: bytes
    key: bytes


def authority(name: str, *, days: int = 3650, now: datetime | None = None) -> Pair:
    """A new authority that vouches for itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key.public_key(), days=days, now=now)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    return Pair(pem(builder.sign(key, hashes.SHA256())), key_pem(key))


def issue(
    by: Pair,
    name: str,
    *,
    hosts: Iterable[str] = (),
    identity: str = "",
    days: int = 365,
    now: datetime | None = None,
) -> Pair:
    """A certificate for a server of these addresses and DNS names; without any, for a client of this name.

    Never for both: whoever gets hold of a client's key must not be taken for the server, nor the other way round.
    ``identity``: a URI that it is for besides (SPIFFE's X.509-SVID).
    """
    names = [_general(host) for host in hosts]
    uses = SERVER if names else CLIENT
    names += [x509.UniformResourceIdentifier(identity)] if identity else []
    issuer = x509.load_pem_x509_certificate(by.certificate)
    signer = serialization.load_pem_private_key(by.key, password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey), "our authorities have P-256 keys"
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name), issuer.subject, key.public_key(), days=days, now=now)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(authority=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([uses]), critical=False)
    vouched = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(vouched, critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return Pair(pem(builder.sign(signer, hashes.SHA256())), key_pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int, now: datetime | None
) -> x509.CertificateBuilder:
    began = (now or datetime.now(UTC)) - SKEW
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(began)
        .not_valid_after(began + timedelta(days=days))
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
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def pem(certificate: x509.Certificate) -> bytes:
    """A certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: PrivateKeyTypes) -> bytes:
    """A private key as text, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
