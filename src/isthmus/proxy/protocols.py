"""Ports that are declared to speak HTTP. Pure.

A port is declared by its ``appProtocol`` (Kubernetes, "Application protocol": names of IANA's registry, and those of
Kubernetes itself), or, without one, by its name: ``http``, ``http2``, ``grpc`` or ``grpc-web``, alone or with a hyphen
and anything behind it. Bytes of any other port are passed on as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from isthmus.model.services import Port

Version = Literal[1, 2]

DECLARED: Final[Mapping[str, Version]] = {
    "http": 1,
    "http-alt": 1,
    "grpc-web": 1,
    "kubernetes.io/ws": 1,
    "http2": 2,
    "h2c": 2,
    "grpc": 2,
    "kubernetes.io/h2c": 2,
}
"""HTTP version by ``appProtocol``. Protocols that are TLS on the wire (``https``, ``kubernetes.io/wss``) are not HTTP
here."""
NAMED: Final = ("grpc-web", "grpc", "http2", "http")
"""Port names, or prefixes before a hyphen. The first match applies."""


def http_version(port: Port) -> Version | None:
    """Return 1 if a port is declared as HTTP, 2 if as HTTP/2 alone without TLS; ``None`` if as neither."""
    if port.protocol != "TCP":
        return None
    if port.app_protocol:
        return DECLARED.get(port.app_protocol.lower())
    name = next((each for each in NAMED if port.name == each or port.name.startswith(f"{each}-")), "")
    return DECLARED.get(name)
