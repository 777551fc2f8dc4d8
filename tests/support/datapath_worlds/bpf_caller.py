"""A client process of the datapath's tests: reads calls from stdin as JSON lines, prints the outcome of each."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
import struct
import sys
from collections.abc import Callable
from typing import Any

from isthmus.dns import dialing
from isthmus.identity.paths import judge
from isthmus.processes.path_probes import probe

TIMEOUT = 10.0
IPPROTO_MPTCP = 262  # linux/in.h
TCP_FASTOPEN_CONNECT = 30  # linux/tcp.h
TCP_REPAIR = 19  # linux/tcp.h: a socket in repair mode is closed in silence
kept: dict[str, socket.socket] = {}


def family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def path(host: str, port: int) -> dict[str, Any]:
    """Verdict of a probe of the path to an address."""
    verdict = judge(asyncio.run(probe(host, port)))
    return {"path": verdict.state if verdict else ""}


def mptcp(host: str, port: int) -> dict[str, Any]:
    """A call by Multipath TCP, which falls back to TCP where the other side has none."""
    return tcp(host, port, protocol=IPPROTO_MPTCP)


def tcp(host: str, port: int, *, protocol: int = 0) -> dict[str, Any]:
    with socket.socket(family(host), socket.SOCK_STREAM, protocol) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect((host, port))
        peer = sock.getpeername()
        return {"answer": sock.recv(200).decode(), "peer": f"{peer[0]}:{peer[1]}"}


def udp(
    host: str, port: int, *, connected: bool = False, name: str = "", payload: str = "?", patience: float = TIMEOUT
) -> dict[str, Any]:
    """One question from a socket of its own, or from one kept under a name. Bytes are the code points of texts."""
    sock = kept.get(name) or socket.socket(family(host), socket.SOCK_DGRAM)
    sock.settimeout(patience)
    peer = ""
    if connected:
        sock.connect((host, port))
        peer = "{}:{}".format(*sock.getpeername()[:2])
        sock.send(payload.encode("latin-1"))
    else:
        sock.sendto(payload.encode("latin-1"), (host, port))
    answer, source = sock.recvfrom(200)
    if name:
        kept[name] = sock
    else:
        sock.close()
    return {"answer": answer.decode("latin-1"), "from": f"{source[0]}:{source[1]}", "peer": peer}


def own(host: str, port: int, kind: str) -> dict[str, Any]:
    """A question of the name server itself."""
    with dialing.opened(host, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect((host, port))
        if kind == "udp":
            sock.send(b"?")
        return {"answer": sock.recv(200).decode()}


def ask(host: str, port: int, name: str) -> dict[str, Any]:
    """A question whose answer is left in the socket, which is kept under a name, for ``hear``."""
    sock = kept[name] = kept.get(name) or socket.socket(family(host), socket.SOCK_DGRAM)
    sock.settimeout(TIMEOUT)
    sock.sendto(b"?", (host, port))
    return {}


def tell(host: str, port: int, name: str) -> dict[str, Any]:
    """One more datagram from a kept socket, whose answer is left in it as well."""
    kept[name].sendto(b"?", (host, port))
    return {}


def hear(host: str, port: int, name: str) -> dict[str, Any]:
    """The answer to an earlier question, and its source address."""
    answer, source = kept[name].recvfrom(200)
    return {"answer": answer.decode(), "from": f"{source[0]}:{source[1]}"}


def hold(host: str, port: int, local: int) -> dict[str, Any]:
    """A call from a local port that stays connected; who answers, in a line."""
    sock = kept[f"{host}:{port}"] = socket.socket(family(host), socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("", local))
    sock.settimeout(TIMEOUT)
    sock.connect((host, port))
    return {"answer": sock.recv(200).decode().strip()}


def keep(host: str, port: int, name: str, kind: str = "udp", local: int = 0) -> dict[str, Any]:
    """A connected socket, of UDP or TCP, kept under a name, from a local port where one is given."""
    sock = kept[name] = socket.socket(family(host), socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    if local:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", local))
    sock.settimeout(TIMEOUT)
    sock.connect((host, port))
    return {}


def ping(host: str, port: int, name: str) -> dict[str, Any]:
    """Bytes there and back on a socket that is kept."""
    kept[name].send(b"?")
    return {"answer": kept[name].recv(200).decode()}


def send(host: str, port: int, name: str) -> dict[str, Any]:
    """One datagram from a kept socket, whose answer is not waited for."""
    kept[name].send(b"?")
    return {}


def end(host: str, port: int, name: str) -> dict[str, Any]:
    """Read what comes on a kept socket to its end, and close it."""
    sock = kept.pop(name)
    while sock.recv(200):
        pass
    sock.close()
    return {}


def peer(host: str, port: int, name: str) -> dict[str, Any]:
    """Whom a kept socket is connected to."""
    return {"peer": "{}:{}".format(*kept[name].getpeername()[:2])}


def close(host: str, port: int, name: str) -> dict[str, Any]:
    """Close a kept socket."""
    kept.pop(name).close()
    return {}


def again(host: str, port: int, first: str, patience: float = TIMEOUT) -> dict[str, Any]:
    """Connect to one address in vain, and with the same socket to another."""
    with socket.socket(family(host), socket.SOCK_STREAM) as sock:
        with contextlib.suppress(OSError):
            sock.connect((first, port))
        sock.settimeout(patience)
        sock.connect((host, port))
        return {"answer": sock.recv(200).decode().strip(), "peer": "{}:{}".format(*sock.getpeername()[:2])}


def listen(host: str, port: int) -> dict[str, Any]:
    """Connect in vain, and listen with the same socket, until it is closed."""
    with socket.socket(family(host), socket.SOCK_STREAM) as sock:
        try:
            sock.connect((host, port))
        except OSError as why:
            sock.listen()
            return {"error": errno.errorcode[why.errno or 0]}
    return {}


def deferred(host: str, port: int) -> dict[str, Any]:
    """A connect whose SYN goes with the first bytes, where the server's cookie is known, and a close without any."""
    with socket.socket(family(host), socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        sock.settimeout(TIMEOUT)
        sock.connect((host, port))
    return {}


def fast(host: str, port: int, text: str) -> dict[str, Any]:
    """A connect whose SYN carries the text, where the kernel sends data without a cookie; all that comes back."""
    with socket.socket(family(host), socket.SOCK_STREAM) as sock:
        for patience in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):  # with settimeout() it would not wait
            sock.setsockopt(socket.SOL_SOCKET, patience, struct.pack("ll", int(TIMEOUT), 0))
        sock.sendto(text.encode(), socket.MSG_FASTOPEN, (host, port))
        sock.shutdown(socket.SHUT_WR)
        pieces = list(iter(lambda: sock.recv(1 << 16), b""))
    return {"answer": b"".join(pieces).decode()}


