"""Struct codecs of the maps of names, as in bpf/names_maps.h."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.shapes import Shape

MAX_KEY: Final = 128
"""Bytes of a name that the kernel can look up; longer ones go to the server."""
MAX_SUFFIX: Final = 64
"""Bytes of the zone's name, and of the cluster's domain."""
MAX_AUTHORITY: Final = 256
MAX_RECORDS: Final = 448
"""Bytes of a name's address records: 28 of IPv4 or 16 of IPv6, about as many as fit into an answer of 512 bytes."""

BIG_A, BIG_AAAA, OTHERS, PTR_ALONE, NATIVE = 1, 2, 4, 8, 16
"""enum name_flag"""
ON, COMPLETE, AT_TC = 1, 2, 4
"""enum names_flag"""
ASKED, OWN = 1, 2
"""enum dns_server_role"""
KINDS: Final = ("other", "A", "AAAA", "SRV")
RESULTS: Final = ("passed", "answered", "nodata", "nxdomain", "expanded", "steered", "dropped", "limited")
RESULT_SLOTS: Final = 8

SERVER_KEY = Shape("dns_server_key", address="16s", port="2s", reserved="H")
NAME_KEY = Shape("", name=f"{MAX_KEY}s")
NAME = Shape("name", hash="Q", flags="B", a="B", aaaa="B", reserved="5s", records=f"{MAX_RECORDS}s")
CONFIG = Shape(
    "names_config",
    deadline="Q",
    host="Q",
    flags="I",
    authority_size="H",
    zone_labels="B",
    zone_size="B",
    cluster_labels="B",
    cluster_size="B",
    expanded_size="B",
    reserved="B",
    interval="I",
    zone=f"{MAX_SUFFIX}s",
    cluster=f"{MAX_SUFFIX}s",
    expanded=f"{MAX_SUFFIX}s",
    authority=f"{MAX_AUTHORITY}s",
)


def name_hash(name: bytes) -> int:
    """FNV-1a, 64 bits, as bpf/names.h computes it over the bytes of a question's name."""
    value = 0xCBF29CE484222325
    for byte in name:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value
