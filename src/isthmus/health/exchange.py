"""Requests that a probe sends after it has connected, and the meaning of the answers. Pure; TCP sends nothing.

gRPC is one call of ``grpc.health.v1.Health/Check`` (gRPC health checking protocol) over HTTP/2 with prior knowledge
(RFC 9113). Its answer's headers are never decoded (HPACK, RFC 7541): a call that fails has no message.
"""

from __future__ import annotations

from typing import Final

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.model.policies import HealthCheck

LARGEST: Final = 1 << 16
"""Bytes of an answer that are read; by then a probe knows, or never will."""

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY = 0, 1, 3, 4, 7
END_STREAM, END_HEADERS = 1, 4
PADDED: Final = 8
STATES: Final = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


def request(check: HealthCheck, authority: str) -> bytes:
    """Return the bytes to send, empty if a connection is sufficient."""
    if check.type == "HTTP":
        lines = f"GET {check.path} HTTP/1.1", f"Host: {check.host or authority}", "User-Agent: isthmus-probe"
        return "\r\n".join((*lines, "Accept: */*", "Connection: close", "", "")).encode()
    return _grpc_request(check.service, authority) if check.type == "GRPC" else b""


def result(check: HealthCheck, received: bytes, *, ended: bool) -> str | None:
    """Return why a probe fails, empty if it passes, ``None`` if more bytes are needed (unless ``ended``)."""
    result = _http_result(received) if check.type == "HTTP" else _grpc_result(received)
    if result is None and (ended or len(received) >= LARGEST):
        return "the connection ended before an answer" if ended else f"no answer within {LARGEST} bytes"
    return result


def _http_result(received: bytes) -> str | None:
    """Judge the status line alone: 200 to 399 pass, as in a kubelet's probe."""
    line, end, _ = received.partition(b"\r\n")
    if not end:
        return None
    words = line.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        return "the answer is not HTTP"
    try:
        status = bounds.count(words[1], least=100, most=999)
    except OutOfBounds:
        return "the answer is not HTTP"
    return "" if 200 <= status < 400 else f"HTTP status {status}"


def _grpc_request(service: str, authority: str) -> bytes:
    fields = (
        (":method", "POST"), (":scheme", "http"), (":path", "/grpc.health.v1.Health/Check"), (":authority", authority),
        ("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "isthmus-probe"),
    )  # fmt: skip
    block = b"".join(b"\0" + _short(name.encode()) + _short(value.encode()) for name, value in fields)
    body = b"\x0a" + _short(service.encode()) if service else b""
    message = b"\0" + len(body).to_bytes(4, "big") + body
    frames = _frame(SETTINGS, 0, 0, b""), _frame(HEADERS, END_HEADERS, 1, block), _frame(DATA, END_STREAM, 1, message)
    return PREFACE + b"".join(frames)


def _grpc_result(received: bytes) -> str | None:
    message, rest = b"", received
    while len(rest) >= 9:
        size, kind, flags, stream = int.from_bytes(rest[:3], "big"), rest[3], rest[4], int.from_bytes(rest[5:9], "big")
        if kind > 9 or size > LARGEST:
            return "the answer is not HTTP/2"
        if len(rest) < 9 + size:
            return None
        payload, rest = rest[9 : 9 + size], rest[9 + size :]
        if kind == DATA and stream == 1:
            message += payload[1 : size - payload[0]] if flags & PADDED and payload else payload
        if kind in (RST_STREAM, GOAWAY) or (kind in (DATA, HEADERS) and stream == 1 and flags & END_STREAM):
            return _grpc_verdict(message)
    return None


def _grpc_verdict(message: bytes) -> str:
    """Judge a message: five bytes of gRPC's prefix, then field 1 of HealthCheckResponse as a varint."""
    if not message:
        return "no grpc.health.v1 there, or no such service"
    state = message[6] if len(message) > 6 and message[5] == 8 else 0
    return "" if state == 1 else f"the service is {STATES.get(state, state)}"


def _short(raw: bytes) -> bytes:
    """A text of fewer than 127 bytes behind its length, the same in HPACK and in protobuf."""
    if len(raw) > 126:
        raise ValueError(f"{len(raw)} bytes are too long for a probe")
    return bytes((len(raw),)) + raw


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
