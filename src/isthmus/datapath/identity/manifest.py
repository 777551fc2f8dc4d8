"""The maps of signed SYNs. Keys are shown to nobody."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.manifest import Map, Names, Row, per_entry, times
from isthmus.datapath.core.shapes import CGROUP, ID, address_text
from isthmus.datapath.core.shapes import text as name_text
from isthmus.datapath.identity import codecs


def _source(_: Names, key: bytes, value: bytes) -> Row:
    raw = codecs.SOURCE_KEY.named(key)
    return {
        "interface": raw["ifindex"],
        "address": "" if raw["address"] == codecs.ANY_ADDRESS else address_text(raw["address"]),
        "identity": codecs.SOURCE.named(value)["identity"],
    }


def _host_caller(_: Names, __: bytes, value: bytes) -> Row:
    raw = codecs.HOST_CALLER.named(value)
    return {"cgroup": raw["cgroup"], "identity": raw["identity"]}


def _signed_to(names: Names, _: bytes, value: bytes) -> Row:
    raw = codecs.SIGNED_TO.named(value)
    return {"address": address_text(raw["address"]), "cluster_id": raw["cluster"]}


def _guarded(_: Names, __: bytes, value: bytes) -> Row:
    raw = codecs.GUARDED.named(value)
    return {
        "interface": raw["ifindex"],
        "port": int.from_bytes(raw["port"], "big"),
        "policy_id": raw["policy"],
        "audit": bool(raw["flags"] & codecs.AUDIT),
        "by_address": bool(raw["flags"] & codecs.ADDRESS),
    }


def _caller_address(_: Names, __: bytes, value: bytes) -> Row:
    raw = codecs.CALLER_ADDRESS.named(value)
    return {"address": address_text(raw["address"]), "identity": raw["identity"]}


def _range(_: Names, key: bytes, __: bytes) -> Row:
    raw = codecs.RANGE_KEY.named(key)
    return {"address": address_text(raw["address"]), "bits_of_128": raw["prefix"]}


def _allowed(_: Names, key: bytes, __: bytes) -> Row:
    policy, identity = codecs.ALLOWED_KEY.unpack(key)
    return {"policy_id": policy, "identity": identity}


def _policy(_: Names, key: bytes, value: bytes) -> Row:
    return {"policy_id": ID.unpack(key)[0], "name": name_text(codecs.POLICY.unpack(value)[0])}


def _refusal(_: Names, key: bytes, value: bytes) -> Row:
    policy, identity, reason = codecs.REFUSAL_KEY.unpack(key)
    count, last = codecs.REFUSAL.unpack(value)
    return {
        "policy_id": policy,
        "identity": identity,
        "reason": codecs.REASONS.get(reason, reason),
        "count": count,
        "used": last,
    }


MAPS: Final = (
    Map(name="policies", value=codecs.POLICY, entries=times(1), writer="agent", show=per_entry(_policy)),
    Map(name="own_ranges", key=codecs.RANGE_KEY, writer="agent", show=per_entry(_range)),
    Map(name="allowed", key=codecs.ALLOWED_KEY, entries=times(1), writer="agent", show=per_entry(_allowed)),
    Map(
        name="caller_addresses",
        key=codecs.CALLER_ADDRESS_KEY,
        value=codecs.CALLER_ADDRESS,
        writer="agent",
        show=per_entry(_caller_address),
    ),
    Map(name="verify_keys", key=codecs.EPOCH_KEY_ID, value=codecs.EPOCH_KEY, writer="agent"),
    Map(
        name="guarded",
        key=codecs.GUARDED_KEY,
        value=codecs.GUARDED,
        entries=times(1),
        writer="agent",
        show=per_entry(_guarded),
    ),
    Map(name="sign_keys", key=codecs.EPOCH_KEY_ID, value=codecs.EPOCH_KEY, writer="agent"),
    Map(
        name="host_callers",
        key=CGROUP,
        value=codecs.HOST_CALLER,
        writer="agent",
        show=per_entry(_host_caller),
    ),
    Map(name="host_sockets", writer="kernel", opaque=True),
    Map(name="sources", key=codecs.SOURCE_KEY, value=codecs.SOURCE, writer="agent", show=per_entry(_source)),
    Map(
        name="signed_to",
        key=codecs.SIGNED_TO_KEY,
        value=codecs.SIGNED_TO,
        entries=times(1),
        writer="agent",
        show=per_entry(_signed_to),
    ),
    Map(name="signing", value=codecs.SIGNING, writer="agent"),
    Map(name="refusals", key=codecs.REFUSAL_KEY, value=codecs.REFUSAL, writer="kernel", show=per_entry(_refusal)),
)