def options(host: str, port: int) -> dict[str, Any]:
    """A call by a socket with options in the header of IPv4, or an extension header of IPv6."""
    with socket.socket(family(host), socket.SOCK_STREAM) as sock:
        if ":" in host:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_DSTOPTS, bytes([0, 0, 1, 4, 0, 0, 0, 0]))
        else:
            sock.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, bytes([1, 1, 1, 1]))
        sock.settimeout(TIMEOUT)
        sock.connect((host, port))
        return {"answer": sock.recv(200).decode().strip()}


def echo(host: str, port: int, text: str) -> dict[str, Any]:
    """Bytes there and back on a call that is held."""
    sock = kept[f"{host}:{port}"]
    sock.sendall(text.encode())
    return {"answer": sock.recv(200).decode()}


def drop(host: str, port: int) -> dict[str, Any]:
    """End a call that is held, us first."""
    sock = kept.pop(f"{host}:{port}")
    sock.shutdown(socket.SHUT_WR)
    while sock.recv(200):
        pass
    sock.close()
    return {}


def abandon(host: str, port: int) -> dict[str, Any]:
    """Let the kernel forget a held call without a word to the other side, as when time-outs have run out."""
    sock = kept.pop(f"{host}:{port}")
    sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    sock.close()
    return {}


CALLS: dict[str, Callable[..., dict[str, Any]]] = {
    "tcp": tcp,
    "mptcp": mptcp,
    "path": path,
    "udp": udp,
    "hold": hold,
    "keep": keep,
    "ping": ping,
    "send": send,
    "end": end,
    "peer": peer,
    "close": close,
    "again": again,
    "deferred": deferred,
    "listen": listen,
    "echo": echo,
    "fast": fast,
    "options": options,
    "drop": drop,
    "abandon": abandon,
    "own": own,
    "ask": ask,
    "tell": tell,
    "hear": hear,
}


def main() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        call = CALLS[asked.pop("call")]
        for _ in range(asked.pop("times", 1)):
            try:
                result = call(**asked)
            except OSError as error:
                result = {"error": errno.errorcode.get(error.errno or 0, str(error))}
            print(json.dumps(result), flush=True)


main()
