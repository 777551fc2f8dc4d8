"""The folder of a cluster's own keys: its authority, what that signed, and the passwords of its etcd's users.

    ca.crt  ca.key            the authority that signs; ca.crt holds two certificates while one takes over
    next.crt  next.key        the one that will sign next, trusted already
    server.crt  server.key    of the etcd
    operator.crt  mirror.crt  local.crt    a client's, each of one process, where the etcd asks for one: etcd takes its
                              name for a user, so each opens exactly what that user may (local: of the agents)
    node.crt  gateway.crt     of nodes that call other islands, and of gateways; both as identities of SPIFFE
    admin.crt  peer.crt       of `isthmus clusters …` and of peers: without a user, they open nothing by themselves
    <user>.password           root, operator, mirror, local

The folder is its owner's only, and so is each file. Files are replaced whole.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from isthmus.clusterset import certificates
from isthmus.clusterset.certificates import Pair
from isthmus.clusterset.errors import PkiError
from isthmus.etcd import Tls

LASTING: Final = 3650
"""Days of what opens nothing by itself."""
LEFT: Final = 1 / 3
"""A certificate with less of its life left is renewed when there is an occasion."""
USERS: Final = ("root", "operator", "mirror", "local")
CLIENTS: Final = ("operator", "mirror", "local", "admin")
"""Pairs of clients, called as their certificate's name. ``admin`` is no user of the etcd, nor is ``peer``."""


