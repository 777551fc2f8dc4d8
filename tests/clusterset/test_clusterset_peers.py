"""The configuration directory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from isthmus.clusterset.certificates import SKEW, Expiry, authority, issue
from isthmus.clusterset.peers.peer_files import Directory, Peer
from isthmus.model.names import ClusterName

C2 = ClusterName("c2")
NOW = datetime(2026, 11, 22, 12, 0, 0, tzinfo=UTC)


def read(folder: Path) -> dict[ClusterName, Peer]:
    return dict(Directory(str(folder), own=ClusterName("c1")).read())


def test_ciliums_format_is_read(tmp_path: Path) -> None:
    for name in ("ca.crt", "tls.crt", "tls.key"):
        (tmp_path / f".{name}").write_text(name)
    (tmp_path / "c2").write_text(
        f"endpoints:\n- https://c2.mesh.cilium.io:2379\ntrusted-ca-file: '{tmp_path}/.ca.crt'\n"
        f"key-file: '{tmp_path}/.tls.key'\ncert-file: '{tmp_path}/.tls.crt'\n"
    )
    peer = read(tmp_path)[C2]
    assert peer.endpoints == ("https://c2.mesh.cilium.io:2379",)
    assert peer.ca_file == f"{tmp_path}/.ca.crt"
    assert not peer.problem


def test_no_directory_means_no_peers(tmp_path: Path) -> None:
    assert read(tmp_path / "missing") == {}
    assert Directory("", own=C2).read() == {}


def test_a_renewed_certificate_changes_the_peer(tmp_path: Path) -> None:
    (tmp_path / ".ca").write_text("one")
    (tmp_path / "c2").write_text(f"endpoints: ['https://x:1']\ntrusted-ca-file: {tmp_path}/.ca\n")
    directory = Directory(str(tmp_path), own=ClusterName("c1"))
    before = directory.read()[C2]
    assert directory.read()[C2] is directory.read()[C2]
    (tmp_path / ".ca").write_text("other")
    after = directory.read()[C2]
    assert (before.digest != after.digest, before.endpoints) == (True, after.endpoints)


def test_a_peer_has_what_ends_first_of_its_certificates(tmp_path: Path) -> None:
    """Of a chain the leaf, which is the first in its file; of a bundle of authorities the last to end."""
    authorities = [authority("ca", days=days, now=NOW) for days in (5, 90)]
    leaf, other = (issue(authorities[1], "c1", days=days, now=NOW) for days in (60, 7))
    (tmp_path / ".ca").write_bytes(b"".join(each.certificate for each in authorities))
    (tmp_path / ".crt").write_bytes(leaf.certificate + other.certificate)
    (tmp_path / ".key").write_bytes(leaf.key)
    files = f"trusted-ca-file: {tmp_path}/.ca\ncert-file: {tmp_path}/.crt\nkey-file: {tmp_path}/.key\n"
    directory = Directory(str(tmp_path), own=ClusterName("c1"))
    (tmp_path / "c2").write_text(f"endpoints: ['https://x:1']\n{files}")
    assert directory.read()[C2].expiry == Expiry(f"{tmp_path}/.crt", NOW + timedelta(days=60) - SKEW)
    (tmp_path / ".crt").write_bytes(issue(authorities[1], "c1", days=365, now=NOW).certificate)
    assert directory.read()[C2].expiry == Expiry(f"{tmp_path}/.ca", NOW + timedelta(days=90) - SKEW)


def test_a_peer_without_certificates_or_with_unreadable_ones_has_no_end_of_any(tmp_path: Path) -> None:
    (tmp_path / ".ca").write_text("no certificate")
    (tmp_path / "c2").write_text(f"endpoints: ['https://x:1']\ntrusted-ca-file: {tmp_path}/.ca\n")
    (tmp_path / "c3").write_text("endpoints: ['http://x:1']\n")
    assert [peer.expiry for peer in read(tmp_path).values()] == [None, None]


def test_a_secrets_swap_is_one_change(tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        (tmp_path / f"..{version}").mkdir()
        (tmp_path / f"..{version}" / "c2").write_text(f"endpoints: ['http://{version}:1']\n")
    (tmp_path / "..data").symlink_to("..v1")
    (tmp_path / "c2").symlink_to("..data/c2")
    directory = Directory(str(tmp_path), own=ClusterName("c1"))
    assert directory.read()[C2].endpoints == ("http://v1:1",)
    (tmp_path / "..new").symlink_to("..v2")
    (tmp_path / "..new").rename(tmp_path / "..data")
    assert directory.read()[C2].endpoints == ("http://v2:1",)


def test_a_file_that_breaks_leaves_what_worked(tmp_path: Path) -> None:
    (tmp_path / "c2").write_text("endpoints: ['http://good:1']\n")
    directory = Directory(str(tmp_path), own=ClusterName("c1"))
    good = directory.read()[C2]
    (tmp_path / "c2").write_text("endpoints: [")
    assert directory.read()[C2] == good
    (tmp_path / "c2").write_text("endpoints: ['http://better:1']\n")
    assert directory.read()[C2].endpoints == ("http://better:1",)


def test_a_certificate_that_appears_later_mends_the_peer(tmp_path: Path) -> None:
    (tmp_path / "c2").write_text(f"endpoints: ['https://x:1']\ntrusted-ca-file: {tmp_path}/.ca\n")
    directory = Directory(str(tmp_path), own=ClusterName("c1"))
    assert f"{tmp_path}/.ca: cannot be read" in directory.read()[C2].problem
    (tmp_path / ".ca").write_text("one")
    assert not directory.read()[C2].problem


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("endpoints:\n", "want a list"),
        ("endpoints: []\n", "want a list"),
        ("endpoints: [1]\n", "want a list"),
        ("endpoints: ['http://x']\ncert-file: [1]\n", "cert-file: want text"),
        ("endpoints: ['http://x']\ncert-file: \"a\\0b\"\n", "cert-file: want text, got control characters"),
        ("endpoints: ['http://x']\npassword: 12345\n", "password: want text, got int: put it in quotes"),
        ("- endpoints:\n", "want a mapping"),
        ("endpoints: !!python/object:os.system x\n", "no YAML"),
        ("endpoints: " + "[" * 300, "no YAML"),
    ],
)
def test_an_unusable_file_is_refused_with_the_reason(tmp_path: Path, content: str, why: str) -> None:
    (tmp_path / "c2").write_text(content)
    problem = read(tmp_path)[C2].problem
    assert why in problem
    assert str(tmp_path / "c2") in problem
    assert "\n" not in problem


def test_folders_and_other_files_are_no_peers(tmp_path: Path) -> None:
    (tmp_path / "c3").mkdir()
    (tmp_path / "tls.key").write_text("secret")
    (tmp_path / "c1").write_text("endpoints: ['http://self:1']")
    assert read(tmp_path) == {}


def test_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    (tmp_path / "c2.ca.crt").write_text("authority")
    (tmp_path / "c2").write_text("endpoints: ['https://x:1']\ntrusted-ca-file: c2.ca.crt\n")

    assert Directory(str(tmp_path), own=ClusterName("c1")).read()[ClusterName("c2")].ca_file == f"{tmp_path}/c2.ca.crt"
