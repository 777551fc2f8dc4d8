"""A gateway called as a node of another cluster calls it, and what it has refused."""

from __future__ import annotations

import socket
import ssl
from collections import Counter
from pathlib import Path
from typing import Final

from isthmus.admin.query import Socket
from isthmus.config import GatewaySection
from isthmus.gateway.naming import protocol, service_sni
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, service_name
from isthmus_lab import kernel
from isthmus_lab.demo.stage import NAMESPACE, PORT
from isthmus_lab.layout import GATEWAY, Cluster
from isthmus_lab.network import namespaces
from isthmus_lab.supervisor.configs import socket_of

PATIENCE: Final = 5.0
"""Seconds for a handshake and for an answer; a refusal is immediate."""
QUESTION: Final = b"who?\n"


def ask(caller: Cluster, callee: Cluster, service: str) -> bytes:
    """Call a gateway with a node's certificate; returns its answer, empty if it refuses."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # a gateway is named by the URI in its certificate
    context.load_verify_locations(_peers(caller) / f"{callee.name}.ca.crt")
    context.load_cert_chain(caller.directory / "pki" / "node.crt", caller.directory / "pki" / "node.key")
    domain = GatewaySection().domain
    context.set_alpn_protocols([protocol(ClusterName(caller.name), domain)])
    sni = service_sni(service_name(NAMESPACE, service), PORT, domain)
    with kernel.inside(Path(namespaces.path(caller.nodes[0].namespace))):
        made = socket.socket()
    made.settimeout(PATIENCE)
    try:
        made.connect((callee.nodes[0].address, GATEWAY))
        with context.wrap_socket(made, server_hostname=sni) as connection:
            connection.sendall(QUESTION)
            return connection.recv(1024)
    except (ssl.SSLError, ConnectionError, TimeoutError):  # TLS 1.3: the client learns of it at its first read
        return b""
    finally:
        made.close()


def refused(cluster: Cluster) -> Counter[tuple[str, str]]:
    """Connections refused by the cluster's first gateway, counted by reason and calling cluster."""
    refusals = Socket(socket_of(cluster.nodes[0], "gateway")).status()["refusals"]
    return Counter({(reason, peer): number for reason, peers in refusals.items() for peer, number in peers.items()})


def address(cluster: Cluster) -> str:
    """Address of the cluster's first gateway."""
    return joined(cluster.nodes[0].address, GATEWAY)


def _peers(cluster: Cluster) -> Path:
    return cluster.directory / "peers"
