"""The folder of a cluster's own keys: its authority, what that signed, and the passwords of its etcd's users.

    ca.crt  ca.key            the authority that signs; ca.crt holds two certificates while one takes over
    next.crt  next.key        the one that will sign next, trusted already; without its key it is an issuer's
    next-trial.crt            of a client, by that one of an issuer
    <name>.request.key        key of a pair whose certificate an issuer has not signed yet
    server.crt  server.key    of the etcd
    operator.crt  mirror.crt  local.crt    a client's, each of one process, where the etcd asks for one: etcd takes its
                              name for a user, so each opens exactly what that user may (local: of the agents)
    node.crt  gateway.crt     of nodes that call other islands, and of gateways; both as identities of SPIFFE
    admin.crt  peer.crt       of `isthmus clusters …` and of peers: without a user, they open nothing by themselves
    signing.key  signing.pub  X25519 pairs, from which keys of signatures of callers follow (docs/identity.md)
    <user>.password           root, operator, mirror, local, and remote-<peer> of each peer that joined by a token

The folder is its owner's only, and so is each file. Files are replaced whole.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization

from isthmus.clusterset import certificates
from isthmus.clusterset.certificates import Pair
from isthmus.clusterset.errors import PkiError
from isthmus.etcd import Tls
from isthmus.model.names import etcd_name

LASTING: Final = 3650
"""Days of what opens nothing by itself."""
LEFT: Final = 1 / 3
"""A certificate with less of its life left is renewed when there is an occasion."""
USERS: Final = ("root", "operator", "mirror", "local")
CLIENTS: Final = ("operator", "mirror", "local", "admin")
"""Pairs of clients, called as their certificate's name. ``admin`` is no user of the etcd, nor is ``peer``."""
MAX_AUTHORITIES: Final = 7
"""Authorities in a bundle beside the next one: peers take eight (``links.requests.MAX_CERTIFICATES``)."""
MAX_BUNDLE: Final = 16_384
"""Bytes of a bundle, likewise (``links.requests.MAX_BUNDLE``)."""
TRIAL: Final = "next-trial"
"""Pair by the authority of an issuer that will sign next, to try whether the etcd admits it."""


class Spec(NamedTuple):
    """Certificate of a pair of the folder."""

    subject: str
    hosts: tuple[str, ...]
    """Names and addresses of a server; none of a client."""
    identity: str
    """A URI as further subject; empty without one."""
    days: float


