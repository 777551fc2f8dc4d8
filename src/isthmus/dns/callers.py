"""Which namespace a caller is of: the node's pods by address, so that what callers share is shared by namespace."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Final

from isthmus.model.services import Pod
from isthmus.statedb import Change

OTHERS: Final = ""
"""What callers share that are no pod of the node, or whose address pods of several namespaces have (the node's)."""


class Namespaces:
    """The namespaces of the node's pods."""

    def __init__(self) -> None:
        self._by_address: defaultdict[str, dict[str, str]] = defaultdict(dict)
        """Address → pod → namespace."""

    def __repr__(self) -> str:
        return f"<Namespaces of {len(self._by_address)} addresses>"

    def of_caller(self, address: str) -> str:
        """The namespace of a caller."""
        pods = self._by_address.get(address)
        if pods is None:
            return OTHERS
        namespaces = set(pods.values())
        return namespaces.pop() if len(namespaces) == 1 else OTHERS

    def follow(self, changes: Iterable[Change[Pod]]) -> None:
        """Take in changed pods."""
        for _, old, new in changes:
            for row in (each for each in (old, new) if each is not None):
                for address in row.addresses:
                    if row is new:
                        self._by_address[address][row.name] = row.name.partition("/")[0]
                    elif (pods := self._by_address.get(address)) is not None and pods.pop(row.name, "") and not pods:
                        del self._by_address[address]
