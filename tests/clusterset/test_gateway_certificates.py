"""Certificates by which nodes call other islands and gateways answer: made, renewed and used as the etcd's are."""

from __future__ import annotations

from pathlib import Path

from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from isthmus.clusterset import Folder
from isthmus.gateway.naming import gateway_identity, node_identity
from isthmus.model.names import ClusterName

DOMAIN = "clusterset.local"
C2 = ClusterName("c2")


def certificate(folder: Folder, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate(folder.read(f"{name}.crt"))


def uris(found: x509.Certificate) -> list[str]:
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return list(names.get_values_for_type(x509.UniformResourceIdentifier))


def uses(found: x509.Certificate) -> list[x509.ObjectIdentifier]:
    return list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)


def test_a_node_is_a_client_and_a_gateway_a_server_each_with_its_identity(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "keys")
    folder.ensure(C2, ["127.0.0.1"], days=30, domain=DOMAIN)
    node, gateway = certificate(folder, "node"), certificate(folder, "gateway")
    assert (uris(node), uses(node)) == ([node_identity(C2, DOMAIN)], [ExtendedKeyUsageOID.CLIENT_AUTH])
    assert (uris(gateway), uses(gateway)) == ([gateway_identity(C2, DOMAIN)], [ExtendedKeyUsageOID.SERVER_AUTH])
    assert (folder.path / "gateway.key").stat().st_mode & 0o777 == 0o600


def test_they_are_made_anew_for_another_domain_only_and_by_another_authority(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "keys")
    folder.ensure(C2, ["127.0.0.1"], days=30, domain=DOMAIN)
    assert folder.ensure(C2, ["127.0.0.1"], days=30, domain=DOMAIN) == []
    assert folder.ensure(C2, ["127.0.0.1"], days=30, domain="prod.example") == ["server", "node", "gateway"]
    folder.begin_rotation(C2)
    folder.switch()
    assert {"node", "gateway"} <= set(folder.ensure(C2, ["127.0.0.1"], days=30, domain="prod.example"))


def test_without_a_domain_there_are_none(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "keys")
    assert not {"node", "gateway"} & set(folder.ensure(C2, ["127.0.0.1"], days=30))