def specs(
    cluster: str, hosts: Iterable[str], *, days: float, domain: str = "", lasting: float = LASTING
) -> dict[str, Spec]:
    """Certificates of a cluster's pairs. ``domain``, ``days``: as for :meth:`Folder.ensure`."""
    names = (*hosts, etcd_name(cluster, domain)) if domain else tuple(hosts)
    pairs = {"server": Spec(cluster, names, "", days)}
    pairs |= {name: Spec(name, (), "", days) for name in CLIENTS} | {"peer": Spec("peer", (), "", lasting)}
    if domain:
        uri = f"spiffe://{cluster}.{domain}"
        pairs["node"] = Spec("node", (), f"{uri}/node", days)
        pairs["gateway"] = Spec("gateway", (f"{cluster}.{domain}",), f"{uri}/gateway", days)
    return pairs


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
    def authority(self) -> bytes:
        """The certificate of the authority that signs; PkiError if its file holds none."""
        try:
            return first(self.bundle)
        except (ValueError, IndexError):
            raise PkiError(f"{self.path / 'ca.crt'}: it holds no certificate") from None

    @property
    def signer(self) -> Pair:
        """The authority that signs; PkiError if its files are no certificate and its key."""
        bundle, key = self.read("ca.crt"), self.read("ca.key")
        if not _match(bundle, key):
            raise PkiError(f"{self.path / 'ca.crt'}, ca.key: they are no certificate and its key; put a copy there")
        return Pair(first(bundle), key)

    def pair(self, name: str) -> Pair:
        """A certificate and its key."""
        return Pair(self.read(f"{name}.crt"), self.read(f"{name}.key"))

    def password(self, user: str) -> str:
        """The password of a user of the etcd."""
        return self.read(f"{user}.password").decode().strip()

    def readers(self) -> dict[str, str]:
        """Passwords of peers' users, by the user's name."""
        own = {f"{user}.password" for user in USERS}
        files = (path.name for path in self.path.glob("*.password") if path.name not in own)
        return {user: self.password(user) for file in sorted(files) if (user := file.removesuffix(".password"))}

    def forget_reader(self, user: str) -> None:
        """Remove the password of a peer's user, if there is one."""
        (self.path / f"{user}.password").unlink(missing_ok=True)

    def contents(self) -> dict[str, bytes]:
        """Every file by its name; hidden ones and a trial's are not kept."""
        hidden = (".", "trial.")
        paths = (path for path in self.path.iterdir() if path.is_file() and not path.name.startswith(hidden))
        return {path.name: path.read_bytes() for path in sorted(paths)}

    def replace(self, contents: Mapping[str, bytes]) -> None:
        """Make the folder hold these files and no others."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self.contents()
        for name, content in contents.items():
            if before.get(name) != content:
                self.save(name, content)
        for name in before.keys() - contents.keys():
            (self.path / name).unlink()

    def ensure(
        self, cluster: str, hosts: Iterable[str], *, days: float, renew: bool = False, domain: str = ""
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
        signer, pairs = self.signer, specs(cluster, hosts, days=days, domain=domain)
        for name in pairs if renew else self.outdated(pairs):
            spec = pairs[name]
            pair = certificates.issue(signer, spec.subject, hosts=spec.hosts, identity=spec.identity, days=spec.days)
            self._save_pair(name, pair)
            made.append(name)
        return made + self.ensure_passwords()

    def outdated(self, pairs: Mapping[str, Spec]) -> list[str]:
        """Return the pairs that are missing, about to end, for other hosts, or not signed by the authority that
        signs."""
        return [name for name, spec in pairs.items() if not self._good(name, spec.hosts, spec.identity)]

    def ensure_passwords(self) -> list[str]:
        """Make the passwords that are missing; returns their files."""
        made = []
        for user in USERS:
            if not (self.path / f"{user}.password").exists():
                self.save(f"{user}.password", secrets.token_urlsafe(24).encode())
                made.append(f"{user}.password")
        return made

    def client(self, name: str, *, days: float) -> None:
        """A certificate for an etcd that takes the name of a certificate for its user, as Cilium's do."""
        self._save_pair(name, certificates.issue(self.signer, name, days=days))

    def begin_rotation(self, cluster: str) -> None:
        """A new authority that signs nothing yet and is trusted beside the old one."""
        if self.waiting:
            raise PkiError(f"{self.path}: a new authority waits already; go on with: rotate-ca switch")
        # X.509 permits 64 characters, of which a cluster's name may take 32.
        pair = certificates.authority(f"isthmus clusterset {cluster} {secrets.token_hex(4)}")
        self._save_pair("next", pair)
        self.save("ca.crt", first(self.bundle) + pair.certificate)

    def trust(self, authority: bytes) -> bool:
        """Trust the authority by which an issuer signs now; returns whether it is the one that signs here.

        The first one is at once. Another one is to take over, as one that :meth:`begin_rotation` made.
        """
        if not (self.path / "ca.crt").exists():
            self.save("ca.crt", authority)
        if self.authority == authority:
            if self.issuers_next:
                self.abandon()
            return True
        if not self.waiting or self.read("next.crt") != authority:
            others = [each for each in split(self.bundle) if each != authority]
            if len(others) > MAX_AUTHORITIES or len(b"".join((*others, authority))) > MAX_BUNDLE:
                raise PkiError(
                    f"the issuer has changed its authority {len(others)} times within one rotation, and peers take no "
                    "more beside each other: once it keeps to one, delete the CertificateRequests, and take next.crt "
                    "out of Secret isthmus-keys"
                )
            self.save("next.crt", authority)
            self.save("ca.crt", b"".join((*others, authority)))
        return False

    def abandon(self) -> None:
        """Forget an authority of an issuer that does not sign yet, since the one before signs again."""
        self.save("ca.crt", b"".join(each for each in split(self.bundle) if each != self.read("next.crt")))
        for file in ("next.crt", f"{TRIAL}.crt", f"{TRIAL}.key", f"{TRIAL}.request.key"):
            (self.path / file).unlink(missing_ok=True)

    @property
    def issuers_next(self) -> bool:
        """True if the authority that waits to sign is an issuer's."""
        return (self.path / "next.crt").exists() and not (self.path / "next.key").exists()

    @property
    def signs(self) -> bool:
        """True if a rotation is under way in which this folder's own keys sign."""
        return (self.waiting and not self.issuers_next) or ((self.path / "ca.key").exists() and self.retiring)

    @property
    def tried(self) -> bool:
        """True if there is a pair with which :meth:`of_next` can try the next authority."""
        return not self.issuers_next or _usable(self.path / TRIAL, self.read("next.crt"))

    @contextmanager
    def of_next(self, name: str) -> Iterator[Tls]:
        """A certificate of the authority that is to sign next, for as long as it takes to try it."""
        if self.issuers_next:
            yield Tls(*(str(self.path / file) for file in ("ca.crt", f"{TRIAL}.crt", f"{TRIAL}.key")))
            return
        self._save_pair("trial", certificates.issue(self.pair("next"), name, days=1))
        try:
            yield Tls(*(str(self.path / file) for file in ("ca.crt", "trial.crt", "trial.key")))
        finally:
            for file in ("trial.crt", "trial.key"):
                (self.path / file).unlink()

    @property
    def waiting(self) -> bool:
        """True if a new authority waits to sign."""
        return any((self.path / file).exists() for file in ("next.key", "next.crt"))

    @property
    def retiring(self) -> bool:
        """True if an authority that does not sign any more is still trusted."""
        return not self.waiting and len(x509.load_pem_x509_certificates(self.bundle)) > 1

    def switch(self) -> None:
        """The new authority signs from now on; the old one is still trusted. Everything has to be made anew."""
        if not self.waiting:
            raise PkiError(f"{self.path}: no new authority waits; start with: rotate-ca begin")
        new = first(self.read("next.crt"))
        self.save("ca.crt", b"".join((new, *(each for each in split(self.bundle) if each != new))))
        if self.issuers_next:
            (self.path / "ca.key").unlink(missing_ok=True)
        else:
            self.save("ca.key", self.read("next.key"))
        for name in ("next.key", "next.crt", f"{TRIAL}.key", f"{TRIAL}.crt", f"{TRIAL}.request.key"):
            (self.path / name).unlink(missing_ok=True)

    def end_rotation(self) -> None:
        """The old authority is no longer trusted."""
        if self.waiting:
            raise PkiError(f"{self.path}: the new authority does not sign yet; first: rotate-ca switch")
        self.save("ca.crt", self.authority)

    def read(self, name: str) -> bytes:
        """The content of a file."""
        try:
            return (self.path / name).read_bytes()
        except OSError as error:
            message = f"{self.path / name}: {error.strerror}; make it with: isthmus clusters certs"
            raise PkiError(message) from None

    def save(self, name: str, content: bytes) -> None:
        """Replace a file whole; its owner's only from the first byte on."""
        save(self.path / name, content)

    def requested_key(self, name: str) -> bytes:
        """The key of a pair that an issuer is to sign; made anew where there is none that can be used."""
        file = f"{name}.request.key"
        key = self.read(file) if (self.path / file).exists() else b""
        if not certificates.is_key(key):
            key = certificates.new_key()
            self.save(file, key)
        return key

    def adopt(self, name: str, certificate: bytes) -> None:
        """Replace a pair by its requested key and the certificate that an issuer signed for it."""
        self._save_pair(name, Pair(certificate, self.read(f"{name}.request.key")))
        (self.path / f"{name}.request.key").unlink()

    def _save_pair(self, name: str, pair: Pair) -> None:
        self.save(f"{name}.key", pair.key)
        self.save(f"{name}.crt", pair.certificate)

    def _signers(self) -> list[bytes]:
        """Authorities by which a pair may be: also the next one of an issuer, which signs by no other any more."""
        return [self.authority, *([self.read("next.crt")] if self.issuers_next else ())]

    def _good(self, name: str, hosts: tuple[str, ...], identity: str) -> bool:
        """True if a certificate exists, signed by the current authority, for these hosts, use and identity, and not
        about to expire."""
        files = [self.path / f"{name}.{end}" for end in ("crt", "key")]
        if not all(each.exists() for each in files) or not _match(*(each.read_bytes() for each in files)):
            return False
        if not (self.path / "ca.crt").exists():
            return False
        certificate = x509.load_pem_x509_certificate(self.read(f"{name}.crt"))
        signers = [each for each in self._signers() if issued(certificates.pem(certificate), each)]
        # The own authority is replaced long before it ends; an issuer's may end before what it signed.
        ends = [] if (self.path / "ca.key").exists() else [time for each in signers for time in certificates.ends(each)]
        if _uses(certificate) != {certificates.SERVER if hosts else certificates.CLIENT}:
            return False
        return (
            bool(signers) and lasts(certificate, *ends) and _hosts(certificate) >= {*hosts, *filter(None, [identity])}
        )


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
        parsed = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        raise PkiError("what should be certificates is none") from None
    return b"".join(map(certificates.pem, parsed))


