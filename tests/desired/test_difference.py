"""What an object has to change to hold what is wanted of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.desired.difference import difference
from isthmus.mcs import KINDS

SERVICE, IMPORT, EXPORT = KINDS["Service"], KINDS["ServiceImport"], KINDS["ServiceExport"]


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7386, section 2."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge_patch(merged.get(key), value)
    return merged


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"metadata": {"labels": {"a": "1"}}}, {"metadata": {"labels": {"a": "1", "theirs": "2"}}}),
        ({"spec": {"ips": []}}, {"spec": {}}),
        ({"spec": {"message": ""}}, {}),
        ({"spec": {"ports": [{"port": 80}]}}, {"spec": {"ports": [{"port": 80, "targetPort": 8080}]}}),
        ({"spec": {"ports": [{"port": 80}, {"port": 81}]}}, {"spec": {"ports": [{"port": 81}, {"port": 80}]}}),
        ({"metadata": {"name": "x", "uid": "1"}}, {"metadata": {"name": "x", "uid": "2"}}),
        ({"spec": {"type": "ClusterIP"}}, {"spec": {"type": "ClusterIP", "externalIPs": ["192.0.2.1"]}}),
    ],
    ids=["others' labels", "empty list", "empty text", "server's default", "order", "identity", "others' fields"],
)
def test_what_is_as_wanted_has_no_difference(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    assert difference(wanted, found, SERVICE) == {}


@pytest.mark.parametrize(
    ("wanted", "found", "patch"),
    [
        ({"metadata": {"labels": {"a": "1"}}}, {}, {"metadata": {"labels": {"a": "1"}}}),
        ({"spec": {"type": "ClusterIP"}}, {"spec": {"type": "NodePort"}}, {"spec": {"type": "ClusterIP"}}),
        (
            {"spec": {"ports": [{"port": 80}]}},
            {"spec": {"ports": [{"port": 80}, {"port": 81}]}},
            {"spec": {"ports": [{"port": 80}]}},
        ),
        ({"spec": {}}, {"spec": {"selector": {"app": "evil"}}}, {"spec": {"selector": None}}),
        (
            {"spec": {"ipFamilies": ["IPv6", "IPv4"]}},
            {"spec": {"ipFamilies": ["IPv4", "IPv6"]}},
            {"spec": {"ipFamilies": ["IPv6", "IPv4"]}},
        ),
        ({"spec": {"selector": {}}}, {"spec": {"selector": {"app": "evil"}}}, {"spec": {"selector": None}}),
        ({"endpoints": [{"ready": False}]}, {"endpoints": [{}]}, {"endpoints": [{"ready": False}]}),
        (
            {"spec": {"ports": [{"port": 80}]}},
            {"spec": {"ports": [{"port": 80, "targetPort": 80, "name": "http"}]}},
            {"spec": {"ports": [{"port": 80}]}},
        ),
        (
            {"spec": {"ports": [{"port": 80}, {"port": 81}]}},
            {"spec": {"ports": [{"port": 81, "appProtocol": "http"}, {"port": 80}]}},
            {"spec": {"ports": [{"port": 80}, {"port": 81}]}},
        ),
        (
            {"endpoints": [{"addresses": ["10.1.0.1"]}]},
            {"endpoints": [{"addresses": ["10.1.0.1"], "hostname": "db-0"}]},
            {"endpoints": [{"addresses": ["10.1.0.1"]}]},
        ),
    ],
    ids=[
        "missing label",
        "scalar",
        "item too many",
        "field that must be absent",
        "order of plain values",
        "field that must be absent, wanted empty",
        "false",
        "name of a port that has none",
        "protocol of a port that has none",
        "hostname of an endpoint that has none",
    ],
)
def test_what_differs_is_the_patch(wanted: dict[str, Any], found: dict[str, Any], patch: dict[str, Any]) -> None:
    assert difference(wanted, found, SERVICE) == patch


def managed(*keys: str, by: str) -> dict[str, Any]:
    """An entry of managedFields: labels of these keys."""
    fields: dict[str, Any] = {"f:metadata": {"f:labels": {".": {}, **{f"f:{key}": {} for key in keys}}}}
    return {"manager": by, "operation": "Apply", "fieldsV1": fields}


def test_a_label_that_we_set_and_want_no_more_goes_and_others_stay() -> None:
    labels = {"team": "red", "tier": "1", "theirs": "yes"}
    owners = [managed("team", "tier", by="isthmus-operator"), managed("theirs", by="kubectl")]
    found = {"metadata": {"labels": labels, "managedFields": owners}}
    assert difference({"metadata": {"labels": {"team": "red"}}}, found, IMPORT) == {
        "metadata": {"labels": {"tier": None}}
    }
    assert difference({"metadata": {}}, found, IMPORT) == {"metadata": {"labels": {"team": None, "tier": None}}}


def condition(kind: str, status: str = "True", **fields: Any) -> dict[str, Any]:
    return {"type": kind, "status": status, **fields}


class TestConditions:
    def test_others_conditions_stay_and_times_are_the_servers(self) -> None:
        wanted = {"status": {"conditions": [condition("Valid")]}}
        found = {"status": {"conditions": [condition("Theirs"), condition("Valid", lastTransitionTime="2026")]}}
        assert difference(wanted, found, EXPORT) == {}

    def test_one_of_ours_that_is_not_wanted_goes(self) -> None:
        wanted = {"status": {"conditions": [condition("Ready")]}}
        found = {"status": {"conditions": [condition("Ready"), condition("Stale"), condition("Theirs")]}}
        patch = difference(wanted, found, IMPORT)
        assert patch == {"status": {"conditions": [condition("Ready"), condition("Theirs")]}}

    def test_a_cluster_that_somebody_added_goes(self) -> None:
        wanted = {"status": {"clusters": [{"cluster": "c2"}]}}
        found = {"status": {"clusters": [{"cluster": "c2"}, {"cluster": "nowhere"}]}}
        assert difference(wanted, found, IMPORT) == wanted


PLAIN = st.one_of(st.text(max_size=3), st.integers(0, 3), st.booleans())
ITEMS = st.lists(st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=3), max_size=3)
MAPS = st.dictionaries(st.sampled_from("abc"), PLAIN, max_size=3)
SPEC = st.fixed_dictionaries({}, optional={"type": PLAIN, "ports": ITEMS, "nested": MAPS, "selector": MAPS})
"""Fields have one type each, as the structs that objects are read into see to."""


@given(SPEC, SPEC)
def test_what_is_patched_is_as_wanted(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    patch = difference({"spec": wanted}, {"spec": found}, SERVICE)
    patched = merge_patch({"spec": found}, patch)
    assert difference({"spec": wanted}, patched, SERVICE) == {}
    if not wanted.get("selector"):
        assert not patched["spec"].get("selector")


@given(SPEC)
def test_nothing_differs_from_itself(spec: dict[str, Any]) -> None:
    found = msgspec.json.decode(msgspec.json.encode({"spec": spec}))
    assert difference({"spec": spec}, found, SERVICE) == {}
