"""Addresses of Services while several writes are under way."""

from __future__ import annotations

from ipaddress import ip_network
from typing import Any

import pytest

from isthmus_lab.apiserver.addresses import Addresses
from isthmus_lab.apiserver.errors import ApiError


def service(name: str, address: str) -> dict[str, Any]:
    spec = {"type": "ClusterIP", "clusterIP": address, "clusterIPs": [address], "ports": [{"port": 80}]}
    return {"metadata": {"name": name, "namespace": "demo"}, "spec": spec}


def test_two_writes_of_one_service_may_be_under_way_at_once() -> None:
    addresses = Addresses([ip_network("10.96.0.0/16")])
    stored = service("echo", "10.96.0.7")["spec"]
    with (
        addresses.allocated(service("echo", "10.96.0.7"), [], before=stored),
        addresses.allocated(service("echo", "10.96.0.7"), [], before=stored),
    ):
        pass


def test_an_address_that_a_write_under_way_asks_for_is_reserved() -> None:
    addresses = Addresses([ip_network("10.96.0.0/16")])
    with (
        addresses.allocated(service("echo", "10.96.0.7"), []),
        pytest.raises(ApiError, match="already allocated"),
        addresses.allocated(service("other", "10.96.0.7"), []),
    ):
        pass
