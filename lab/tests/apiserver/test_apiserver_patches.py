"""Patches, as functions."""

from __future__ import annotations

import pytest

from isthmus_lab.apiserver import patches, schema
from isthmus_lab.apiserver.errors import ApiError

POD = {
    "spec": {
        "containers": [
            {"name": "a", "image": "one", "env": [{"name": "X", "value": "1"}], "ports": [{"containerPort": 80}]},
            {"name": "b", "image": "two"},
        ]
    }
}


def test_a_merge_patch_removes_by_null_and_replaces_lists() -> None:
    assert patches.merge({"a": [1, 2], "b": {"c": 1, "d": 2}}, {"a": [3], "b": {"c": None}}) == {
        "a": [3],
        "b": {"d": 2},
    }


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        ({"op": "add", "path": "/list/1", "value": 9}, {"list": [1, 9, 2], "a": {"b/c": 1}}),
        ({"op": "add", "path": "/list/-", "value": 9}, {"list": [1, 2, 9], "a": {"b/c": 1}}),
        ({"op": "replace", "path": "/list/0", "value": 9}, {"list": [9, 2], "a": {"b/c": 1}}),
        ({"op": "remove", "path": "/a/b~1c"}, {"list": [1, 2], "a": {}}),
        ({"op": "move", "from": "/a", "path": "/c"}, {"list": [1, 2], "c": {"b/c": 1}}),
        ({"op": "copy", "from": "/a", "path": "/c"}, {"list": [1, 2], "a": {"b/c": 1}, "c": {"b/c": 1}}),
        ({"op": "test", "path": "/list", "value": [1, 2]}, {"list": [1, 2], "a": {"b/c": 1}}),
    ],
)
def test_a_json_patch_does_each_operation_and_leaves_the_original(
    operation: dict[str, object], expected: dict[str, object]
) -> None:
    before = {"list": [1, 2], "a": {"b/c": 1}}
    assert patches.json_patch(before, [operation]) == expected
    assert before == {"list": [1, 2], "a": {"b/c": 1}}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "remove", "path": "/nothing"},
        {"op": "test", "path": "/a", "value": 2},
        {"op": "add", "path": "/a/b", "value": 1},
        {"op": "dance", "path": "/a"},
        {"op": "add", "path": "a", "value": 1},
    ],
)
def test_a_json_patch_that_cannot_be_done_is_an_error(operation: dict[str, object]) -> None:
    with pytest.raises(ApiError):
        patches.json_patch({"a": 1}, [operation])


def test_a_strategic_patch_merges_lists_by_their_key() -> None:
    patch = {"spec": {"containers": [{"name": "a", "image": "new", "env": [{"name": "Y", "value": "2"}]}]}}
    spec = patches.strategic(POD, patch, schema.POD)["spec"]
    first, second = spec["containers"]
    assert first["image"] == "new"
    assert first["env"] == [
        {"name": "Y", "value": "2"},
        {"name": "X", "value": "1"},
    ]  # elements of the patch precede the others
    assert first["ports"] == [{"containerPort": 80}]
    assert second == {"name": "b", "image": "two"}


def test_a_strategic_patch_deletes_and_orders_elements() -> None:
    patch = {
        "spec": {
            "$setElementOrder/containers": [{"name": "c"}, {"name": "b"}],
            "containers": [{"name": "c", "image": "three"}, {"$patch": "delete", "name": "a"}],
        }
    }
    spec = patches.strategic(POD, patch, schema.POD)["spec"]
    assert [each["name"] for each in spec["containers"]] == ["c", "b"]


def test_a_strategic_patch_replaces_where_asked_to() -> None:
    assert patches.strategic({"a": {"b": 1}}, {"a": {"$patch": "replace", "c": 2}}, {}) == {"a": {"c": 2}}
    assert patches.strategic({"a": {"b": 1, "c": 2}}, {"a": {"$retainKeys": ["c"]}}, {}) == {"a": {"c": 2}}
    kept = patches.strategic(
        {"metadata": {"finalizers": ["a", "b"]}}, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["a"]}}, {}
    )
    assert kept == {"metadata": {"finalizers": ["b"]}}


def test_sets_grow_and_other_lists_are_replaced() -> None:
    before = {"metadata": {"finalizers": ["a"]}, "spec": {"args": [1]}}
    patch = {"metadata": {"finalizers": ["b", "a"]}, "spec": {"args": [2]}}
    after = patches.strategic(before, patch, schema.METADATA)
    assert after == {"metadata": {"finalizers": ["b", "a"]}, "spec": {"args": [2]}}
