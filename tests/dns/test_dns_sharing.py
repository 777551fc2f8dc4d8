"""Whether another process of the node serves an address, as the kernel's tables of sockets have it."""

from __future__ import annotations

import socket

import pytest

from isthmus import uplinks
from isthmus.dns import CannotListen, is_served
from isthmus.dns.server import bind_both


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_address_is_served_from_bind_to_close(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sock:
        sock.bind((host, 0))
        port = sock.getsockname()[1]
        assert is_served([("127.0.0.9", port), (host, port)])
        assert not is_served([("127.0.0.9", port)])
    assert not is_served([(host, port)])


def test_addresses_are_shared_by_two_that_want_to_and_by_no_others() -> None:
    first = bind_both(("127.0.0.1", 0), shared=True)
    port = first[0].getsockname()[1]
    second = bind_both(("127.0.0.1", port), shared=True)
    with pytest.raises(CannotListen, match="already in use"):
        bind_both(("127.0.0.1", port))
    for sock in (*first, *second):
        sock.close()


def test_where_no_uplink_is_to_be_dropped_no_socket_has_a_filter_which_would_want_a_privilege(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    filtered: list[socket.socket] = []
    monkeypatch.setattr(uplinks, "drop_from", lambda sock, _: filtered.append(sock))
    plain, dropping = bind_both(("127.0.0.1", 0)), bind_both(("127.0.0.1", 0), {2})

    kept = [sock for sock in filtered if sock.fileno() >= 0]  # a port that is taken for TCP is given up for another
    assert kept == [*dropping]
    for sock in (*plain, *dropping):
        sock.close()
