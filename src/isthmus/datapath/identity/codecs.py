"""Struct codecs of the maps of signed SYNs (bpf/sign_maps.h)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from isthmus import bounds
from isthmus.datapath.core.shapes import Shape, address
from isthmus.model.signing import RefusalReason

REASONS: Final[Mapping[int, RefusalReason]] = {
    1: "unsigned",
    2: "bad-mac",
    3: "unknown-key",
    4: "not-allowed",
    5: "spoofed",
    6: "unreadable",
    7: "not-allowed-by-address",
    8: "unknown-address",
}
"""Names by value of enum refusal_reason."""
SIGNS, GUARDS, HOST, DATAGRAMS = 1, 2, 4, 8
"""Bits of enum signing_flag."""
AUDIT, ADDRESS = 1, 2
"""Bits of enum guard_flag."""
ANY_PORT: Final = 0
ANY_ADDRESS: Final = bytes(16)
TCP: Final = 6

SIGNING = Shape("signing", flags="I", identity_shift="I", began="Q", key_number="I", reserved="I")
SOURCE_KEY = Shape("source_key", ifindex="I", address="16s")
SOURCE = Shape("source", identity="I", ifindex="I")
HOST_CALLER = Shape("host_caller", cgroup="Q", identity="I", reserved="I")
SIGNED_TO_KEY = Shape("signed_to_key", address="16s")
SIGNED_TO = Shape("signed_to", address="16s", cluster="I")
CALLER_ADDRESS_KEY = Shape("caller_address_key", address="16s")
CALLER_ADDRESS = Shape("caller_address", address="16s", identity="I")
EPOCH_KEY_ID = Shape("epoch_key_id", cluster="I", number="I")
EPOCH_KEY = Shape("epoch_key", key="16s", cluster="I", number="I")
GUARDED_KEY = Shape("guarded_key", ifindex="I", port="2s", protocol="B", reserved="B")
GUARDED = Shape("guarded", policy="I", flags="I", ifindex="I", port="2s", protocol="B", reserved="B")
RANGE_KEY = Shape("range_key", prefix="I", address="16s")
ALLOWED_KEY = Shape("allowed_key", policy="I", identity="I")
REFUSAL_KEY = Shape("refusal_key", policy="I", identity="I", reason="I")
REFUSAL = Shape("refusal", count="Q", last="Q")
POLICY = Shape("export_policy", name="320s")


def range_key(cidr: str) -> bytes:
    """Key of a range with a prefix length; IPv4 as IPv4-mapped IPv6. Raises OutOfBounds if the text is no range."""
    network = bounds.network(cidr)
    bits = network.prefixlen + (96 if network.version == 4 else 0)
    return RANGE_KEY.pack(bits, address(str(network.network_address)))
