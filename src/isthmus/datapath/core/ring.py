"""A ring buffer of the kernel's events, read by libbpf."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

from isthmus.datapath.core import libbpf


class RingBuffer:
    """``fileno()`` is readable while there are events; ``consume`` passes each to ``receive``, in order."""

    def __init__(self, fd: int, receive: Callable[[bytes], None]) -> None:
        self._receive = receive
        self._callback = libbpf.SAMPLE(self._sample)  # held here: libbpf keeps only a pointer
        self._pointer = libbpf.ring_open(fd, self._callback)

    def fileno(self) -> int:
        """Descriptor for select, epoll or an event loop."""
        return libbpf.ring_fd(self._pointer)

    def consume(self) -> int:
        """Pass on all unread events. Returns their number."""
        return libbpf.ring_consume(self._pointer)

    def close(self) -> None:
        """Stop reading; unread records stay for the next reader."""
        libbpf.ring_close(self._pointer)

    def _sample(self, _: int, data: int, size: int) -> int:
        self._receive(ctypes.string_at(data, size))
        return 0
