"""exec, attach and port-forward through the small API server; the frames of port-forward by themselves."""

from __future__ import annotations

import struct
import subprocess
import zlib
from collections.abc import Callable

import pytest
import streams_by_kubectl
from hypothesis import given
from hypothesis import strategies as st
from lab_running import Running, until

from isthmus_lab.node import spdy
from isthmus_lab.node.spdy import Data, Ended, Opened, Pinged


@pytest.fixture(scope="module")
def served(clusters: Running) -> Running:
    streams_by_kubectl.prepare(clusters)
    return clusters


@pytest.mark.lab
@pytest.mark.parametrize("holds", streams_by_kubectl.ALL, ids=lambda each: each.__name__)
def test_kubectl_reaches_into_a_pod(served: Running, holds: Callable[[Running], None]) -> None:
    holds(served)


@pytest.mark.lab
def test_a_terminal_has_a_name_in_its_container(served: Running) -> None:
    command = " ".join([*served.kubectl_command(), "exec", "-it", "served", "-c", "web", "--", "tty"])
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True, timeout=100)
    assert "/dev/pts/0" in done.stdout


@pytest.mark.lab
def test_why_a_container_cannot_be_entered_is_reported(served: Running) -> None:
    served.kubectl("run", "over", "--image=busybox", "--", "false")
    until(lambda: "container over does not run" in streams_by_kubectl.run(served, "exec", "over", "--", "true").stderr)


def opened(stream: int, headers: dict[str, str], deflate: zlib._Compress) -> bytes:
    """As a client writes it."""
    words = [each.encode() for pair in headers.items() for each in pair]
    block = struct.pack("!I", len(headers)) + b"".join(struct.pack("!I", len(word)) + word for word in words)
    packed = deflate.compress(block) + deflate.flush(zlib.Z_SYNC_FLUSH)
    return struct.pack("!HHIIIH", 0x8003, 1, 10 + len(packed), stream, 0, 0) + packed


def conversation() -> tuple[bytes, list[spdy.Event]]:
    deflate = zlib.compressobj(zdict=spdy.DICTIONARY)
    ping = struct.pack("!HHII", 0x8003, 6, 4, 1)
    settings = struct.pack("!HHII", 0x8003, 4, 4, 0)
    reset = struct.pack("!HHIII", 0x8003, 3, 8, 3, 5)
    sent = [
        opened(1, {"streamtype": "error", "port": "80"}, deflate),
        opened(3, {"streamtype": "data", "port": "80"}, deflate),
        spdy.data_frame(1, b"", end=True),
        ping,
        settings,
        spdy.data_frame(3, b"GET / HTTP/1.0\r\n\r\n"),
        reset,
    ]
    return b"".join(sent), [
        Opened(1, {"streamtype": "error", "port": "80"}),
        Opened(3, {"streamtype": "data", "port": "80"}),
        Data(1, b""),
        Ended(1, reset=False),
        Pinged(ping),
        Data(3, b"GET / HTTP/1.0\r\n\r\n"),
        Ended(3, reset=True),
    ]


@given(st.lists(st.integers(1, 60)))
def test_frames_are_read_in_whatever_pieces_they_come(sizes: list[int]) -> None:
    sent, expected = conversation()
    session = spdy.Session()
    received: list[spdy.Event] = []
    for size in [*sizes, len(sent)]:
        received += session.received(sent[:size])
        sent = sent[size:]
    assert received == expected


def test_the_dictionary_of_headers_is_the_protocols() -> None:
    assert zlib.adler32(spdy.DICTIONARY) == 0xE3C6A7C2


@pytest.mark.parametrize(
    "sent",
    [struct.pack("!II", 1, 0xFFFFFF), struct.pack("!HHIIIH", 0x8003, 1, 12, 1, 0, 0) + b"xx", b"\x80\3\0\1\0\0\0\1x"],
)
def test_what_is_no_frame_is_an_error_and_nothing_else(sent: bytes) -> None:
    with pytest.raises(spdy.BadFrame):
        list(spdy.Session().received(sent))
