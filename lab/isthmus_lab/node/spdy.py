"""SPDY/3.1 frames, as far as exec and ``kubectl port-forward`` speak it: many streams over one connection. Pure.

There is no flow control: the clients of this protocol have none, either. What is not needed (priorities, settings,
pushed streams) is skipped on receipt and never sent.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Final, NamedTuple

SYN_STREAM: Final = 1
SYN_REPLY: Final = 2
RST_STREAM: Final = 3
PING: Final = 6
FIN: Final = 1
HEAD: Final = 8
CONTROL: Final = 0x8003
MAX_FRAME: Final = 1 << 20
"""Bytes of a frame. The protocol allows sixteen times that; no client sends it."""

_WORDS: Final = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language accept-ranges age allow "
    "authorization cache-control connection content-base content-encoding content-language content-length "
    "content-location content-md5 content-range content-type date etag expect expires from host if-match "
    "if-modified-since if-none-match if-range if-unmodified-since last-modified location max-forwards pragma "
    "proxy-authenticate proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status|200 OK|version|HTTP/1.1|url public set-cookie "
    "keep-alive origin"
)
_REST: Final = (
    "100101201202205206300302303304305306307402405406407408409410411412413414415416417502504505203 "
    "Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 Unauthorized403 Forbidden404 "
    "Not Found500 Internal Server Error501 Not Implemented503 Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept "
    "Oct Nov Dec 00:00:00 Mon, Tue, Wed, Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,"
    "application/xml,application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch"
    "charset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    """Initial zlib dictionary of header blocks, from the SPDY/3 specification."""
    words = [word for part in _WORDS.split("|") for word in ([part] if part == "200 OK" else part.split())]
    return b"".join(struct.pack("!I", len(word)) + word.encode() for word in words) + _REST.encode()


DICTIONARY: Final = _dictionary()


class BadFrame(Exception):  # noqa: N818
    """The peer does not follow the protocol; the message has the place."""


class Opened(NamedTuple):
    """A stream begins."""

    stream: int
    headers: dict[str, str]


class Data(NamedTuple):
    """Data of a stream; empty where the frame only ends it."""

    stream: int
    data: bytes


class Ended(NamedTuple):
    """The peer ended a stream. ``reset``: it accepts no more data either."""

    stream: int
    reset: bool


class Pinged(NamedTuple):
    """A ping, to be echoed unchanged."""

    frame: bytes


Event = Opened | Data | Ended | Pinged


class Session:
    """The server's side of a connection."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._inflate = zlib.decompressobj(zdict=DICTIONARY)
        self._deflate = zlib.compressobj(zdict=DICTIONARY)

    def received(self, data: bytes) -> Iterator[Event]:
        """Parse received data, which may end within a frame."""
        self._received += data
        while len(self._received) >= HEAD:
            kind, detail, size = struct.unpack("!HHI", self._received[:HEAD])
            flags, length = size >> 24, size & 0xFFFFFF
            if length > MAX_FRAME:
                raise BadFrame(f"a frame of {length} bytes")
            if len(self._received) < HEAD + length:
                return
            frame = bytes(self._received[: HEAD + length])
            del self._received[: HEAD + length]
            if kind & 0x8000:
                yield from self._control(detail, flags, frame)
            else:
                yield Data(kind << 16 | detail, frame[HEAD:])
                if flags & FIN:
                    yield Ended(kind << 16 | detail, reset=False)

    def accept(self, stream: int) -> bytes:
        """Frame that accepts a stream."""
        headers = self._deflate.compress(struct.pack("!I", 0)) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return struct.pack("!HHII", CONTROL, SYN_REPLY, 4 + len(headers), stream) + headers

    def _control(self, kind: int, flags: int, frame: bytes) -> Iterator[Event]:
        try:
            if kind == SYN_STREAM:
                stream = struct.unpack_from("!I", frame, HEAD)[0]
                yield Opened(stream, _headers(self._inflate.decompress(frame[HEAD + 10 :])))
                if flags & FIN:
                    yield Ended(stream, reset=False)
            elif kind == RST_STREAM:
                yield Ended(struct.unpack_from("!I", frame, HEAD)[0], reset=True)
            elif kind == PING:
                yield Pinged(frame)
        except (struct.error, zlib.error, UnicodeDecodeError) as error:
            raise BadFrame(f"a frame of kind {kind}: {error}") from None


def data_frame(stream: int, data: bytes, *, end: bool = False) -> bytes:
    """Data for a stream; ``end``: and nothing more."""
    return struct.pack("!II", stream, (FIN << 24 if end else 0) | len(data)) + data


def _headers(block: bytes) -> dict[str, str]:
    fields: list[str] = []
    position = 4
    for _ in range(2 * int(struct.unpack_from("!I", block)[0])):
        (length,) = struct.unpack_from("!I", block, position)
        fields.append(block[position + 4 : position + 4 + length].decode())
        position += 4 + length
    return dict(zip(fields[::2], fields[1::2], strict=True))
