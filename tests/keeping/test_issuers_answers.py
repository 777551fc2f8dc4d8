"""What an issuer of cert-manager answers to a request: used if it is what was asked for, else a reason."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from isthmus.clusterset import PkiError, certificates, links, pki
from isthmus.clusterset.certificates import Pair
from isthmus.clusterset.keeping import answers, roles, rotation
from isthmus.clusterset.keeping.answers import Answer, SigningRequest
from isthmus.clusterset.keeping.rotation import Step
from isthmus.clusterset.pki import Folder
from isthmus.config import KeysSection
from isthmus.kube.objects.cert_manager import CertificateRequest
from isthmus.model.names import ClusterName

CA, OTHER = certificates.authority("issuer"), certificates.authority("issuer")
KEY = certificates.new_key()
HOSTS = ("etcd.example", "10.0.0.1")
SERVER = SigningRequest(csr=certificates.request(KEY, "c1", hosts=HOSTS), subject="c1", hosts=HOSTS, server=True)
CLIENT = SigningRequest(csr=certificates.request(KEY, "operator"), subject="operator")
SECTION = KeysSection(issuer="ca")


def words_of(value: object) -> str:
    """Name of a case: certificates are random, and their text is not."""
    return value if isinstance(value, str) else "-"


def public(key: bytes = KEY) -> ec.EllipticCurvePublicKey:
    private = serialization.load_pem_private_key(key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    return private.public_key()


def encoded(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def request(certificate: bytes = b"", ca: bytes = b"", *conditions: tuple[str, str, str, str]) -> CertificateRequest:
    names = ("type", "status", "reason", "message")
    body = {
        "metadata": {"name": "isthmus-operator-1"},
        "status": {
            "conditions": [dict(zip(names, each, strict=True)) for each in conditions],
            "certificate": encoded(certificate),
            "ca": encoded(ca),
        },
    }
    return msgspec.convert(body, CertificateRequest)


READY = ("Ready", "True", "Issued", "")


def client(**changes: Any) -> bytes:
    fields = {"name": "operator", "ca": CA, "key": public(), "days": 30.0, **changes}
    return certificates.sign(fields.pop("ca"), fields.pop("key"), fields.pop("name"), **fields)


def reason(certificate: bytes, ca: bytes = CA.certificate) -> str:
    answer = answers.answer(request(certificate, ca, READY), CLIENT)
    assert answer.issued is None
    assert answer.final
    return answer.reason


def test_a_certificate_for_what_was_asked_is_used_with_its_authority() -> None:
    answer = answers.answer(request(client(), CA.certificate, READY), CLIENT)
    assert answer.issued == answers.Issued(client_pem := answer.issued.certificate, CA.certificate)  # type: ignore[union-attr]
    assert x509.load_pem_x509_certificate(client_pem).public_key() == public()
    server = certificates.sign(CA, public(), "c1", hosts=HOSTS, days=30)
    assert answers.answer(request(server, CA.certificate, READY), SERVER).issued is not None


@pytest.mark.parametrize(
    ("certificate", "words"),
    [
        (client(key=public(certificates.new_key())), "another key"),
        (client(name="root"), "its subject is not operator alone"),
        (client(hosts=("etcd.example",)), "it is not for client auth alone"),
        (client(now=datetime.now(UTC) - timedelta(days=25)), "too little of its life is left"),
        (client(now=datetime.now(UTC) - timedelta(days=99)), "too little of its life is left"),
        (client(ca=OTHER), "did not sign it itself"),
        (b"x" * 100, "it is no certificate that can be read"),
        (b"", "it is empty"),
        (b"x" * 80_000, "want at most"),
        (CA.certificate, "another key"),
    ],
    ids=words_of,
)
def test_a_certificate_for_anything_else_is_refused_with_the_reason(certificate: bytes, words: str) -> None:
    assert words in reason(certificate)


def under(days: float) -> Pair:
    """An authority that ends in some days, and was made thirty days before that."""
    return certificates.authority("issuer", days=30, now=datetime.now(UTC) - timedelta(days=30 - days))


def large(names: int) -> Pair:
    """An authority whose name has so many thousand characters."""
    key, ca = ec.generate_private_key(ec.SECP256R1()), x509.load_pem_x509_certificate(CA.certificate)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.USER_ID, "x" * 1000)] * names)
    builder = x509.CertificateBuilder(subject, subject, key.public_key(), 1)
    builder = builder.not_valid_before(ca.not_valid_before_utc).not_valid_after(ca.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    return Pair(certificates.pem(builder.sign(key, hashes.SHA256())), certificates.key_pem(key))


def test_an_authority_that_has_ended_or_all_links_would_refuse_is_refused() -> None:
    ended, broad = under(-1), large(5)
    assert "its authority has ended" in reason(client(ca=ended), ended.certificate)
    assert "more than 8192 bytes" in reason(client(ca=broad), broad.certificate)


def test_an_authority_between_is_refused_since_openssl_takes_it_for_no_root() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    loaded = x509.load_pem_x509_certificate(CA.certificate)
    builder = x509.CertificateBuilder(loaded.subject, loaded.subject, key.public_key(), 1)
    builder = builder.not_valid_before(loaded.not_valid_before_utc).not_valid_after(loaded.not_valid_after_utc)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    root = serialization.load_pem_private_key(CA.key, password=None)
    assert isinstance(root, ec.EllipticCurvePrivateKey)
    between = Pair(certificates.pem(builder.sign(root, hashes.SHA256())), certificates.key_pem(key))
    assert "not self-signed" in reason(client(ca=between), between.certificate)


def test_a_certificate_of_an_issuer_whose_clock_is_ahead_is_waited_for() -> None:
    early = client(now=datetime.now(UTC) + timedelta(minutes=9))
    answer = answers.answer(request(early, CA.certificate, READY), CLIENT)
    assert answer.issued is None
    assert not answer.final
    assert "valid from" in answer.reason
    later = datetime.now(UTC) + timedelta(minutes=5)
    assert answers.answer(request(early, CA.certificate, READY), CLIENT, now=later).issued is not None


@pytest.mark.parametrize(
    ("authority", "words"),
    [(b"", "status.ca: it is empty"), (b"x", "status.ca"), (client(), "no authority's")],
    ids=words_of,
)
def test_an_answer_without_its_authority_is_refused(authority: bytes, words: str) -> None:
    assert words in reason(client(), authority)


def test_a_server_must_have_every_host_and_one_use() -> None:
    less = certificates.sign(CA, public(), "c1", hosts=HOSTS[:1], days=30)
    assert "it is not for etcd.example, 10.0.0.1" in answers.answer(request(less, CA.certificate, READY), SERVER).reason


@pytest.mark.parametrize(
    ("condition", "final", "words"),
    [
        (("Denied", "True", "policy.example", "not\nyours"), True, "Denied: not yours"),
        (("InvalidRequest", "True", "Bad", "no"), True, "InvalidRequest: no"),
        (("Ready", "False", "Failed", "x" * 900), True, "Failed: " + "x" * answers.MAX_MESSAGE),
        (("Ready", "False", "Pending", "Referenced issuer not found"), False, "Pending: Referenced issuer not found"),
        (("Approved", "True", "cert-manager.io", ""), False, "no controller has taken it up"),
    ],
    ids=str,
)
def test_a_request_that_was_not_signed_has_the_issuers_reason(
    condition: tuple[str, str, str, str], final: bool, words: str
) -> None:
    assert answers.answer(request(b"", b"", condition), CLIENT) == Answer(reason=words, final=final)


@given(st.text(max_size=200), st.text(max_size=200))
def test_whatever_an_issuer_writes_is_a_certificate_or_a_reason(certificate: str, ca: str) -> None:
    with pytest.raises(PkiError):
        answers.issued(CLIENT, certificate, ca)


def test_another_key_lifetime_or_issuer_is_another_request() -> None:
    other = SigningRequest(csr=certificates.request(certificates.new_key(), "operator"), subject="operator")
    again = SigningRequest(csr=certificates.request(KEY, "operator"), subject="operator")
    name = answers.name("operator", CLIENT, SECTION)
    assert name == answers.name("operator", again, SECTION), "though a signature is random"
    changed = [
        answers.name("operator", other, SECTION),
        answers.name("operator", CLIENT, KeysSection(issuer="other")),
        answers.name("operator", CLIENT, KeysSection(issuer="ca", lifetime=60)),
    ]
    assert len({name, *changed}) == 4


def peers_request(name: str, *extensions: x509.ExtensionType) -> str:
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject)
    for each in extensions:
        builder = builder.add_extension(each, critical=True)
    private = ec.generate_private_key(ec.SECP256R1())
    return builder.sign(private, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


@pytest.mark.parametrize(
    "text",
    [
        peers_request("root"),
        peers_request("remote-c3"),
        peers_request("remote-c2", x509.BasicConstraints(ca=True, path_length=None)),
        peers_request("remote-c2", x509.SubjectAlternativeName([x509.DNSName("etcd.c1.clusterset.local")])),
        "hello",
    ],
)
def test_an_issuer_is_given_no_request_of_a_peer_that_asks_for_more_than_its_name(text: str) -> None:
    assert not links.is_issuable(text, "remote-c2")


def tlv(tag: int, *contents: bytes) -> bytes:
    """DER of a value."""
    content = b"".join(contents)
    size = len(content).to_bytes(2)
    return bytes([tag, *(size[1:] if len(content) < 128 else [0x82, *size] if size[0] else [0x81, size[1]])]) + content


def raw_request(value: bytes, *, attribute: bytes = b"\x55\x04\x03") -> str:
    """A request whose subject has any value, text or not; the attribute is a common name."""
    private = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    subject = tlv(0x30, tlv(0x31, tlv(0x30, tlv(6, attribute), value)))
    facts = tlv(
        0x30, tlv(2, b"\0"), subject, private.public_key().public_bytes(serialization.Encoding.DER, form), tlv(0xA0)
    )
    ecdsa_with_sha256 = tlv(0x30, tlv(6, bytes.fromhex("2a8648ce3d040302")))
    whole = tlv(0x30, facts, ecdsa_with_sha256, tlv(3, b"\0", private.sign(facts, ec.ECDSA(hashes.SHA256()))))
    text = base64.encodebytes(whole).decode()
    return f"-----BEGIN CERTIFICATE REQUEST-----\n{text}-----END CERTIFICATE REQUEST-----\n"


ORGANIZATION = b"\x55\x04\x0a"


@pytest.mark.parametrize(
    "text",
    [
        raw_request(tlv(12, b"\xff\xfe")),
        raw_request(tlv(3, b"\0abc")),
        raw_request(tlv(0x30)),
        raw_request(tlv(12, b"remote-c2"), attribute=ORGANIZATION),
    ],
    ids=["no UTF-8", "bits", "no text", "an organization"],
)
def test_a_peers_request_whose_subject_is_no_common_name_is_refused_and_stops_nothing(text: str) -> None:
    links.requests.requested_key(text)  # which an own authority signs, since it reads no subject
    assert not links.is_issuable(text, "remote-c2")


def renamed(pem: bytes) -> bytes:
    """A certificate of CA, in which its name is no text."""
    private = serialization.load_pem_private_key(CA.key, password=None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    loaded = x509.load_pem_x509_certificate(pem)
    facts = loaded.tbs_certificate_bytes.replace(b"issuer", b"\xff\xfe" * 3)
    signature = tlv(3, b"\0", private.sign(facts, ec.ECDSA(hashes.SHA256())))
    algorithm = tlv(0x30, tlv(6, bytes.fromhex("2a8648ce3d040302")))
    return certificates.pem(x509.load_der_x509_certificate(tlv(0x30, facts, algorithm, signature)))


def test_an_authority_whose_name_cannot_be_displayed_is_refused() -> None:
    certificate, ca = renamed(client()), renamed(CA.certificate)
    assert pki.issued(certificate, ca)
    assert "it is no certificate that can be read" in reason(certificate, ca)


def test_an_issuer_is_given_nothing_but_the_request_that_was_judged() -> None:
    other = peers_request("root").replace("CERTIFICATE REQUEST", "OTHER")
    sent = SigningRequest(csr=f"{other}\nnote\n{CLIENT.csr}", subject="operator")
    text = base64.b64decode(answers.body(sent, SECTION)["spec"]["request"]).decode()
    assert text == CLIENT.csr


def test_an_issuer_is_given_the_request_that_a_peer_makes() -> None:
    assert links.is_issuable(certificates.request(KEY, f"remote-{ClusterName('c2')}"), "remote-c2")


# The folder.


def test_the_first_authority_counts_at_once_and_another_one_by_two_bundles(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    assert folder.trust(CA.certificate)
    assert rotation.step(folder) is Step.STEADY
    assert not folder.trust(OTHER.certificate)
    assert rotation.step(folder) is Step.TRUSTING
    assert pki.split(folder.bundle) == [CA.certificate, OTHER.certificate]
    folder.switch()
    assert rotation.step(folder) is Step.SIGNING
    assert folder.trust(OTHER.certificate)
    third = certificates.authority("issuer").certificate
    assert not folder.trust(third), "also one that comes before the rotation has ended"
    assert pki.split(folder.bundle) == [OTHER.certificate, CA.certificate, third]
    folder.switch()
    folder.end_rotation()
    assert pki.split(folder.bundle) == [third]


def test_an_issuer_that_returns_to_its_authority_ends_the_rotation(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.trust(CA.certificate)
    folder.trust(OTHER.certificate)
    assert folder.trust(CA.certificate)
    assert rotation.step(folder) is Step.STEADY
    assert folder.bundle == CA.certificate


def test_an_issuer_cannot_fill_the_bundle(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.trust(CA.certificate)
    for _ in range(7):
        folder.trust(certificates.authority("issuer").certificate)
    with pytest.raises(PkiError, match="has changed its authority"):
        folder.trust(certificates.authority("issuer").certificate)
    assert len(pki.split(folder.bundle)) <= 8


def test_an_issuer_cannot_make_the_bundle_larger_than_peers_take(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for _ in range(2):
        folder.trust(large(2).certificate)
    with pytest.raises(PkiError, match="has changed its authority"):
        folder.trust(large(2).certificate)
    assert links.requests.authorities(folder.bundle) == folder.bundle


def test_a_folder_whose_issuer_changed_too_often_is_cured_as_its_problem_tells(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for _ in range(8):
        folder.trust(certificates.authority("issuer").certificate)
    last = certificates.authority("issuer").certificate
    with pytest.raises(PkiError, match=r"take next\.crt out of Secret isthmus-keys"):
        folder.trust(last)
    (tmp_path / "next.crt").unlink()
    assert rotation.step(folder) is Step.SIGNING
    folder.end_rotation()
    assert not folder.trust(last)
    assert len(pki.split(folder.bundle)) == 2


async def test_a_peers_certificate_by_one_authority_too_many_does_not_stop_the_keys(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for _ in range(8):
        folder.trust(certificates.authority("issuer").certificate)
    issuer: Any = Unreachable()
    offered = certificates.authority("issuer").certificate
    pairs = {"admin": pki.Spec("admin", (), "", 30)}
    assert "root.password" in await roles.ensure(folder, pairs, issuer, fresh=False, offered=offered)
    assert "has changed its authority" in issuer.reasons["peers"]


class Unreachable:
    """An issuer that signs nothing."""

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    async def certificates(self, due: Mapping[str, SigningRequest]) -> dict[str, answers.Issued]:
        self.reasons = dict.fromkeys(due, "no answer")
        return {}


def test_certificates_are_due_before_the_authority_of_their_issuer_ends(tmp_path: Path) -> None:
    """cert-manager signs for as long as it is asked to, whenever its authority ends; by default that lasts 90 days."""
    folder, pairs, ending = Folder(tmp_path), {"peer": pki.Spec("peer", (), "", 365)}, under(9)
    folder.trust(ending.certificate)
    early = datetime.now(UTC) - timedelta(days=20)
    for name, content in (("key", KEY), ("crt", client(name="peer", ca=ending, days=365, now=early))):
        folder.save(f"peer.{name}", content)
    assert folder.outdated(pairs) == ["peer"]
    folder.save("peer.crt", client(name="peer", ca=ending, days=365))
    assert folder.outdated(pairs) == [], "it is asked again when a third of what is left is left, and not at once"
    text = certificates.request(KEY, "remote-c2")
    signed = client(name="remote-c2", ca=ending, days=365, now=early).decode()
    assert not links.holds(signed, ending.certificate, text, "remote-c2", issuers=True)
    assert links.holds(signed, ending.certificate, text, "remote-c2"), "an own authority is replaced long before"


@pytest.mark.parametrize(("days", "words"), [(20, ""), (9, "ends at"), (-1, "has ended at")])
def test_an_issuers_authority_that_is_about_to_end_is_a_problem(days: int, words: str) -> None:
    sentence = rotation.ending(under(days).certificate, datetime.now(UTC))
    assert words in sentence
    assert bool(words) == bool(sentence)


def test_a_peer_whose_certificate_has_ended_does_not_hold_up_the_authority_that_signs_its_next_one(
    tmp_path: Path,
) -> None:
    folder = Folder(tmp_path)
    folder.trust(CA.certificate)
    folder.trust(OTHER.certificate)
    ended = client(name="remote-c2", days=1, now=datetime.now(UTC) - timedelta(days=2))
    readers = {
        ClusterName("c2"): rotation.Reader(certificate=ended),
        ClusterName("c3"): rotation.Reader(certificate=client()),
    }
    [waits] = rotation.unconfirmed(Step.TRUSTING, folder, readers, ())
    assert waits.startswith("c3 ")


def test_an_issuer_takes_over_from_an_own_authority(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.ensure("c1", ["127.0.0.1"], days=30)
    own: Pair = folder.signer
    assert not folder.trust(CA.certificate)
    assert not folder.signs, "so the issuer signs, and not this folder"
    folder.switch()
    assert pki.split(folder.bundle) == [CA.certificate, own.certificate]
    assert not (tmp_path / "ca.key").exists()
    assert set(folder.outdated(pki.specs("c1", ["127.0.0.1"], days=30))) == {"server", *pki.CLIENTS, "peer"}
