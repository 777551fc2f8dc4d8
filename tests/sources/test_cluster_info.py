"""What a cluster publishes of itself for links, and what a command makes of what others published."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from isthmus.bounds import OutOfBounds
from isthmus.config import ClusterSection, Config, EtcdSection
from isthmus.kube.objects.core import (
    ConfigMap,
    LoadBalancerIngress,
    LoadBalancerStatus,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from isthmus.kube.objects.links import ClusterLinkSpec
from isthmus.kube.objects.meta import ManagedMeta, Meta
from isthmus.model.names import ClusterName
from isthmus.processes import links as process
from isthmus.sources import links
from isthmus.sources.links import Info


def info(name: str = "c2", number: int = 2, **fields: Any) -> Info:
    given = {"pod_ranges": (f"10.{number}.0.0/16",), "endpoints": (f"https://192.0.2.{number}:2379",), **fields}
    return Info(name=ClusterName(name), id=number, domain="clusterset.local", ca_bundle="CA", **given)


def published(**changed: str) -> ConfigMap:
    return ConfigMap(metadata=Meta(name=links.INFO), data={**links.info_data(info()), **changed})


def test_what_a_cluster_publishes_is_read_as_it_was() -> None:
    assert links.read_info(published()) == info()


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "c2/status"},
        {"name": "../../../../api/v1/namespaces/kube-system/secrets/x"},
        {"name": "default"},
        {"name": ""},
        {"id": "0"},
        {"id": "9" * 5000},
        {"domain": "a\nb"},
        {"caBundle": ""},
        {"caBundle": "x" * 16_385},
        {"podRanges": "x"},
        {"podRanges": '["10.0.0.1/8"]'},
        {"podRanges": "[" * 2000},
        {"endpoints": '["http://192.0.2.2:2379"]'},
        {"endpoints": '["https://192.0.2.2:2379/x"]'},
        {"network": "a\nb"},
        {"gateways": '["192.0.2.2"]'},
        {"gateways": str(["192.0.2.2:1"] * 17).replace("'", '"')},
    ],
)
def test_a_cluster_that_publishes_what_no_link_can_have_is_refused(changed: dict[str, str]) -> None:
    """Its name becomes a path at another cluster's API server."""
    with pytest.raises(OutOfBounds):
        links.read_info(published(**changed))


def test_islands_may_have_the_same_ranges_and_clusters_of_one_network_may_not() -> None:
    first = info("c1", 1, network="one", gateways=("192.0.2.1:15443",))
    same: dict[str, Any] = {"pod_ranges": first.pod_ranges, "gateways": ("192.0.2.2:15443",)}
    assert links.conflict([first, info(network="two", **same)]) == ""
    assert "are in the same ranges" in links.conflict([first, info(network="one", **same)])
    assert "are in the same ranges" in links.conflict([first, info(network="two", **same | {"gateways": ()})])


@pytest.mark.parametrize(
    ("second", "reason"),
    [
        (info("c1", 3), "two clusters are called c1"),
        (info("c3", 1), "have the id 1"),
        (info("c3", 3, pod_ranges=("10.1.8.0/24",)), "pods of clusters c1 and c3 are in the same ranges"),
        (msgspec.structs.replace(info("c3", 3), domain="other.local"), "domain"),
    ],
)
def test_clusters_that_cannot_be_linked_are_refused_before_anything_is_written(second: Info, reason: str) -> None:
    assert links.conflict([info("c1", 1), info()]) == ""
    assert reason in links.conflict([info("c1", 1), second])


def test_a_cluster_without_gateways_and_load_balancer_can_be_reached_by_nobody() -> None:
    assert "--endpoint c2=https://HOST:PORT" in links.unreachable(info(endpoints=()))
    assert links.unreachable(info()) == links.unreachable(info(endpoints=(), gateways=("192.0.2.2:15443",))) == ""


def test_a_link_that_is_ready_keeps_what_it_began_with() -> None:
    before = ClusterLinkSpec(id=2, ca_bundle="OLD", certificate="OLD", request="R")
    spec = links.spec_of(info(), before=before, request="R", certificate="NEW", ready=True)
    assert (spec["caBundle"], spec["certificate"]) == ("OLD", "OLD")
    spec = links.spec_of(info(), before=before, request="R", certificate="NEW", ready=False)
    assert (spec["caBundle"], spec["certificate"]) == ("CA", "NEW")


def test_a_cluster_with_gateways_is_reached_through_them() -> None:
    spec = links.spec_of(
        info(gateways=("192.0.2.7:15443",)), before=ClusterLinkSpec(), request="", certificate="", ready=False
    )
    assert spec["gateways"] == ["192.0.2.7:15443"]
    assert "endpoints" not in spec


def service(*addresses: LoadBalancerIngress) -> Service:
    status = ServiceStatus(load_balancer=LoadBalancerStatus(ingress=list(addresses)))
    return Service(metadata=ManagedMeta(), spec=ServiceSpec(ports=[ServicePort(port=2379)]), status=status)


def test_a_peer_with_another_key_is_read_by_the_authority_it_has_now_though_its_link_is_displayed_as_ready() -> None:
    before = ClusterLinkSpec(id=2, ca_bundle="OLD", request="R", certificate="C")
    spec = links.spec_of(info(), before=before, request="ANOTHER", certificate="NEW", ready=True)
    assert (spec["caBundle"], spec["certificate"]) == ("CA", "NEW")
    for request in ("", "R"):
        spec = links.spec_of(info(), before=before, request=request, certificate="NEW", ready=True)
        assert (spec["caBundle"], spec["request"], spec["certificate"]) == ("OLD", "R", "C")


@pytest.mark.parametrize(
    ("configured", "balancer", "expected"),
    [
        ("https://isthmus-etcd.isthmus-system.svc:2379", None, []),
        ("https://isthmus-etcd.isthmus-system.svc:2379", service(), []),
        (
            "https://isthmus-etcd.isthmus-system.svc:2379",
            service(LoadBalancerIngress(ip="192.0.2.1"), LoadBalancerIngress(ip="fd00::1")),
            ["https://192.0.2.1:2379", "https://[fd00::1]:2379"],
        ),
        ("https://x.svc:1", service(LoadBalancerIngress(hostname="a.example")), ["https://a.example:2379"]),
        ("https://127.0.0.1:30001", None, ["https://127.0.0.1:30001"]),
        ("https://etcd.example:2379", None, ["https://etcd.example:2379"]),
    ],
)
def test_others_reach_the_etcd_at_its_load_balancer_or_where_it_is_not_internal(
    configured: str, balancer: Service | None, expected: list[str]
) -> None:
    config = Config(cluster=ClusterSection(name="c1", id=1), etcd=EtcdSection(endpoints=(configured,)))
    assert process.endpoints(config, balancer) == expected
