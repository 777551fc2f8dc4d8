"""The cluster's DNS: names of Services, and nothing else."""

from __future__ import annotations

from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import msgspec
import pytest

from isthmus.kube.objects.core import Service
from isthmus.kube.objects.discovery import EndpointSlice
from isthmus_lab.clusterdns.answers import answer
from isthmus_lab.clusterdns.zone import Zone, zone

DOMAIN = "cluster.local"


def service(name: str, **spec: Any) -> Service:
    return msgspec.convert({"metadata": {"name": name, "namespace": "demo"}, "spec": spec}, Service)


def endpoints(name: str, *addresses: tuple[str, str, bool]) -> EndpointSlice:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": "demo", "labels": {"kubernetes.io/service-name": name}},
            "endpoints": [
                {"addresses": [a], "hostname": h or None, "conditions": {"ready": r}} for a, h, r in addresses
            ],
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        },
        EndpointSlice,
    )


@pytest.fixture
def names() -> Zone:
    services = [
        service("echo", clusterIP="10.96.0.7", ports=[{"name": "http", "port": 80}]),
        service("db", clusterIP="None"),
        service("away", type="ExternalName", externalName="echo.demo.svc.cluster.local"),
        service("big", clusterIP="None"),
    ]
    many = [(f"10.1.2.{n}", "", True) for n in range(1, 120)]
    slices = [endpoints("db", ("10.1.1.2", "db-0", True), ("10.1.1.3", "", True), ("10.1.1.4", "db-2", False))]
    return zone(services, [*slices, endpoints("big", *many)], domain=DOMAIN)


def ask(names: Zone, name: str, kind: str = "A", *, udp: bool = True) -> dns.message.Message:
    wire = answer(dns.message.make_query(name, kind).to_wire(), names, domain=DOMAIN, udp=udp)
    assert wire is not None
    return dns.message.from_wire(wire)


def data(response: dns.message.Message) -> set[str]:
    return {item.to_text() for rrset in response.answer for item in rrset}


def test_a_service_has_its_address_whatever_the_case_of_letters(names: Zone) -> None:
    assert data(ask(names, "Echo.demo.SVC.cluster.local")) == {"10.96.0.7"}


def test_a_headless_service_has_its_ready_endpoints_and_each_by_hostname(names: Zone) -> None:
    assert data(ask(names, "db.demo.svc.cluster.local")) == {"10.1.1.2", "10.1.1.3"}
    assert data(ask(names, "db-0.db.demo.svc.cluster.local")) == {"10.1.1.2"}
    assert data(ask(names, "10-1-1-3.db.demo.svc.cluster.local")) == {"10.1.1.3"}


def test_ports_are_srv_records_with_the_addresses_added(names: Zone) -> None:
    response = ask(names, "_http._tcp.echo.demo.svc.cluster.local", "SRV")
    assert data(response) == {"0 100 80 echo.demo.svc.cluster.local."}
    assert [item.to_text() for rrset in response.additional for item in rrset] == ["10.96.0.7"]


def test_an_address_has_its_name(names: Zone) -> None:
    assert data(ask(names, "7.0.96.10.in-addr.arpa", "PTR")) == {"echo.demo.svc.cluster.local."}


def test_an_external_name_is_followed_within_the_cluster(names: Zone) -> None:
    assert data(ask(names, "away.demo.svc.cluster.local")) == {"echo.demo.svc.cluster.local.", "10.96.0.7"}


@pytest.mark.parametrize("name", ["nothing.demo.svc.cluster.local", "echo.demo.svc.clusterset.local", "example.com"])
def test_everything_else_does_not_exist_and_is_not_asked_elsewhere(names: Zone, name: str) -> None:
    response = ask(names, name)
    assert response.rcode() == dns.rcode.NXDOMAIN
    assert [rrset.rdtype for rrset in response.authority] == [dns.rdatatype.SOA]


@pytest.mark.parametrize("name", ["echo.demo.svc.cluster.local", "demo.svc.cluster.local", "cluster.local"])
def test_a_name_without_data_of_the_type_exists(names: Zone, name: str) -> None:
    response = ask(names, name, "AAAA")
    assert response.rcode() == dns.rcode.NOERROR
    assert not response.answer
    assert response.authority


def test_what_does_not_fit_into_a_datagram_is_cut_and_whole_over_tcp(names: Zone) -> None:
    plain = dns.message.make_query("big.demo.svc.cluster.local", "A", use_edns=False).to_wire()
    cut = answer(plain, names, domain=DOMAIN, udp=True)
    assert cut is not None
    assert dns.message.from_wire(cut).flags & dns.flags.TC
    assert len(data(ask(names, "big.demo.svc.cluster.local", udp=False))) == 119


def test_what_is_no_question_is_not_answered(names: Zone) -> None:
    assert answer(b"\0\1garbage", names, domain=DOMAIN, udp=True) is None
    reply = dns.message.make_response(dns.message.make_query("echo.demo.svc.cluster.local", "A")).to_wire()
    assert answer(reply, names, domain=DOMAIN, udp=True) is None
