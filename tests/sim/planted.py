"""Plants five defects, chosen before the simulator ran on any of them, and searches a story that finds each.

    PYTHONHASHSEED=0 python tests/sim/planted.py [STORIES]

For each defect stories of the seeds 1, 2, … run until an invariant breaks, at most STORIES (10) of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from isthmus.clusterset.peers.gate import GatedStore
from isthmus.clusterset.publishing.owned_keys import OwnedKeys
from isthmus.clusterset.publishing.publisher import Publisher
from isthmus.mcs import exports, merge, merged, records
from isthmus_sim.__main__ import story
from isthmus_sim.run import run


@contextmanager
def newest_export_wins() -> Iterator[None]:
    """``mcs.merge`` ranks exports the wrong way round."""
    original = merge.merge

    def reversed_merge(found: Any, families: Any = "oldest") -> Any:
        ranked = sorted(found, key=lambda export: (export.created, export.cluster), reverse=True)

        def keep(items: Any, *, key: Any) -> Any:
            return list(items)

        with patch.object(merge, "sorted", keep, create=True):
            return original(ranked, families)

    with patch.object(merged, "merge", reversed_merge):
        yield


@contextmanager
def ports_agree_by_name() -> Iterator[None]:
    """``mcs.exports.agreed_ports`` forgets numbers and protocols."""

    def by_name(export: Any, merged: Any) -> frozenset[str]:
        return frozenset(port.name for port in export.ports) & {port.name for port in merged.ports}

    with patch.object(exports, "agreed_ports", by_name), patch.object(records, "agreed_ports", by_name):
        yield


@contextmanager
def nothing_is_pruned() -> Iterator[None]:
    """The publisher leaves records of an earlier process in the store."""
    original = OwnedKeys.settle

    async def settle(self: OwnedKeys, *, prune: bool) -> int:
        return await original(self, prune=False)

    with patch.object(OwnedKeys, "settle", settle):
        yield


@contextmanager
def lists_are_not_read_again() -> Iterator[None]:
    """After a break the watch of a peer's records continues from a revision that may be another store's."""
    original = GatedStore.watch

    async def watch(self: GatedStore, revision: str) -> Any:
        self._listed = True
        async for batch in original(self, revision):
            yield batch

    with patch.object(GatedStore, "watch", watch):
        yield


@contextmanager
def trouble_is_hidden() -> Iterator[None]:
    """The publisher reports no problem when it cannot publish."""
    with patch.object(Publisher, "problems", lambda self: ()):
        yield


DEFECTS: tuple[Callable[[], Any], ...] = (
    newest_export_wins,
    ports_agree_by_name,
    nothing_is_pruned,
    lists_are_not_read_again,
    trouble_is_hidden,
)


def main(most: int) -> int:
    """Return the number of defects that nothing found."""
    missed = 0
    for defect in DEFECTS:
        with defect():
            results = (run(seed, story(seed)) for seed in range(1, most + 1))
            found = next((each for each in results if each.broken), None)
        if found is not None and (by_itself := run(found.seed, found.events).broken):
            print(f"without any of them seed {found.seed} breaks {by_itself[0]}")
        missed += found is None
        what = f"seed {found.seed}: {found.broken[0]}" if found is not None else f"not found in {most} stories"
        print(f"{defect.__name__}: {what}", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10))
