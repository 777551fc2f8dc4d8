"""Server-side apply: who owns which field, as functions and over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from clusters.apiserver_world import Client
from hypothesis import given
from hypothesis import strategies as st

from isthmus_lab.apiserver import fields, schema
from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.fields import Manager

ALICE = Manager("alice", "Apply", "v1")
BOB = Manager("bob", "Apply", "v1")
CAROL = Manager("carol", "Update", "v1")
LISTS = schema.SERVICE


def apply(live: Any, body: Any, who: Manager, *, force: bool = False) -> Any:
    return fields.applied(live, body, LISTS, who, force=force)


def content(obj: Any) -> Any:
    rest = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {key: value for key, value in obj.items() if key != "metadata"} | ({"metadata": rest} if rest else {})


def test_what_a_manager_no_longer_applies_goes_away() -> None:
    live = apply(None, {"spec": {"a": 1, "b": {"c": 2}}}, ALICE)
    assert content(apply(live, {"spec": {"a": 1}}, ALICE)) == {"spec": {"a": 1}}


def test_what_another_also_applies_stays() -> None:
    live = apply(None, {"spec": {"a": 1}}, ALICE)
    live = apply(live, {"spec": {"a": 1, "b": 2}}, BOB)
    live = apply(live, {"spec": {}}, ALICE)
    assert content(live) == {"spec": {"a": 1, "b": 2}}


def test_what_no_manager_applied_stays() -> None:
    live = apply({"metadata": {}, "spec": {"theirs": 1}}, {"spec": {"a": 1}}, ALICE)
    assert content(apply(live, {"spec": {"b": 1}}, ALICE)) == {"spec": {"theirs": 1, "b": 1}}


def test_two_who_disagree_are_in_conflict_until_one_forces() -> None:
    live = apply(None, {"spec": {"a": 1}}, ALICE)
    with pytest.raises(ApiError, match=r'conflict with "alice": .spec.a') as caught:
        apply(live, {"spec": {"a": 2}}, BOB)
    assert caught.value.code == 409
    live = apply(live, {"spec": {"a": 2}}, BOB, force=True)
    assert content(live) == {"spec": {"a": 2}}
    assert fields.owners(live) == {BOB: frozenset({("f:spec", "f:a")})}


def test_an_update_takes_the_fields_it_changes() -> None:
    live = apply(None, {"spec": {"a": 1, "b": 2}}, ALICE)
    live = fields.updated(live, live | {"spec": {"a": 1, "b": 3}}, LISTS, CAROL)
    assert fields.owners(live) == {
        ALICE: frozenset({("f:spec", "f:a")}),
        CAROL: frozenset({("f:spec", "f:b")}),
    }
    with pytest.raises(ApiError):
        apply(live, {"spec": {"a": 1, "b": 2}}, ALICE)


def test_elements_of_a_map_are_owned_one_by_one() -> None:
    live = apply(None, {"spec": {"ports": [{"port": 80, "name": "a"}]}}, ALICE)
    live = apply(live, {"spec": {"ports": [{"port": 81, "name": "b"}]}}, BOB)
    assert [each["port"] for each in live["spec"]["ports"]] == [80, 81]
    live = apply(live, {"spec": {}}, ALICE)
    assert live["spec"]["ports"] == [{"port": 81, "name": "b"}]


def test_ownership_is_written_as_kubernetes_writes_it() -> None:
    live = apply(
        None, {"metadata": {"labels": {"a": "b"}, "finalizers": ["x"]}, "spec": {"ports": [{"port": 80}]}}, ALICE
    )
    entry = live["metadata"]["managedFields"][0]
    assert (entry["manager"], entry["operation"], entry["fieldsType"]) == ("alice", "Apply", "FieldsV1")
    assert entry["fieldsV1"] == {
        "f:metadata": {"f:labels": {"f:a": {}}, "f:finalizers": {'v:"x"': {}}},
        "f:spec": {"f:ports": {'k:{"port":80,"protocol":"TCP"}': {".": {}, "f:port": {}}}},
    }


def test_applying_the_same_again_changes_nothing_at_all() -> None:
    live = apply(None, {"spec": {"ports": [{"port": 80}], "a": {}}}, ALICE)
    assert apply(live, {"spec": {"ports": [{"port": 80}], "a": {}}}, ALICE) == live


leaves = st.one_of(st.integers(0, 3), st.text("xy", max_size=2), st.lists(st.integers(0, 2), max_size=2))
bodies = st.dictionaries(
    st.sampled_from("abc"), st.recursive(leaves, lambda s: st.dictionaries(st.sampled_from("abc"), s, max_size=3))
)


@given(st.lists(bodies, min_size=1, max_size=4))
def test_a_single_manager_always_gets_exactly_what_it_applied_last(applied: list[Any]) -> None:
    live: Any = None
    for body in applied:
        live = apply(live, {"spec": body}, ALICE, force=True)
    leaf_paths = fields.flatten({"spec": applied[-1]}, LISTS)
    assert {path: fields.flatten(live, LISTS).get(path) for path in leaf_paths} == leaf_paths


async def test_apply_creates_changes_and_drops_over_http(client: Client) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": {"l": "1"}}}
    made = await client.apply("configmaps/a", body | {"data": {"x": "1", "y": "2"}}, manager="alice")
    assert made.status == 201
    same = await client.apply("configmaps/a", body | {"data": {"x": "1", "y": "2"}}, manager="alice")
    assert (same.status, same.revision) == (200, made.revision)
    less = await client.apply("configmaps/a", body | {"data": {"x": "1"}}, manager="alice")
    assert less.body["data"] == {"x": "1"}
    other = await client.apply("configmaps/a", body | {"data": {"x": "9"}}, manager="bob")
    assert (other.status, other.reason) == (409, "Conflict")
    forced = await client.apply("configmaps/a", body | {"data": {"x": "9"}}, manager="bob", force=True)
    assert forced.body["data"] == {"x": "9"}


async def test_apply_to_the_status_touches_nothing_else(client: Client) -> None:
    body = {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport", "metadata": {"name": "a"}}
    spec = {"type": "ClusterSetIP", "ports": [{"port": 80}]}
    await client.apply("serviceimports/a", body | {"spec": spec, "status": {"no": "no"}}, manager="op")
    status = {"clusters": [{"cluster": "c1"}, {"cluster": "c2"}]}
    await client.apply("serviceimports/a/status", body | {"status": status}, manager="op")
    again = await client.apply("serviceimports/a", body | {"spec": spec}, manager="op")
    assert again.body["status"] == status
    fewer = {"clusters": [{"cluster": "c2"}]}
    written = await client.apply("serviceimports/a/status", body | {"status": fewer}, manager="op")
    assert written.body["status"] == fewer
    assert written.body["spec"]["ports"] == [{"port": 80, "protocol": "TCP"}]
    assert written.body["metadata"]["generation"] == 1
