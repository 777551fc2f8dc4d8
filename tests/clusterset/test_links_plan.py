"""What follows from ClusterLinks: rows in, files, certificates and refusals out."""

from __future__ import annotations

import base64
import textwrap
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from isthmus.clusterset import certificates
from isthmus.clusterset.errors import LinkError
from isthmus.clusterset.joining import LocalAccess, copies
from isthmus.clusterset.links import plan, requests
from isthmus.clusterset.links.plan import Kept, Manual, Outcome, Own
from isthmus.clusterset.peers import peer_files
from isthmus.kube.objects.links import ClusterLink, ClusterLinkSpec
from isthmus.kube.objects.meta import Meta
from isthmus.model.links import Link, LinkCondition, LinkStatus
from isthmus.model.names import ClusterName
from isthmus.sources import links as source

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 11, 26, tzinfo=UTC)
OURS, THEIRS = certificates.authority("c1"), certificates.authority("c2")
KEY = certificates.new_key()
"""Ours, of the link to c2."""
THEIR_KEY = certificates.new_key()
OWN = Own(
    name=ClusterName("c1"),
    id=1,
    pod_ranges=("10.1.0.0/16",),
    service_ranges=("10.96.0.0/16",),
    node_ranges=("172.30.0.0/16",),
)


SETTLED = LinkStatus(conditions=(LinkCondition(type="Accepted", status="True", reason="", message="", generation=0),))


def link(name: str = "c2", number: int = 2, *, settled: bool = False, **fields: Any) -> Link:
    given = {
        "status": SETTLED if settled else LinkStatus(),
        "endpoints": ("https://192.0.2.2:2379",),
        "ca_bundle": THEIRS.certificate.decode(),
        "pod_ranges": (f"10.{number}.0.0/16",),
        "created": f"2026-01-0{number % 9 + 1}T00:00:00Z",
        **fields,
    }
    return Link(name=ClusterName(name), id=number, **given)


def outcome(row: Link, *, kept: Kept | None = None, before: str = "", now: datetime = NOW, **links: Any) -> Outcome:
    refusal = plan.refusals(OWN, [row], {}).get(row.name)
    kept = kept or Kept(key=KEY)
    return plan.outcome(OWN, row, refusal, kept, OURS, before=before, days=30, now=now, **links)


def refused(*rows: Link, own: Own = OWN, manual: dict[ClusterName, Manual] | None = None) -> dict[str, str]:
    return {name: error.reason for name, error in plan.refusals(own, rows, manual or {}).items()}


def their_request(key: Any = None, name: str = "remote-c1", *extensions: x509.ExtensionType) -> str:
    key = key or serialization.load_pem_private_key(THEIR_KEY, password=None)
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return builder.sign(key, algorithm).public_bytes(serialization.Encoding.PEM).decode()


def signed_for_us(days: float = 30, *, ca: certificates.Pair = THEIRS, user: str = "remote-c1") -> str:
    return requests.sign(ca, requests.request(KEY, user), user, days=days, now=NOW)


# What a link comes to


def test_a_link_that_has_both_certificates_is_a_peers_file_without_a_password() -> None:
    found = outcome(link(request=their_request(), certificate=signed_for_us(), namespaces=("demo",)))
    assert found.refusal is None
    peer = peer_files.fields_of(found.files["c2"], name=ClusterName("c2"), path=Path("/peers/c2"))
    assert (peer.id, peer.pod_ranges, peer.namespaces) == (2, ("10.2.0.0/16",), ("demo",))
    assert (peer.username, peer.password, peer.server_name) == ("", "", "etcd.c2.clusterset.local")
    assert found.files["c2.key"] == KEY
    assert found.files["c2.ca.crt"] == THEIRS.certificate
    assert b"PRIVATE" not in b"".join(found.files[name] for name in ("c2", "c2.crt", "c2.ca.crt"))
    assert found.certificate


