"""The image ``isthmus/echo``: answers with its name and the caller's address: HTTP, plain TCP and UDP on one port.

Standard library only, and little of it: it starts in some 20 ms. A TCP caller that sends an HTTP request gets an HTTP
answer, any other caller a line. The answer is one JSON object: cluster, namespace, pod, node, address, and the
caller's address as this end of the socket sees it. A request of ``/?cpu=5`` takes 5 ms of CPU time first, as work would
that an autoscaler is to see. On SIGTERM it takes no more connections, answers those that it has, and ends.
"""

import json
import os
import selectors
import signal
import socket
import sys
import threading
import time

SILENCE = 30.0  # seconds: longer than a machine stands still, since a caller may do so before it has spoken
GRACE = 3.0  # seconds for what it still has to answer when it ends: examples give their pods 5 in all
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"


def listen(port: int) -> list[socket.socket]:
    """A TCP and a UDP socket, for both families if the kernel supports them, or for ``LAB_ADDRESS`` alone."""
    sockets = []
    own = os.environ.get("LAB_ADDRESS", "")
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        family, host = (socket.AF_INET6, "::") if socket.has_ipv6 and not own else (socket.AF_INET, own or "0.0.0.0")
        sock = socket.socket(family, kind)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        if kind == socket.SOCK_STREAM:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.setblocking(False)
        if kind == socket.SOCK_STREAM:
            sock.listen(256)
        sockets.append(sock)
    return sockets


def answer(peer: tuple[str, int], protocol: str, path: str = "") -> bytes:
    """The answer to a caller."""
    env = os.environ.get
    answer = {
        "cluster": env("CLUSTER", env("CLUSTER_NAME", "")),
        "namespace": env("POD_NAMESPACE", ""),
        "pod": env("POD_NAME", env("HOSTNAME", "")),
        "node": env("NODE_NAME", ""),
        "address": env("POD_IP", ""),
        "caller": peer[0].removeprefix("::ffff:"),
        "caller_port": peer[1],
        "protocol": protocol,
    }
    return json.dumps({**answer, "path": path} if path else answer).encode() + b"\n"


def work(path: str) -> None:
    """Take the CPU time that a request asks for, in milliseconds, but no more than 100."""
    _, _, asked = path.partition("?cpu=")
    end = time.thread_time() + (min(int(asked), 100) / 1000 if asked.isdecimal() else 0)
    while time.thread_time() < end:
        pass


def serve_tcp(connection: socket.socket, peer: tuple[str, int]) -> None:
    """One request per connection; what is no HTTP gets a plain line. A thread each: a silent caller blocks no other."""
    with connection:
        connection.settimeout(SILENCE)
        try:
            request = connection.recv(65536)
            words = request.split(b"\r\n", 1)[0].split()
            if len(words) == 3 and words[2].startswith(b"HTTP/"):
                path = words[1].decode(errors="replace")
                work(path)
                body = answer(peer, "HTTP", path)
                connection.sendall(HEAD % len(body) + body)
            else:
                connection.sendall(answer(peer, "TCP"))
        except OSError:
            pass  # the caller left, or never spoke: a probe


def serve(tcp: socket.socket, udp: socket.socket) -> None:
    """Take what has come: every connection and datagram that waits."""
    try:
        while True:
            threading.Thread(target=serve_tcp, args=tcp.accept(), daemon=True).start()
    except OSError:
        pass  # none waits, or it was gone before it was taken
    try:
        while True:
            _, peer = udp.recvfrom(65536)
            udp.sendto(answer(peer, "UDP"), peer)
    except OSError:
        pass  # none waits, or nothing is sent at the moment


def finish() -> None:
    """Wait until all connections are answered, but not for long: callers may stay silent."""
    deadline = time.monotonic() + GRACE
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(max(0.0, deadline - time.monotonic()))


def main() -> None:
    """Serve until SIGTERM."""
    port = int(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("PORT", "8080"))
    woken, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno())
    signal.signal(signal.SIGTERM, lambda *_: None)
    tcp, udp = listen(port)
    print(f"echo: listening on port {port}", flush=True)
    with selectors.DefaultSelector() as selector:
        for sock in (woken, tcp, udp):
            selector.register(sock, selectors.EVENT_READ)
        while woken not in [key.fileobj for key, _ in selector.select()]:
            serve(tcp, udp)
    serve(tcp, udp)  # what waits when a listener is closed is reset
    tcp.close()
    finish()
    os._exit(0)


main()
