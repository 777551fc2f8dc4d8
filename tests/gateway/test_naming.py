"""Names between nodes and gateways."""

from __future__ import annotations

import pytest

from isthmus.gateway import naming
from isthmus.model.names import ClusterName, ServiceName
from isthmus.proxy.ports import Range, assign_ports

C2 = ClusterName("c2")


@pytest.mark.parametrize(
    ("service", "port", "domain", "want"),
    [
        ("default/my-svc", 80, "clusterset.local", "80.derived-b8s174v3sn.tcp.clusterset.local"),
        ("default/my-svc", 8080, "clusterset.local", "8080.derived-b8s174v3sn.tcp.clusterset.local"),
        ("other/my-svc", 80, "clusterset.local", "80.derived-3c07bkj6vh.tcp.clusterset.local"),
        ("default/my-svc", 80, "prod.example", "80.derived-b8s174v3sn.tcp.prod.example"),
    ],
)
def test_the_sni_of_a_port_names_the_import_by_its_hash(service: str, port: int, domain: str, want: str) -> None:
    assert naming.service_sni(ServiceName(service), port, domain) == want
    assert "my-svc" not in want


def test_the_longest_names_fit_a_label_and_a_name() -> None:
    sni = naming.service_sni(ServiceName(f"{'n' * 63}/{'s' * 63}"), 65535, "clusterset.local")
    assert max(map(len, sni.split("."))) <= 63
    assert len(sni) <= 253


def test_each_cluster_is_a_trust_domain_of_its_own() -> None:
    assert naming.node_identity(C2, "clusterset.local") == "spiffe://c2.clusterset.local/node"
    assert naming.gateway_identity(C2, "clusterset.local") == "spiffe://c2.clusterset.local/gateway"
    assert naming.health_sni(C2, "clusterset.local") == "health.c2.clusterset.local"
    assert naming.etcd_sni(C2, "clusterset.local") == "etcd.c2.clusterset.local"


def test_no_other_sni_ends_as_that_of_a_service_does() -> None:
    suffix = naming.services_suffix("clusterset.local")
    for cluster in ("tcp", "health", "c2"):
        for other in (naming.health_sni, naming.etcd_sni):
            if other(ClusterName(cluster), "clusterset.local").endswith(suffix):
                assert cluster == "tcp"


def test_listeners_keep_their_ports_and_none_has_another_ones() -> None:
    keys = [(ServiceName(f"demo/s{n}"), C2, 80) for n in range(300)]
    before = assign_ports(keys, Range(19_100, 400))
    assert len(set(before.values())) == 300
    assert all(19_100 <= port < 19_500 for port in before.values())
    after = assign_ports(keys[1:], Range(19_100, 400))
    assert sum(before[key] != after[key] for key in after) < 10
    assert len(assign_ports(keys, Range(19_100, 100))) == 100