class Folder:
    """Keys in files. PkiError names the file that is missing or cannot be used."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"<Folder {self.path}>"

    @property
    def bundle(self) -> bytes:
        """The authorities to be trusted: one, or two while one takes over."""
        return self.read("ca.crt")

    @property
    def signer(self) -> Pair:
        """The authority that signs."""
        return Pair(_first(self.read("ca.crt")), self.read("ca.key"))

    def pair(self, name: str) -> Pair:
        """A certificate and its key."""
        return Pair(self.read(f"{name}.crt"), self.read(f"{name}.key"))

    def password(self, user: str) -> str:
        """The password of a user of the etcd."""
        return self.read(f"{user}.password").decode().strip()

    def ensure(
        self, cluster: str, hosts: Iterable[str], *, days: int, renew: bool = False, domain: str = ""
    ) -> list[str]:
        """Make what is missing, renew what is about to end or is for other hosts; gives the names of what was made.

        ``domain``: the clusterset's, for the pairs by which nodes call islands and gateways answer, and the name of the
        etcd behind gateways; without, none.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        made = []
        if not (self.path / "ca.key").exists():
            self._save_pair("ca", certificates.authority(f"isthmus clusterset {cluster}"))
            made.append("ca")
        clients: dict[str, tuple[str, tuple[str, ...], int]] = {name: (name, (), days) for name in CLIENTS}
        wanted = {"server": (cluster, tuple(hosts), days), **clients, "peer": ("peer", (), LASTING)}
        identities = {}
        if domain:
            wanted["server"] = (cluster, (*wanted["server"][1], etcd_name(cluster, domain)), days)
            wanted |= {"node": ("node", (), days), "gateway": ("gateway", (f"{cluster}.{domain}",), days)}
            identities = {name: f"spiffe://{cluster}.{domain}/{name}" for name in ("node", "gateway")}
        for name, (subject, names, life) in wanted.items():
            identity = identities.get(name, "")
            if renew or not self._good(name, names, identity):
                pair = certificates.issue(self.signer, subject, hosts=names, identity=identity, days=life)
                self._save_pair(name, pair)
                made.append(name)
        for user in USERS:
            if not (self.path / f"{user}.password").exists():
                self.save(f"{user}.password", secrets.token_urlsafe(24).encode())
                made.append(f"{user}.password")
        return made

    def client(self, name: str, *, days: int) -> None:
        """A certificate for an etcd that takes the name of a certificate for its user, as Cilium's do."""
        self._save_pair(name, certificates.issue(self.signer, name, days=days))

    def begin_rotation(self, cluster: str) -> None:
        """A new authority that signs nothing yet and is trusted beside the old one."""
        if self.waiting:
            raise PkiError(f"{self.path}: a new authority waits already; go on with: rotate-ca switch")
        pair = certificates.authority(
            f"isthmus clusterset {cluster} {datetime.now(UTC):%Y-%m-%d} {secrets.token_hex(2)}"
        )
        self._save_pair("next", pair)
        self.save("ca.crt", _first(self.bundle) + pair.certificate)

    @contextmanager
    def of_next(self, name: str) -> Iterator[Tls]:
        """A certificate of the authority that is to sign next, for as long as it takes to try it."""
        self._save_pair("trial", certificates.issue(self.pair("next"), name, days=1))
        try:
            yield Tls(*(str(self.path / file) for file in ("ca.crt", "trial.crt", "trial.key")))
        finally:
            for file in ("trial.crt", "trial.key"):
                (self.path / file).unlink()

    @property
    def waiting(self) -> bool:
        """Whether there is an authority that is to sign next."""
        return (self.path / "next.key").exists()

    def switch(self) -> None:
        """The new authority signs from now on; the old one is still trusted. Everything has to be made anew."""
        if not self.waiting:
            raise PkiError(f"{self.path}: no new authority waits; start with: rotate-ca begin")
        old, new = _first(self.bundle), self.pair("next")
        self.save("ca.crt", new.certificate + old)
        self.save("ca.key", new.key)
        for name in ("next.key", "next.crt"):
            (self.path / name).unlink()

    def end_rotation(self) -> None:
        """The old authority is no longer trusted."""
        if self.waiting:
            raise PkiError(f"{self.path}: the new authority does not sign yet; first: rotate-ca switch")
        self.save("ca.crt", _first(self.bundle))

    def read(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            why = f"{self.path / name}: {error.strerror}; make it with: isthmus clusters certs"
            raise PkiError(why) from None

    def save(self, name: str, content: bytes) -> None:
        """Replace a file whole; its owner's only from the first byte on."""
        save(self.path / name, content)

    def _save_pair(self, name: str, pair: Pair) -> None:
        self.save(f"{name}.key", pair.key)
        self.save(f"{name}.crt", pair.certificate)

    def _good(self, name: str, hosts: tuple[str, ...], identity: str) -> bool:
        """Whether a certificate is there, of the authority that signs, for these hosts, that use and identity, and not
        about to end."""
        if not (self.path / f"{name}.key").exists():
            return False
        certificate = x509.load_pem_x509_certificate(self.read(f"{name}.crt"))
        life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        left = certificate.not_valid_after_utc - datetime.now(UTC)
        signer = x509.load_pem_x509_certificate(self.signer.certificate)
        if _uses(certificate) != {certificates.SERVER if hosts else certificates.CLIENT}:
            return False
        return (
            left > max(life * LEFT, timedelta(0))
            and certificate.issuer == signer.subject
            and _hosts(certificate) >= {*hosts, *filter(None, [identity])}
        )


def etcd_name(cluster: str, domain: str) -> str:
    """What the etcd of a cluster is called in TLS, and by SNI, where it is reached through the cluster's gateways."""
    return f"etcd.{cluster}.{domain}"


def save(path: Path, content: bytes) -> None:
    """Replace a file whole; its owner's only from the first byte on. PkiError where the disk does not take it."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        new.replace(path)
    except OSError as error:
        raise PkiError(f"{path}: cannot be written: {error.strerror}") from None


def checked(bundle: bytes) -> bytes:
    """Certificates of a peer, rewritten as nothing but certificates; PkiError where they are none."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        raise PkiError("what should be certificates is none") from None
    return b"".join(map(certificates.pem, found))


def checked_key(key: bytes) -> bytes:
    """A private key of a peer, rewritten as nothing but that; PkiError where it is none."""
    try:
        found = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise PkiError("what should be a private key is none") from None
    return certificates.key_pem(found)


def covers(certificate: bytes, hosts: Iterable[str]) -> bool:
    """Whether a certificate is for these addresses and names."""
    return _hosts(x509.load_pem_x509_certificate(certificate)) >= {*hosts}


def _first(bundle: bytes) -> bytes:
    return certificates.pem(x509.load_pem_x509_certificates(bundle)[0])


def _uses(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    try:
        return {*certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value}
    except x509.ExtensionNotFound:
        return set()


def _hosts(certificate: x509.Certificate) -> set[str]:
    """What a certificate is for, beside its subject: addresses, names and URIs."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    named = {*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.UniformResourceIdentifier)}
    return addresses | named
