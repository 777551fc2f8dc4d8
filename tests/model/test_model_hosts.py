"""Addresses and ports as people write them."""

from __future__ import annotations

import pytest

from isthmus.model.hosts import endpoint, joined


@pytest.mark.parametrize(
    ("text", "host", "port", "family"),
    [
        ("10.96.0.10", "10.96.0.10", 53, "IPv4"),
        ("10.96.0.10:5353", "10.96.0.10", 5353, "IPv4"),
        ("fd00:10:96::10", "fd00:10:96::10", 53, "IPv6"),
        ("[fd00:10:96::10]", "fd00:10:96::10", 53, "IPv6"),
        ("[::1]:0", "::1", 0, "IPv6"),
    ],
)
def test_an_address_has_a_port_or_the_usual_one(text: str, host: str, port: int, family: str) -> None:
    found = endpoint(text, port=53)
    assert (found.host, found.port, found.family) == (host, port, family)
    assert endpoint(str(found), port=1) == found


@pytest.mark.parametrize("text", ["", ":53", "[]:53", "10.96.0.10:", "10.96.0.10:x", "10.96.0.10:70000", "[::1]:x"])
def test_what_is_neither_is_said(text: str) -> None:
    with pytest.raises(ValueError, match="want an address, or address:port"):
        endpoint(text, port=53)


def test_an_address_of_ipv6_is_bracketed_before_a_port() -> None:
    assert [joined("10.1.1.2", 80), joined("fd00::2", 80)] == ["10.1.1.2:80", "[fd00::2]:80"]