def test_a_link_without_a_certificate_offers_a_request_and_no_file() -> None:
    found = outcome(link())
    assert (found.files, found.certificate, found.refusal) == ({}, "", None)
    request = x509.load_pem_x509_csr(found.request.encode())
    assert request.subject.rfc4514_string() == "CN=remote-c1"


def test_a_request_that_is_displayed_stays_as_it_is_while_its_key_does() -> None:
    first = outcome(link()).request
    displayed = link(status=LinkStatus(request=first))
    assert outcome(displayed).request == first
    assert outcome(displayed, kept=Kept(key=certificates.new_key())).request != first
    assert outcome(link(status=LinkStatus(request=their_request()))).request != their_request()


def test_what_a_link_shows_has_no_private_key() -> None:
    found = outcome(link(request=their_request(), certificate=signed_for_us()))
    assert "PRIVATE" not in found.request + found.certificate


def test_a_certificate_that_holds_is_not_signed_again() -> None:
    row = link(request=their_request())
    first = outcome(row).certificate
    assert outcome(row, before=first).certificate == first
    later = outcome(row, before=first, now=NOW + timedelta(days=15)).certificate
    assert later == first


def test_a_certificate_is_signed_anew_over_the_same_request_when_a_third_of_its_life_is_left() -> None:
    row = link(request=their_request())
    first = outcome(row).certificate
    renewed = outcome(row, before=first, now=NOW + timedelta(days=21)).certificate
    old, new = (x509.load_pem_x509_certificate(each.encode()) for each in (first, renewed))
    assert new.public_key() == old.public_key()
    assert new.not_valid_after_utc > old.not_valid_after_utc


def test_a_certificate_of_an_earlier_authority_is_signed_anew() -> None:
    row = link(request=their_request())
    first = outcome(row).certificate
    other = certificates.authority("c1 anew")
    again = plan.outcome(OWN, row, None, Kept(key=KEY), other, before=first, days=30, now=NOW).certificate
    x509.load_pem_x509_certificate(again.encode()).verify_directly_issued_by(
        x509.load_pem_x509_certificate(other.certificate)
    )


def test_of_certificates_for_our_key_the_one_that_lasts_longest_is_used() -> None:
    kept = outcome(link(certificate=signed_for_us(30))).kept
    longer = signed_for_us(60)
    assert plan.renewed(OWN, kept, certificate=longer, authorities=b"", now=NOW).certificate == longer.encode()
    assert plan.renewed(OWN, kept, certificate=signed_for_us(10), authorities=b"", now=NOW) == kept
    kept = msgspec.structs.replace(kept, certificate=longer.encode())
    assert outcome(link(certificate=signed_for_us(30)), kept=kept).files["c2.crt"] == longer.encode()


def test_authorities_that_a_peer_published_are_trusted_until_the_administrator_writes_others() -> None:
    kept = outcome(link(certificate=signed_for_us())).kept
    newer = certificates.authority("c2 anew").certificate
    kept = plan.renewed(OWN, kept, certificate="", authorities=THEIRS.certificate + newer, now=NOW)
    found = outcome(link(certificate=signed_for_us()), kept=kept)
    assert found.files["c2.ca.crt"] == THEIRS.certificate + newer
    other = certificates.authority("c2 of a restore")
    row = link(certificate=signed_for_us(ca=other), ca_bundle=other.certificate.decode())
    assert outcome(row, kept=kept).files["c2.ca.crt"] == other.certificate


@pytest.mark.parametrize("wrong", [{"ca": OURS}, {"user": "remote-c9"}])
def test_a_wrong_certificate_for_our_key_does_not_outlast_its_correction(wrong: dict[str, Any]) -> None:
    long = signed_for_us(3000, **wrong)
    before = outcome(link(request=their_request(), certificate=long))
    assert before.refusal is not None
    assert (before.refusal.reason, before.files, before.kept.certificate) == ("InvalidCertificate", {}, b"")
    adopted = msgspec.structs.replace(before.kept, certificate=long.encode())
    right = signed_for_us(30)
    assert outcome(link(certificate=right), kept=adopted).files["c2.crt"] == right.encode()
    kept = outcome(link(certificate=right)).kept
    assert plan.renewed(OWN, kept, certificate=long, authorities=b"", now=NOW) == kept