def checked_key(key: bytes) -> bytes:
    """A private key of a peer, rewritten as nothing but that; PkiError where it is none."""
    try:
        private_key = serialization.load_pem_private_key(key, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise PkiError("what should be a private key is none") from None
    return certificates.key_pem(private_key)


def digest(bundle: bytes) -> str:
    """Digest of a bundle of certificates, whatever their order and the text around them; empty if it has none."""
    try:
        encoded = sorted(
            each.public_bytes(serialization.Encoding.DER) for each in x509.load_pem_x509_certificates(bundle)
        )
    except (ValueError, x509.InvalidVersion):
        return ""
    return hashlib.sha256(b"".join(encoded)).hexdigest()


def issued(certificate: bytes, authority: bytes) -> bool:
    """True if an authority signed a certificate, both PEM, of several the first."""
    try:
        parsed = x509.load_pem_x509_certificate(certificate)
        parsed.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, x509.InvalidVersion):
        return False
    return True


def lasts(certificate: x509.Certificate, *ends: datetime, now: datetime | None = None) -> bool:
    """True if more than a third of a certificate's life is left, which ends at ``ends`` at the latest."""
    end = min([certificate.not_valid_after_utc, *ends])
    life, remaining = end - certificate.not_valid_before_utc, end - (now or datetime.now(UTC))
    return remaining > max(life * LEFT, timedelta(0))


