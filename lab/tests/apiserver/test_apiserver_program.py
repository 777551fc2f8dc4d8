"""The program: what is wrong with its command line is one line that names the flag."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest
from clusters.apiserver_world import ApiServer, connected, until

LISTEN = "--listen=127.0.0.1:0"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--listen=nowhere"], "--listen nowhere: want an address and a port"),
        ([LISTEN, "--token-file=/nowhere"], "--token-file /nowhere: No such file or directory"),
        ([LISTEN, "--service-cidr=10.96.0.0/99"], "--service-cidr 10.96.0.0/99: "),
        ([LISTEN, "--tls-cert-file=/etc/hostname"], "--tls-cert-file /etc/hostname: no usable certificate and key"),
        ([LISTEN, "--fd=77"], "--fd 77: no socket was inherited there"),
        ([LISTEN, "--etcd-servers=ftp://x"], "etcd endpoint 'ftp://x': want http://host:port"),
    ],
)
def test_a_wrong_flag_is_one_line_that_names_it(flags: list[str], message: str) -> None:
    command = [sys.executable, "-m", "isthmus_lab.apiserver", "--etcd-servers=http://127.0.0.1:1", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(f"isthmus_lab.apiserver: {message}"), done.stderr
    assert len(done.stderr.splitlines()) == 1


async def test_an_inherited_socket_is_listened_on_too(own_server: ApiServer) -> None:
    own_server.stop()
    with socket.create_server(("127.0.0.1", 0)) as extra:
        port = extra.getsockname()[1]
        own_server.start(f"--fd={extra.fileno()}", pass_fds=[extra.fileno()])
    own_server.port = port
    until(own_server.ready)
    async with connected(own_server, "here") as client:
        assert (await client.get("configmaps")).status == 200
