"""Stands in for ``hashicorp/http-echo`` and, with ``--nginx`` or ``--whoami``, for what those images say by default.

Standard library only. Flags of http-echo: ``-text=hello -listen=:5678 -status-code=200``.
"""

import http.server
import os
import signal
import socket
import sys

NGINX = "<!DOCTYPE html>\n<html>\n<head>\n<title>Welcome to nginx!</title>\n</head>\n</html>\n"


def flags(arguments: list[str]) -> dict[str, str]:
    """``-name=value``, ``-name value`` and ``--name`` alone."""
    values: dict[str, str] = {}
    words = list(arguments)
    while words:
        name, equals, value = words.pop(0).lstrip("-").partition("=")
        if not equals and words and not words[0].startswith("-"):
            value = words.pop(0)
        values[name] = value
    return values


FLAGS = flags(sys.argv[1:])


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers every request with the configured text."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Say it."""
        body = self.text().encode()
        self.send_response(int(FLAGS.get("status-code", "200")))
        self.send_header("Content-Type", "text/html" if "nginx" in FLAGS else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_POST = do_PUT = do_DELETE = do_HEAD = do_GET  # noqa: N815 the library's names

    def text(self) -> str:
        """The text of every answer."""
        if "nginx" in FLAGS:
            return NGINX
        if "whoami" in FLAGS:
            head = f"Hostname: {socket.gethostname()}\nIP: {os.environ.get('POD_IP', '')}\n"
            asked = f"RemoteAddr: {self.client_address[0]}:{self.client_address[1]}\n{self.requestline}\n"
            return head + asked + str(self.headers)
        return FLAGS.get("text", os.environ.get("ECHO_TEXT", "hello")) + "\n"


OWN = os.environ.get("LAB_ADDRESS", "")


class Server(http.server.ThreadingHTTPServer):
    """Both address families; or the one address of ``LAB_ADDRESS``."""

    address_family = socket.AF_INET if OWN else socket.AF_INET6
    daemon_threads = True
    request_queue_size = 128


def main() -> None:
    """Serve until SIGTERM."""
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    default = ":80" if "nginx" in FLAGS or "whoami" in FLAGS else ":5678"
    port = FLAGS.get("port") or FLAGS.get("listen", default).rpartition(":")[2]
    Server((OWN or "::", int(port)), Handler).serve_forever()


main()
