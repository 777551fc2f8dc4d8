"""The maps as bytes: those of the kernel, and dicts with the same interface for code that needs no kernel.

Both return failures as sentences by position, and continue with the other entries: one never affects another.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import repeat
from pathlib import Path
from typing import Protocol

from isthmus.datapath.core import libbpf
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.shapes import ID

CHUNK = 4096
_RETRIES = 3


class Maps(Protocol):
    """Maps by name. Entries are written in the given order."""

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write entries. Returns failures by position."""
        ...

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete entries; a missing one is no failure. Returns failures by position."""
        ...

    def items(self, name: str) -> Iterable[tuple[bytes, bytes]]:
        """Every entry."""
        ...


class KernelMaps:
    """Maps of the kernel, read and written in batches.

    ``pinned`` is the directory in which the next process looks for them. ``superseded`` returns why they must not be
    pinned there again, otherwise an empty string. ``numbered`` names the arrays with empty entries
    (``manifest.Map.numbered``).
    """

    def __init__(
        self,
        descriptors: Mapping[str, int],
        *,
        pinned: Path,
        superseded: Callable[[], str] = lambda: "",
        numbered: Collection[str] = (),
    ) -> None:
        self._fds = dict(descriptors)
        self._empty = {name: bytes(libbpf.value_size(self._fds[name])) for name in numbered}
        """The all-zero value that means "empty", by array map."""
        self._pinned = pinned
        self._superseded = superseded

    def fd(self, name: str) -> int:
        """Descriptor of a map; owned by this object, not the caller."""
        return self._fds[name]

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write entries. Returns failures by position."""
        fd = self._fds[name]
        if reason := self._lost(name):
            return dict.fromkeys(range(len(items)), reason)
        failures: dict[int, str] = {}
        position = tries = 0
        while position < len(items):
            done, code = libbpf.update_batch(fd, items[position : position + CHUNK])
            position += done
            if not code:
                continue
            # The allocator of a hash map refills asynchronously: memory that it lacks now is available in a moment.
            tries = tries + 1 if not done else 1
            if code == errno.ENOMEM and tries <= _RETRIES:
                continue
            failures[position] = self._sentence(name, code)
            position, tries = position + 1, 0
        return failures

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete entries; a missing one is no failure. Returns failures by position."""
        if name in self._empty:
            return self._clear(name, keys)
        fd = self._fds[name]
        failures: dict[int, str] = {}
        position = 0
        while position < len(keys):
            done, code = libbpf.delete_batch(fd, keys[position : position + CHUNK])
            position += done
            if not code:
                continue
            if code != errno.ENOENT:
                failures[position] = self._sentence(name, code)
            position += 1
        return failures

    def items(self, name: str) -> Iterable[tuple[bytes, bytes]]:
        """Every entry."""
        return libbpf.items(self._fds[name], empty=self._empty.get(name))

    def _clear(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Empty entries of an array; a number beyond its size is no failure."""
        failures = self.put(name, [(key, self._empty[name]) for key in keys])
        entries = libbpf.map_info(self._fds[name])[2] if failures else 0
        return {position: reason for position, reason in failures.items() if ID.unpack(keys[position])[0] < entries}

    def repair(self) -> list[str]:
        """Pin maps again whose pins were deleted. Returns their names."""
        lost = [name for name in self._fds if not (self._pinned / name).exists()]
        for name in lost:
            if reason := self._lost(name):
                raise DatapathError(reason)
        return lost

    def close(self) -> None:
        """Close the descriptors; pinned maps stay."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _lost(self, name: str) -> str:
        """Pin a map again if its pin was deleted, so that its entries outlive this process. Returns why that failed."""
        path = self._pinned / name
        if path.exists():
            return ""
        if reason := self._superseded():
            return reason
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            libbpf.pin(self._fds[name], path)
        except OSError as error:
            return f"map {name} was deleted from {path.parent} and cannot be pinned there again: {error.strerror}"
        return ""

    def _sentence(self, name: str, code: int) -> str:
        match code:
            case errno.E2BIG:
                entries = libbpf.map_info(self._fds[name])[2] - (name in self._empty)  # no id is 0
                return f"map {name} is full ({entries} entries): raise datapath.max_entries"
            case errno.ENOMEM:
                return f"map {name}: the kernel has no memory for another entry"
            case errno.EPERM | errno.EACCES:
                return f"map {name} may not be written: the agent needs CAP_BPF and CAP_NET_ADMIN"
            case _:
                return f"map {name}: {os.strerror(code)}"


class DictMaps:
    """Maps in dicts."""

    def __init__(self) -> None:
        self.maps: defaultdict[str, dict[bytes, bytes]] = defaultdict(dict)

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write entries."""
        self.maps[name].update(items)
        return {}

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete entries."""
        deque(map(self.maps[name].pop, keys, repeat(None)), maxlen=0)
        return {}

    def items(self, name: str) -> Iterable[tuple[bytes, bytes]]:
        """Every entry."""
        return list(self.maps[name].items())