def covers(certificate: bytes, hosts: Iterable[str]) -> bool:
    """True if a certificate is valid for these addresses and names."""
    return _hosts(x509.load_pem_x509_certificate(certificate)) >= {*hosts}


def _usable(path: Path, authority: bytes) -> bool:
    """True if ``path.crt`` and ``path.key`` are a pair of this authority that has not ended."""
    files = [path.with_name(f"{path.name}.{end}") for end in ("crt", "key")]
    if not all(each.exists() for each in files):
        return False
    certificate, key = (each.read_bytes() for each in files)
    if not _match(certificate, key) or not issued(certificate, authority):
        return False
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc > datetime.now(UTC)


def hosts_of(certificate: bytes) -> set[str]:
    """Subject alternative names of a certificate: addresses, names and URIs."""
    return _hosts(x509.load_pem_x509_certificate(certificate))


def uses_of(certificate: bytes) -> set[x509.ObjectIdentifier]:
    """Extended key usages of a certificate."""
    return _uses(x509.load_pem_x509_certificate(certificate))


def split(bundle: bytes) -> list[bytes]:
    """Certificates of a bundle, each as PEM."""
    return [certificates.pem(each) for each in x509.load_pem_x509_certificates(bundle)]


def first(bundle: bytes) -> bytes:
    """The first certificate of a bundle, as PEM."""
    return certificates.pem(x509.load_pem_x509_certificates(bundle)[0])


def _match(certificate: bytes, key: bytes) -> bool:
    """True if these are a certificate, of a bundle the first one, and its private key."""
    try:
        public = x509.load_pem_x509_certificate(certificate).public_key()
        return bool(public == serialization.load_pem_private_key(key, password=None).public_key())
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion):
        return False


def _uses(certificate: x509.Certificate) -> set[x509.ObjectIdentifier]:
    try:
        return {*certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value}
    except x509.ExtensionNotFound:
        return set()


def _hosts(certificate: x509.Certificate) -> set[str]:
    """Subject alternative names of a certificate: addresses, names and URIs."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    addresses = {str(each) for each in names.get_values_for_type(x509.IPAddress)}
    named = {*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.UniformResourceIdentifier)}
    return addresses | named
