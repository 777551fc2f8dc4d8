"""Rendered manifests, compared object by object."""

from __future__ import annotations

from typing import Any

Name = tuple[str, str, str, str]


def by_name(objects: list[dict[str, Any]]) -> dict[Name, Any]:
    """Objects by apiVersion, kind, namespace and name; each once."""
    named: dict[Name, Any] = {
        (each["apiVersion"], each["kind"], each["metadata"].get("namespace", ""), each["metadata"]["name"]): each
        for each in objects
    }
    assert len(named) == len(objects)
    return named


def assert_equal(rendered: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    """Both have the same objects; the first that differs is named."""
    actual, wanted = by_name(rendered), by_name(expected)
    assert actual.keys() == wanted.keys()
    for name, each in wanted.items():
        assert actual[name] == each, name
