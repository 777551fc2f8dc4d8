"""Questions that pods asked, by kind and result, as the kernel counted them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from isthmus.datapath.core import libbpf
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.names.codecs import KINDS, RESULT_SLOTS, RESULTS


def questions(fd: int) -> list[dict[str, Any]]:
    """One row for each kind and result that occurred. ``fd`` is the descriptor of ``name_counters``."""
    cpus = libbpf.possible_cpus()
    rows = []
    for kind_at, kind in enumerate(KINDS):
        for result_at, result in enumerate(RESULTS):
            raw = libbpf.lookup(fd, ID.pack(kind_at * RESULT_SLOTS + result_at), 8 * cpus)
            if count := sum(struct.unpack(f"={cpus}Q", raw)):
                rows.append({"kind": kind, "result": result, "answerer": ANSWERERS[result], "questions": count})
    return rows


ANSWERERS: Mapping[str, str] = {
    "passed": "not ours",
    "answered": "kernel",
    "nodata": "kernel",
    "nxdomain": "kernel",
    "expanded": "kernel",
    "steered": "server",
    "dropped": "nobody",
    "limited": "nobody",
}
"""Answerer of a question by its result."""
