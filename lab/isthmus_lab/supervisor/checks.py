"""Readiness checks of processes, made as a client in the network namespace where they listen."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping

import dns.message

from isthmus import kube
from isthmus.kube.objects.core import NAMESPACE, NODE
from isthmus.reflector import Transient
from isthmus_lab import families
from isthmus_lab.manifests import AnyObject
from isthmus_lab.network import namespaces
from isthmus_lab.network.netlink import within
from isthmus_lab.supervisor.programs import (
    Admin,
    Check,
    Device,
    FileExists,
    Http,
    Names,
    NodeReady,
    ObjectExists,
    Serving,
)

TIMEOUT = 2.0
ANSWER = 0.2
"""Seconds for an answer that is a datagram, and is not given at all as long as there is none."""


async def ready(check: Check, clients: Mapping[str, kube.Client]) -> bool:
    """One look."""
    try:
        async with asyncio.timeout(TIMEOUT):
            match check:
                case Http():
                    return await _http(await _connect(check.namespace, check.address, check.port), check.path)
                case Admin():
                    return await _http(await _unix(str(check.socket)), check.path)
                case Names():
                    async with asyncio.timeout(ANSWER):
                        return await _names(check)
                case Serving():
                    await clients[check.cluster].get(NAMESPACE, "default")
                    return True
                case FileExists():
                    return check.path.exists()
                case Device():
                    async with within(check.namespace) as connection:
                        return bool(await connection.link_lookup(ifname=check.name))
                case NodeReady():
                    await clients[check.cluster].get(NODE, check.node)
                    return True
                case ObjectExists():
                    return await _has(clients[check.cluster], check)
    except (OSError, TimeoutError, Transient, kube.KubeError):
        return False


def sock(namespace: str, kind: socket.SocketKind, *, address: str) -> socket.socket:
    """A socket for an address that is in a namespace, though we are not."""
    with namespaces.inside(namespace):
        return socket.socket(families.scheme_of(address).socket, kind | socket.SOCK_NONBLOCK)


async def _has(client: kube.Client, check: ObjectExists) -> bool:
    kind = await client.kind(check.api_version, check.kind, AnyObject)
    await client.get(kind, check.name, check.object_namespace)
    return True


async def _connect(namespace: str, address: str, port: int) -> socket.socket:
    made = sock(namespace, socket.SOCK_STREAM, address=address)
    try:
        await asyncio.get_running_loop().sock_connect(made, (address, port))
    except BaseException:
        made.close()
        raise
    return made


async def _unix(path: str) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(made, path)
    except BaseException:
        made.close()
        raise
    return made


async def _http(connected: socket.socket, path: str) -> bool:
    loop = asyncio.get_running_loop()
    with connected:
        await loop.sock_sendall(connected, f"GET {path} HTTP/1.1\r\nHost: lab\r\nConnection: close\r\n\r\n".encode())
        head = await loop.sock_recv(connected, 4096)
    return head.partition(b"\r\n")[0].split()[1:2] == [b"200"]


async def _names(check: Names) -> bool:
    loop = asyncio.get_running_loop()
    with sock(check.namespace, socket.SOCK_DGRAM, address=check.address) as made:
        await loop.sock_connect(made, (check.address, check.port))
        await loop.sock_sendall(made, dns.message.make_query("kube-dns.kube-system.svc.cluster.local", "A").to_wire())
        return bool(await loop.sock_recv(made, 4096))