def test_a_certificate_of_a_new_authority_is_taken_together_with_that_authority() -> None:
    kept, newer = outcome(link(certificate=signed_for_us())).kept, certificates.authority("c2 anew")
    certificate, bundle = signed_for_us(60, ca=newer), THEIRS.certificate + newer.certificate
    assert plan.renewed(OWN, kept, certificate=certificate, authorities=b"", now=NOW) == kept
    renewed = plan.renewed(OWN, kept, certificate=certificate, authorities=bundle, now=NOW)
    assert (renewed.certificate, renewed.authorities) == (certificate.encode(), bundle)
    assert outcome(link(certificate=signed_for_us()), kept=renewed).files["c2.crt"] == certificate.encode()


def test_a_certificate_that_was_signed_later_is_used_though_it_ends_earlier() -> None:
    kept, newer = outcome(link(certificate=signed_for_us(90))).kept, certificates.authority("c2 anew")
    bundle = newer.certificate + THEIRS.certificate
    public = requests.requested_key(requests.request(KEY, "remote-c1"))
    short = certificates.sign(newer, public, "remote-c1", days=30, now=NOW + timedelta(days=1)).decode()
    renewed = plan.renewed(OWN, kept, certificate=short, authorities=bundle, now=NOW)
    assert renewed.certificate == short.encode()


def test_a_peer_has_its_certificate_while_ours_is_still_the_one_of_an_earlier_key() -> None:
    found = outcome(link(request=their_request(), certificate=signed_for_us()), kept=Kept(key=certificates.new_key()))
    assert found.refusal is not None
    assert (found.refusal.reason, found.files) == ("InvalidCertificate", {})
    assert found.certificate, "else two clusters that lost their keys would wait for each other for ever"


# A key that cannot be read

BROKEN = [
    b"",
    b"x",
    KEY[:100],
    rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ),
    certificates.key_pem(ec.generate_private_key(ec.SECP521R1())),
]


@pytest.mark.parametrize("key", BROKEN, ids=range(len(BROKEN)))
def test_an_unreadable_key_costs_what_it_opens_and_its_condition_names_link_and_remedy(key: bytes) -> None:
    displayed = LinkStatus(request=requests.request(KEY, "remote-c1"))
    row = link(request=their_request(), certificate=signed_for_us(), status=displayed)
    damaged = Kept(key=key, certificate=signed_for_us().encode())
    found = outcome(row, kept=damaged)
    assert (found.refusal, found.files, found.kept, found.request) == (None, {}, damaged, displayed.request)
    assert found.certificate, "the peer may read us as before"
    assert found.fault is not None
    assert found.fault.reason == "UnreadableKey"
    for part in ("c2.key", "Secret isthmus-links", "isthmus connect --accept-new-keys"):
        assert part in str(found.fault)


@pytest.mark.parametrize("key", BROKEN, ids=range(len(BROKEN)))
def test_a_key_is_made_anew_only_where_nobody_has_seen_a_request_by_the_old_one(key: bytes) -> None:
    damaged, displayed = Kept(key=key), link(status=LinkStatus(request=requests.request(KEY, "remote-c1")))
    assert plan.usable(displayed, damaged, copy=b"") == damaged
    assert plan.usable(displayed, damaged, copy=certificates.new_key()) == damaged, "a copy of another key is none"
    assert plan.usable(displayed, damaged, copy=KEY).key == KEY
    made = plan.usable(link(), damaged, copy=b"").key
    assert outcome(link(), kept=Kept(key=made)).request
    assert plan.usable(displayed, Kept(key=KEY), copy=b"") == Kept(key=KEY)


