"""The maps as bytes: those of the kernel, and a dict with the same face for what needs no kernel.

Both give failures by position, each a sentence, and go on with the rest: one entry never costs another.
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
    """Writes keep the order they are given in."""

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write entries; the failures by position."""
        ...

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete entries; one that is not there is no failure."""
        ...

    def items(self, name: str) -> Iterable[tuple[bytes, bytes]]:
        """Every entry."""
        ...


class KernelMaps:
    """Maps of the kernel, by batches.

    ``pinned``: the directory where a next process will look for them. ``given_up``: why they are not to be kept there.
    ``numbered``: names of the arrays whose entries of zeros are none (``manifest.Map.numbered``).
    """

    def __init__(
        self,
        descriptors: Mapping[str, int],
        *,
        pinned: Path,
        given_up: Callable[[], str] = lambda: "",
        numbered: Collection[str] = (),
    ) -> None:
        self._fds = dict(descriptors)
        self._none = {name: bytes(libbpf.value_size(self._fds[name])) for name in numbered}
        """What an entry is that is none, of each array by number."""
        self._pinned = pinned
        self._given_up = given_up

    def fd(self, name: str) -> int:
        """The descriptor of a map; ours, not the caller's."""
        return self._fds[name]

    def put(self, name: str, items: Sequence[tuple[bytes, bytes]]) -> Mapping[int, str]:
        """Write entries; the failures by position."""
        fd = self._fds[name]
        if why := self._lost(name):
            return dict.fromkeys(range(len(items)), why)
        failures: dict[int, str] = {}
        at = tries = 0
        while at < len(items):
            done, code = libbpf.update_batch(fd, items[at : at + CHUNK])
            at += done
            if not code:
                continue
            # The allocator of a hash map refills behind our back: what it has not got now it has in a moment.
            tries = tries + 1 if not done else 1
            if code == errno.ENOMEM and tries <= _RETRIES:
                continue
            failures[at] = self._sentence(name, code)
            at, tries = at + 1, 0
        return failures

    def drop(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Delete entries; one that is not there is no failure."""
        if name in self._none:
            return self._clear(name, keys)
        fd = self._fds[name]
        failures: dict[int, str] = {}
        at = 0
        while at < len(keys):
            done, code = libbpf.delete_batch(fd, keys[at : at + CHUNK])
            at += done
            if not code:
                continue
            if code != errno.ENOENT:
                failures[at] = self._sentence(name, code)
            at += 1
        return failures

    def items(self, name: str) -> Iterable[tuple[bytes, bytes]]:
        """Every entry."""
        return libbpf.items(self._fds[name], none=self._none.get(name))

    def _clear(self, name: str, keys: Sequence[bytes]) -> Mapping[int, str]:
        """Make entries of an array none; there is nothing of a number that it has no room for."""
        failures = self.put(name, [(key, self._none[name]) for key in keys])
        entries = libbpf.map_info(self._fds[name])[2] if failures else 0
        return {position: why for position, why in failures.items() if ID.unpack(keys[position])[0] < entries}

    def repair(self) -> list[str]:
        """Pin again the maps whose pins were deleted; returns their names."""
        lost = [name for name in self._fds if not (self._pinned / name).exists()]
        for name in lost:
            if why := self._lost(name):
                raise DatapathError(why)
        return lost

    def close(self) -> None:
        """Give the descriptors back; the maps stay where they are pinned."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def _lost(self, name: str) -> str:
        """Pin a map again whose pin was deleted: else its entries end with this process. Returns why that failed."""
        path = self._pinned / name
        if path.exists():
            return ""
        if why := self._given_up():
            return why
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            libbpf.pin(self._fds[name], path)
        except OSError as error:
            return f"map {name} was deleted from {path.parent} and cannot be pinned there again: {error.strerror}"
        return ""

    def _sentence(self, name: str, code: int) -> str:
        match code:
            case errno.E2BIG:
                entries = libbpf.map_info(self._fds[name])[2] - (name in self._none)  # no id is 0
                return f"map {name} is full ({entries} entries): raise datapath.max_entries"
            case errno.ENOMEM:
                return f"map {name}: the kernel has no memory for another entry"
            case errno.EPERM | errno.EACCES:
                return f"map {name} may not be written: the agent needs CAP_BPF and CAP_NET_ADMIN"
            case _:
                return f"map {name}: {os.strerror(code)}"


class DictMaps:
    """Maps of a dict."""

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
