"""A name server on 127.0.0.1:53 of a namespace of its own, as a pod sees the cluster DNS whose UDP alone is ours.

``python dns_alone.py COUNT COMMAND…`` serves COUNT addresses of many.demo.svc.clusterset.local, runs COMMAND with a
resolv.conf that names it, and ends. TCP is another's: it does not know the zone.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from isthmus.dns.respond import respond
from isthmus.model.dns import Name
from isthmus.zone import Zone, codec

MANY = "many.demo.svc.clusterset.local"
SEARCH = "demo.svc.cluster.local svc.cluster.local cluster.local"


def zone(count: int) -> Zone:
    """A zone with one set of ``count`` addresses."""
    made = Zone("clusterset.local")
    made.replace(None, Name(MANY, "A", tuple(f"10.1.{n // 250}.{n % 250 + 1}" for n in range(count))))
    made.complete = True
    return made


def denied(packet: bytes) -> bytes:
    """NXDOMAIN, as a cluster DNS answers that does not know the zone."""
    ident, flags, *_ = codec.HEADER.unpack_from(packet)
    end = codec.name_end(packet, 12) + 4
    head = codec.HEADER.pack(ident, codec.QR | codec.RA | flags & codec.RD | codec.NXDOMAIN, 1, 0, 0, 0)
    return head + packet[12:end]


def serve_udp(sock: socket.socket, answering: Zone) -> None:
    """Answer for ever; what is not ours does not exist."""
    while True:
        packet, client = sock.recvfrom(4096)
        reply = respond(packet, answering, limit=codec.UDP_SIZE)
        sock.sendto(reply or denied(packet), client)


def serve_tcp(sock: socket.socket) -> None:
    """Deny for ever."""
    while True:
        connection, _ = sock.accept()
        with connection:
            (length,) = struct.unpack(">H", connection.recv(2))
            reply = denied(connection.recv(length))
            connection.sendall(struct.pack(">H", len(reply)) + reply)


def main() -> int:
    """Serve, and run the command; its exit code."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as directory:
        conf = Path(directory) / "resolv.conf"
        conf.write_text(f"nameserver 127.0.0.1\nsearch {SEARCH}\noptions ndots:5 timeout:2\n")
        subprocess.run(["mount", "--bind", conf, "/etc/resolv.conf"], check=True)
        udp, tcp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        for sock in (udp, tcp):
            sock.bind(("127.0.0.1", 53))
        tcp.listen()
        answering = zone(int(sys.argv[1]))
        threading.Thread(target=serve_udp, args=(udp, answering), daemon=True).start()
        threading.Thread(target=serve_tcp, args=(tcp,), daemon=True).start()
        code = subprocess.run(sys.argv[2:], check=False).returncode
        subprocess.run(["umount", "/etc/resolv.conf"], check=True)
        return code


if __name__ == "__main__":
    sys.exit(main())
