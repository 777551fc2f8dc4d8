"""The filter of packets from uplinks, on sockets of this process."""

from __future__ import annotations

import errno
import os
import socket

import pytest

from isthmus.netlink import sock_diag
from isthmus.proxy.filtering import UplinkFilter

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="filters of TCP sockets want CAP_NET_ADMIN: needs root")


def test_where_the_kernel_lists_no_udp_sockets_those_of_tcp_are_filtered_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As without udp_diag; said once."""

    def refused() -> set[int]:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(sock_diag, "udp_servers", refused)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        socket.create_connection(listener.getsockname(), timeout=10).close()
        uplinks = UplinkFilter(["lo"])
        for _ in range(2):
            uplinks.look([os.getpid()])
        with pytest.raises(TimeoutError):
            socket.create_connection(listener.getsockname(), timeout=0.5)
    assert capsys.readouterr().err.count("the kernel lists no UDP sockets") == 1