def test_kept_authorities_that_are_none_are_replaced_by_those_of_the_link() -> None:
    kept = outcome(link(certificate=signed_for_us())).kept
    damaged = msgspec.structs.replace(kept, authorities=b"\xff")
    assert outcome(link(certificate=signed_for_us()), kept=damaged).files["c2.ca.crt"] == THEIRS.certificate


# Which links count


def test_an_id_belongs_to_the_link_that_has_it_and_of_new_links_to_the_older_one() -> None:
    assert refused(link("c2", 2), link("c3", 2, created="2026-02-01T00:00:00Z", pod_ranges=())) == {"c3": "IdTaken"}
    younger = link("c3", 2, created="2026-02-01T00:00:00Z", pod_ranges=(), settled=True)
    assert refused(link("c2", 2), younger) == {"c2": "IdTaken"}


def test_an_edit_of_one_link_takes_nothing_from_another() -> None:
    c3 = link("c3", 3, settled=True)
    edited = link("c2", 2, pod_ranges=("10.3.0.0/16",), settled=False)
    assert refused(edited, c3) == {"c2": "RangesOverlap"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"number": 1}, "IdTaken"),
        ({"number": 300}, "IdTaken"),
        ({"name": "c1"}, "NameTaken"),
        ({"name": "c4", "number": 9}, "NameTaken"),
        ({"number": 4}, "IdTaken"),
        ({"pod_ranges": ("10.0.0.0/8",)}, "RangesOverlap"),
        ({"pod_ranges": ("10.96.7.0/24",)}, "RangesOverlap"),
        ({"pod_ranges": ("10.4.1.0/24",)}, "RangesOverlap"),
        ({"endpoints": ("https://127.0.0.1:2379",)}, "InvalidEndpoint"),
        ({"endpoints": ("https://localhost:2379",)}, "InvalidEndpoint"),
        ({"endpoints": ("https://[::1]:2379",)}, "InvalidEndpoint"),
        ({"endpoints": ("https://169.254.169.254:443",)}, "InvalidEndpoint"),
        ({"endpoints": ("https://10.96.0.1:443",)}, "InvalidEndpoint"),
        ({"endpoints": ("https://192.0.2.2:2379", "https://10.1.2.3:443")}, "InvalidEndpoint"),
        ({"invalid": "spec.id: what is that"}, "Invalid"),
    ],
)
def test_a_link_that_cannot_count_is_refused_with_a_reason(fields: dict[str, Any], reason: str) -> None:
    row = link(fields.pop("name", "c2"), fields.pop("number", 2), **fields)
    manual = {ClusterName("c4"): Manual(id=4, pod_ranges=("10.4.0.0/16",))}
    assert refused(row, manual=manual) == {row.name: reason}


def test_clusters_of_one_machine_may_have_their_etcds_on_loopback() -> None:
    own = msgspec.structs.replace(OWN, loopback=True)
    assert refused(link(endpoints=("https://127.0.0.1:2379",)), own=own) == {}


def test_a_refused_link_has_no_file_and_no_certificate() -> None:
    row = link(number=1, request=their_request(), certificate=signed_for_us())
    found = outcome(row)
    assert (found.files, found.certificate) == ({}, "")
    assert found.request


def test_files_by_hand_are_told_from_those_of_links() -> None:
    files = outcome(link(request=their_request(), certificate=signed_for_us())).files
    by_hand = {"c4": b"endpoints: [https://192.0.2.4:2379]\ncluster-id: 4\n", "c4.ca.crt": b"", "c5": b"endpoints: {"}
    assert plan.manual_peers(files | by_hand) == {"c4": Manual(id=4), "c5": Manual(id=0)}
    assert plan.linked(files | by_hand) == {"c2"}


