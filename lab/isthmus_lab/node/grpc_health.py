"""A gRPC probe: one call of grpc.health.v1.Health/Check over HTTP/2 without TLS, as a kubelet makes it.

By hand, since the node forks and a gRPC library's threads do not survive that. Of the answer only what counts is read:
the message of a successful call. Headers of the answer are never decoded (HPACK, RFC 7541): a call that fails has no
message.
"""

from __future__ import annotations

import asyncio
from typing import Final

from isthmus.model.hosts import joined

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY = 0, 1, 3, 4, 6, 7
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PADDED: Final = 8
LARGEST: Final = 1 << 14
"""Bytes of a frame: the protocol's own default, which the answer may not exceed."""
STATUS: Final = {0: "UNKNOWN", 1: "SERVING", 2: "NOT_SERVING", 3: "SERVICE_UNKNOWN"}


async def check(host: str, port: int, service: str) -> str | None:
    """Check a service. Returns the reason why it is not serving, or None if it is."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(PREFACE + _frame(SETTINGS, 0, 0, b"") + _request(joined(host, port), service))
        message = await _answer(reader, writer)
    except asyncio.IncompleteReadError:
        return "the connection was closed before an answer: no gRPC server"
    finally:
        writer.close()
    if not message:
        return "no message in the answer: no grpc.health.v1, or no such service"
    state = message[6] if len(message) > 6 and message[5] == 8 else 0
    return None if state == 1 else f"the service is {STATUS.get(state, state)}"


def _request(authority: str, service: str) -> bytes:
    fields = (
        (":method", "POST"), (":scheme", "http"), (":path", "/grpc.health.v1.Health/Check"), (":authority", authority),
        ("content-type", "application/grpc"), ("te", "trailers"), ("user-agent", "kube-probe/isthmus-lab"),
    )  # fmt: skip
    block = b"".join(b"\0" + _text(name) + _text(value) for name, value in fields)
    body = b"\x0a" + bytes((len(service.encode()),)) + service.encode() if service else b""
    message = b"\0" + len(body).to_bytes(4, "big") + body
    return _frame(HEADERS, END_HEADERS, 1, block) + _frame(DATA, END_STREAM, 1, message)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """The data of the only stream, when that has ended."""
    body = b""
    while True:
        head = await reader.readexactly(9)
        size, kind, flags, stream = int.from_bytes(head[:3], "big"), head[3], head[4], int.from_bytes(head[5:], "big")
        if size > LARGEST:
            raise ValueError("the answer is not HTTP/2")
        payload = await reader.readexactly(size)
        if kind in (SETTINGS, PING) and not flags & ACK:
            writer.write(_frame(kind, ACK, 0, payload if kind == PING else b""))
        if kind == DATA and stream == 1:
            body += payload[1 : size - payload[0]] if flags & PADDED and payload else payload
        ended = kind in (DATA, HEADERS) and stream == 1 and flags & END_STREAM
        if ended or kind in (RST_STREAM, GOAWAY) or len(body) > LARGEST:
            return body


def _text(value: str) -> bytes:
    """A literal of HPACK; none here is as long as 127 bytes, where the length would take more than one."""
    raw = value.encode()
    return bytes((len(raw),)) + raw


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload
