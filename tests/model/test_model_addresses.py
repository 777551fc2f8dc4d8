"""Reserved addresses of both families."""

from __future__ import annotations

import doctest
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.model import addresses
from isthmus.model.addresses import reserved


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("::", "unspecified"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("::1", "loopback"),
        ("169.254.169.254", "link-local"),
        ("169.254.7.1", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("224.0.0.251", "multicast"),
        ("239.1.2.3", "multicast"),
        ("ff02::fb", "multicast"),
        ("255.255.255.255", "broadcast"),
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:a9fe:a9fe", "link-local"),
        ("::ffff:0:0", "unspecified"),
        ("::ffff:224.0.0.251", "multicast"),
        ("::ffff:255.255.255.255", "broadcast"),
        ("", "not an address"),
        ("echo.demo", "not an address"),
        ("10.1.1", "not an address"),
    ],
)
def test_a_reserved_address_is_named_by_its_kind(address: str, kind: str) -> None:
    assert reserved(address) == kind


@pytest.mark.parametrize(
    "address",
    ["10.96.0.10", "192.168.1.1", "8.8.8.8", "100.64.0.1", "240.0.0.1", "fd00::1", "2001:db8::1", "::ffff:10.1.1.2"],
)
def test_any_other_address_is_not_reserved(address: str) -> None:
    assert reserved(address) == ""


def test_where_loopback_addresses_are_permitted_all_others_stay_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(addresses, "_RANGES", [*addresses._RANGES])
    addresses.permit_loopback()
    try:
        found = [reserved(each) for each in ("127.7.1.2", "::ffff:127.7.1.2", "::1", "0.0.0.0", "169.254.7.1")]
    finally:
        addresses._reserved.cache_clear()

    assert found == ["", "", "loopback", "unspecified", "link-local"]


@given(st.ip_addresses(v=4))
def test_an_ipv4_address_and_its_mapped_form_are_judged_alike(address: IPv4Address) -> None:
    assert reserved(str(address)) == reserved(str(IPv6Address(f"::ffff:{address}")))


@given(st.ip_addresses())
def test_what_the_standard_library_calls_special_is_reserved(address: IPv4Address | IPv6Address) -> None:
    plain = getattr(address, "ipv4_mapped", None) or address
    special = plain.is_loopback or plain.is_link_local or plain.is_multicast or plain.is_unspecified
    assert bool(reserved(str(address))) >= special


def test_the_examples_hold() -> None:
    assert doctest.testmod(addresses).failed == 0