def test_an_island_may_have_pods_in_the_ranges_of_this_cluster_and_of_another_link() -> None:
    island = link("c2", 2, pod_ranges=("10.1.0.0/16", "10.3.0.0/16"), by_gateways=True)
    assert refused(island, link("c3", 3)) == {}
    assert refused(link("c3", 3, settled=True), island) == {}
    flat = link("c2", 2, pod_ranges=("10.1.0.0/16",))
    assert refused(flat) == {"c2": "RangesOverlap"}


def test_a_peer_may_be_reached_on_the_network_of_our_nodes_and_not_at_our_pods_and_services() -> None:
    own = Own(
        name=OWN.name, id=1, pod_ranges=OWN.pod_ranges, service_ranges=("10.96.0.0/16",), node_ranges=("192.0.2.0/24",)
    )
    assert refused(link(), own=own) == {}
    assert refused(link(endpoints=("https://192.0.2.2:15443",), by_gateways=True), own=own) == {}
    assert refused(link(pod_ranges=("192.0.2.0/28",)), own=own) == {"c2": "RangesOverlap"}


# What a peer, or whoever may edit its links, can ask for


def test_whatever_a_request_asks_for_it_becomes_a_client_of_the_links_name_and_nothing_else() -> None:
    hostile = their_request(
        None,
        "root",
        x509.BasicConstraints(ca=True, path_length=None),
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]),
        x509.SubjectAlternativeName([x509.DNSName("etcd.c1.clusterset.local"), x509.DNSName("isthmus-etcd")]),
    )
    signed = x509.load_pem_x509_certificate(outcome(link(request=hostile)).certificate.encode())
    assert signed.subject.rfc4514_string() == "CN=remote-c2"
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert [*signed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value] == [certificates.CLIENT]
    assert not signed.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    with pytest.raises(x509.ExtensionNotFound):
        signed.extensions.get_extension_for_class(x509.SubjectAlternativeName)


@pytest.mark.parametrize(
    "request_text",
    [
        "",
        "x",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
        "\N{SNOWMAN}" * 4096,
        their_request(rsa.generate_private_key(65537, 1024)),
        their_request(rsa.generate_private_key(65537, 2048)),
        their_request(ec.generate_private_key(ec.SECP192R1())),
        their_request(ec.generate_private_key(ec.SECP521R1())),
        their_request(ed25519.Ed25519PrivateKey.generate()),
        THEIRS.certificate.decode(),
    ],
)
def test_only_a_request_with_a_key_of_known_kind_is_signed(request_text: str) -> None:
    with pytest.raises(LinkError) as error:
        requests.requested_key(request_text)
    assert error.value.reason == "InvalidRequest"


def test_a_request_for_anothers_key_is_not_signed() -> None:
    text = their_request()
    der = bytearray(x509.load_pem_x509_csr(text.encode()).public_bytes(serialization.Encoding.DER))
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    encoded = (serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
    ours = x509.load_pem_x509_csr(text.encode()).public_key()
    assert isinstance(ours, ec.EllipticCurvePublicKey)
    forged = bytes(der).replace(ours.public_bytes(*encoded), other.public_bytes(*encoded))
    pem = x509.load_der_x509_csr(forged).public_bytes(serialization.Encoding.PEM).decode()
    with pytest.raises(LinkError, match="not signed by its own key"):
        requests.requested_key(pem)


def test_a_certificate_for_another_key_than_the_links_is_refused() -> None:
    theirs = requests.sign(THEIRS, their_request(), "remote-c1", days=30, now=NOW)
    found = outcome(link(certificate=theirs))
    assert found.refusal is not None
    assert (found.refusal.reason, found.files) == ("InvalidCertificate", {})


@pytest.mark.parametrize(
    "bundle",
    ["x", KEY.decode(), certificates.issue(THEIRS, "c2").certificate.decode(), THEIRS.certificate.decode() * 9],
)
def test_a_bundle_that_is_no_authority_is_refused(bundle: str) -> None:
    found = outcome(link(ca_bundle=bundle, certificate=signed_for_us()))
    assert found.refusal is not None
    assert found.refusal.reason == "InvalidCertificate"


def _twice() -> str:
    """An authority with one extension twice, which no library makes and each reads."""
    parsed = x509.load_pem_x509_certificate(THEIRS.certificate)
    der = parsed.public_bytes(serialization.Encoding.DER)
    subject_key, constraints = bytes.fromhex("0603551d0e"), bytes.fromhex("0603551d13")
    assert subject_key in der
    lines = textwrap.wrap(base64.b64encode(der.replace(subject_key, constraints)).decode(), 64)
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""])


def _large() -> tuple[str, str]:
    """An authority with as much in it as an etcd takes in a value, and a certificate of it for our key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "c2")])
    filler = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.3.6.1.4.1.99999.1"), b"x" * 1_000_000)
    ours = serialization.load_pem_private_key(KEY, password=None).public_key()
    user = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "remote-c1")])
    made = []
    for subject, public, ca in ((name, key.public_key(), True), (user, ours, False)):
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(name).serial_number(1)
        builder = builder.not_valid_before(NOW).not_valid_after(NOW + timedelta(days=900))
        builder = builder.public_key(public).add_extension(filler, critical=False)  # type: ignore[arg-type]
        signed = builder.add_extension(x509.BasicConstraints(ca, None), critical=True).sign(key, hashes.SHA256())
        made.append(signed.public_bytes(serialization.Encoding.PEM).decode())
    return made[0], made[1]


TWICE, (LARGE, LARGE_CERTIFICATE) = _twice(), _large()
WORST: list[dict[str, Any]] = [
    {"ca_bundle": TWICE},
    {"ca_bundle": LARGE},
    {"ca_bundle": "\N{SNOWMAN}" * 16_384},
    {"ca_bundle": "-----BEGIN CERTIFICATE-----\n" * 500},
    {"certificate": TWICE},
    {"certificate": LARGE_CERTIFICATE},
    {"certificate": "\N{SNOWMAN}" * 8_192},
    {"request": "-----BEGIN CERTIFICATE REQUEST-----\n" * 100},
    {"request": TWICE},
    {"endpoints": (f"https://{'a' * 63}.{'b' * 63}.example:65535",) * 16, "certificate": "x"},
    {"namespaces": ("*" * 63,) * 64, "certificate": "x"},
    {"pod_ranges": ("::/0", "0.0.0.0/0")},
    {"pod_ranges": tuple(f"10.200.{number}.0/24" for number in range(64)), "ca_bundle": "x"},
    {"id": 511},
    {"name": "c" * 32, "ca_bundle": "x"},
    {"created": "\N{SNOWMAN}", "ca_bundle": ""},
    {"status": LinkStatus(request="x" * 100_000, certificate=TWICE), "ca_bundle": "x"},
]


@pytest.mark.parametrize("fields", WORST, ids=range(len(WORST)))
def test_a_link_with_the_worst_values_costs_no_other_link(fields: dict[str, Any]) -> None:
    bad = msgspec.structs.replace(link("c9", 9, certificate=signed_for_us()), **fields)
    good = link(request=their_request(), certificate=signed_for_us())
    refusals = plan.refusals(OWN, [bad, good], {})
    found = {
        row.name: plan.outcome(OWN, row, refusals.get(row.name), Kept(key=KEY), OURS, before="", days=30, now=NOW)
        for row in (bad, good)
    }
    assert (found[bad.name].refusal is not None, found[bad.name].files) == (True, {})
    assert found[good.name].refusal is None
    assert found[good.name].files.keys() == {"c2", "c2.crt", "c2.key", "c2.ca.crt"}


def test_what_a_peer_publishes_in_the_worst_form_costs_no_link() -> None:
    """All links share two Secrets, which have 1 MiB at most."""
    kept = outcome(link(certificate=signed_for_us())).kept
    for authorities in (TWICE, LARGE, THEIRS.certificate.decode() + TWICE):
        for certificate in (TWICE, LARGE_CERTIFICATE, "x" * 1_000_000):
            renewed = plan.renewed(OWN, kept, certificate=certificate, authorities=authorities.encode(), now=NOW)
            assert renewed == kept


def test_a_bundle_is_rewritten_as_nothing_but_certificates() -> None:
    bundle = f"# endpoints: [https://evil]\n{THEIRS.certificate.decode()}\n{KEY.decode()}"
    assert outcome(link(ca_bundle=bundle, certificate=signed_for_us())).files["c2.ca.crt"] == THEIRS.certificate


def test_what_a_peers_etcd_publishes_and_nobody_can_use_changes_nothing() -> None:
    kept = outcome(link(certificate=signed_for_us())).kept
    assert plan.renewed(OWN, kept, certificate="\N{SNOWMAN}", authorities=b"\xff" * 100, now=NOW) == kept
    other = requests.sign(THEIRS, their_request(), "remote-c1", days=3000, now=NOW)
    assert plan.renewed(OWN, kept, certificate=other, authorities=KEY, now=NOW) == kept


def test_a_kept_certificate_that_is_none_counts_as_missing() -> None:
    good = signed_for_us()
    damaged = Kept(key=KEY, certificate=b"\xff\xfe", authorities=THEIRS.certificate)
    kept = plan.renewed(OWN, damaged, certificate=good, authorities=b"", now=NOW)
    assert kept.certificate.decode() == good


# Objects as rows


def converted(name: str = "c2", **spec: Any) -> Link:
    given: dict[str, Any] = {"id": 2, "endpoints": ["https://192.0.2.2:2379"], "ca_bundle": "x", **spec}
    return source.link(ClusterLink(metadata=Meta(name=name, generation=3), spec=ClusterLinkSpec(**given)))


def test_gateways_are_https_endpoints() -> None:
    row = converted(endpoints=None, gateways=["192.0.2.7:15443", "[fd00::7]:15443"])
    assert row.endpoints == ("https://192.0.2.7:15443", "https://[fd00::7]:15443")


@pytest.mark.parametrize(
    "spec",
    [
        {"name": "C2"},
        {"name": "default"},
        {"name": "c" * 33},
        {"id": 0},
        {"id": 512},
        {"endpoints": []},
        {"gateways": ["192.0.2.7:15443"]},
        {"endpoints": ["http://192.0.2.2:2379"]},
        {"endpoints": ["https://192.0.2.2:2379/x"]},
        {"endpoints": ["https://user@192.0.2.2:2379"]},
        {"endpoints": ["https://192.0.2.2"]},
        {"endpoints": ["https://192.0.2.2:99999"]},
        {"endpoints": ["https://[::1:2379"]},
        {"endpoints": ["https://a\nb:2379"]},
        {"endpoints": [f"https://{'a' * 300}:2379"]},
        {"endpoints": ["https://192.0.2.2:2379"] * 17},
        {"ca_bundle": ""},
        {"ca_bundle": "x" * 16_385},
        {"namespaces": ["a"] * 65},
        {"namespaces": [""]},
        {"pod_ranges": ["10.0.0.1/8"]},
        {"pod_ranges": ["\N{ARABIC-INDIC DIGIT THREE}/8"]},
        {"request": "x" * 4_097},
        {"certificate": "x" * 8_193},
    ],
)
def test_an_object_beyond_its_bounds_is_invalid_with_the_field(spec: dict[str, Any]) -> None:
    row = converted(spec.pop("name", "c2"), **spec)
    assert row.invalid
    assert (row.endpoints, row.ca_bundle, row.request) == ((), "", "")


def test_the_definition_has_the_fields_and_bounds_of_the_conversion() -> None:
    [version] = yaml.safe_load((ROOT / "deploy" / "crds" / "clusterlinks.yaml").read_text())["spec"]["versions"]
    spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert set(spec) == {field.encode_name for field in msgspec.structs.fields(ClusterLinkSpec)}
    assert (spec["id"]["minimum"], spec["id"]["maximum"]) == (1, source.MAX_ID)
    assert {spec[each]["maxItems"] for each in ("endpoints", "gateways")} == {source.MAX_ENDPOINTS}
    assert {spec[each]["maxItems"] for each in ("namespaces", "podRanges")} == {source.MAX_ITEMS}
    lengths = [spec[each]["maxLength"] for each in ("caBundle", "request", "certificate")]
    assert lengths == [source.MAX_BUNDLE, source.MAX_REQUEST, source.MAX_CERTIFICATE]
    assert spec["endpoints"]["items"]["maxLength"] == source.MAX_ENDPOINT
    assert spec["namespaces"]["items"]["maxLength"] == source.MAX_NAMESPACE
    assert spec["podRanges"]["items"]["maxLength"] == source.MAX_RANGE


def test_a_link_is_settled_while_its_status_accepts_this_generation() -> None:
    body = {
        "metadata": {"name": "c2", "generation": 3},
        "spec": {"id": 2, "endpoints": ["https://192.0.2.2:2379"], "caBundle": "x"},
        "status": {"conditions": [{"type": "Accepted", "status": "True", "observedGeneration": 3}]},
    }
    assert source.link(msgspec.convert(body, ClusterLink)).settled
    body["metadata"] = {"name": "c2", "generation": 4}
    assert not source.link(msgspec.convert(body, ClusterLink)).settled


# The files of agents behind a mirror

LOCAL = certificates.issue(OURS, "local")


def agents_files(published: dict[str, bytes], before: dict[str, bytes] | None = None) -> dict[str, bytes]:
    access = LocalAccess(
        endpoints=("https://10.96.0.7:2379",), authorities=OURS.certificate, pair=LOCAL, password="secret"
    )
    return copies(OWN.name, published, access, before or {})


def test_agents_behind_a_mirror_have_each_peers_limits_and_authorities_and_the_own_etcd() -> None:
    by_link = outcome(link(request=their_request(), certificate=signed_for_us(), namespaces=("demo",))).files
    by_hand = {"c3": b"endpoints: [https://192.0.2.3:2379]\ncluster-id: 3\n", "c3.ca.crt": b"three"}
    files = agents_files(by_link | by_hand | {"c1": b"endpoints: [https://192.0.2.1:2379]\n"})
    assert sorted(files) == ["c2", "c2.ca.crt", "c3", "c3.ca.crt", "etcd.crt", "local.crt", "local.key"]
    peer = peer_files.fields_of(files["c2"], name=ClusterName("c2"), path=Path("/peers/c2"))
    assert (peer.id, peer.pod_ranges, peer.namespaces) == (2, ("10.2.0.0/16",), ("demo",))
    assert (peer.endpoints, peer.username, peer.server_name) == (("https://10.96.0.7:2379",), "local", "")
    assert (peer.ca_file, peer.cert_file, peer.key_file) == tuple(
        f"/peers/{each}" for each in ("etcd.crt", "local.crt", "local.key")
    )
    assert (files["c2.ca.crt"], files["c3.ca.crt"]) == (THEIRS.certificate, b"three")
    assert KEY not in files.values(), "the key of the link stays with those that read the peer itself"


def test_a_peers_file_that_is_unusable_leaves_agents_the_copy_that_they_have() -> None:
    good = {"c3": b"endpoints: [https://192.0.2.3:2379]\n", "c3.ca.crt": b"three"}
    before = agents_files(good)
    assert agents_files({**good, "c3": b"endpoints: 1\n"}, before) == before
    assert "c3" not in agents_files({**good, "c3": b"endpoints: 1\n"})
    assert agents_files({}, before).keys() == {"etcd.crt", "local.crt", "local.key"}
