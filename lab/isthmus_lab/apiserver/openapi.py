"""Structural schemas of CustomResourceDefinitions: defaults, pruning, and validation as kube-apiserver does them.

A schema is an OpenAPI v3 object as in a definition (apiextensions.k8s.io/v1, "structural schema"). Not covered: formats
other than integers and ``date-time``. Of CEL (``x-kubernetes-validations``) ``cel.py`` has the part that is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec

from isthmus_lab.apiserver import cel
from isthmus_lab.apiserver.errors import Problem

Schema = dict[str, Any]

TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}
INT_BITS: Final = {"int32": 31, "int64": 63}
_TIME: Final = re.compile(r"\d{4}-[01]\d-[0-3]\dT[0-2]\d:[0-5]\d:[0-6]\d(\.\d{1,9})?(Z|[+-][0-2]\d:[0-5]\d)", re.ASCII)
ALWAYS: Final = frozenset({"apiVersion", "kind", "metadata"})
"""Fields of every object, which a schema need not name."""


def defaulted(schema: Schema, value: Any) -> Any:
    """Return a value with the schema's defaults filled in."""
    if isinstance(value, dict):
        named = schema.get("properties", {})
        filled = {name: each["default"] for name, each in named.items() if "default" in each} | value
        rest = schema.get("additionalProperties")
        return {
            name: defaulted(named.get(name) or (rest if isinstance(rest, dict) else {}), each)
            for name, each in filled.items()
        }
    if isinstance(value, list):
        return [defaulted(schema.get("items", {}), each) for each in value]
    return value


def unknown(schema: Schema, value: Any, path: str = "") -> Iterator[str]:
    """Yield the paths of fields that the schema does not have."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource"):
        return
    if isinstance(value, dict):
        named, rest = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            where = f"{path}.{name}" if path else name
            if not path and name in ALWAYS:
                continue
            if name in named:
                yield from unknown(named[name], item, where)
            elif isinstance(rest, dict):
                yield from unknown(rest, item, where)
            elif not rest:
                yield where
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from unknown(schema.get("items", {}), item, f"{path}[{number}]")


def pruned(schema: Schema, value: Any, *, root: bool = True) -> Any:
    """Return a value without the fields that the schema does not have."""
    if schema.get("x-kubernetes-preserve-unknown-fields") or schema.get("x-kubernetes-embedded-resource"):
        return value
    if isinstance(value, dict):
        named, rest = schema.get("properties", {}), schema.get("additionalProperties")
        kept = {}
        for name, item in value.items():
            if root and name in ALWAYS:
                kept[name] = item
            elif name in named:
                kept[name] = pruned(named[name], item, root=False)
            elif rest:
                kept[name] = pruned(rest, item, root=False) if isinstance(rest, dict) else item
        return kept
    if isinstance(value, list):
        return [pruned(schema.get("items", {}), item, root=False) for item in value]
    return value


def problems(schema: Schema, value: Any, path: str = "") -> Iterator[Problem]:
    """Yield every disagreement of a value with a schema, worded as kube-apiserver words it."""
    if value is None and schema.get("nullable"):
        return
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield _mistyped(path, "integer,string", value)
        return
    expected = schema.get("type")
    if expected and not _is(value, expected):
        yield _mistyped(path, expected, value)
        return
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(msgspec.json.encode(each).decode() for each in schema["enum"])
        yield Problem(path, "Unsupported value", f"supported values: {supported}", value)
    match value:
        case bool():
            pass
        case str():
            yield from _of_string(schema, value, path)
        case int() | float():
            yield from _of_number(schema, value, path)
        case list():
            yield from _of_list(schema, value, path)
        case dict():
            yield from _of_object(schema, value, path)


def broken_rules(schema: Schema, value: Any, old: Any = None, path: str = "") -> Iterator[Problem]:
    """Yield the rules in CEL that a value breaks. It agrees with the schema otherwise.

    Rules about ``oldSelf`` hold for a change of the value; what is in a list has no earlier value to be compared with.
    """
    for rule in schema.get("x-kubernetes-validations", ()):
        compares = "oldSelf" in rule["rule"]
        if not compares or old is not None:
            yield from _broken(rule, value, {"oldSelf": old} if compares else {}, path)
    if isinstance(value, dict):
        named, rest = schema.get("properties", {}), schema.get("additionalProperties")
        before = old if isinstance(old, dict) else {}
        for name, item in value.items():
            inner = named.get(name) or (rest if isinstance(rest, dict) else None)
            if inner is not None:
                yield from broken_rules(inner, item, before.get(name), f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from broken_rules(schema.get("items", {}), item, None, f"{path}[{number}]")


def _broken(rule: dict[str, Any], value: Any, more: dict[str, Any], path: str) -> Iterator[Problem]:
    kind = next((name for name in TYPES if _is(value, name)), "null")
    try:
        if cel.holds(rule["rule"], self=value, **more):
            return
        detail = rule.get("message") or f"failed rule: {rule['rule']}"
    except (cel.Failed, cel.Unsupported) as failed:
        detail = f"rule evaluation error: {failed}: {rule['rule']}"
    where = f"{path}{rule.get('fieldPath', '')}".lstrip(".")
    yield Problem(where, "Invalid value", detail.strip(), kind)


def unsupported_rules(schema: Any, path: str) -> Iterator[Problem]:
    """Yield the rules of a schema that cannot be evaluated here."""
    if isinstance(schema, dict):
        rules = schema.get("x-kubernetes-validations")
        for number, rule in enumerate(rules if isinstance(rules, list) else ()):
            try:
                cel.compiled(str(rule.get("rule", "")))
            except cel.Unsupported as error:
                where = f"{path}.x-kubernetes-validations[{number}].rule"
                yield Problem(
                    where, "Invalid value", f"the lab's API server cannot check it (--apiserver real): {error}"
                )
        for name, inner in schema.items():
            if name != "x-kubernetes-validations":
                yield from unsupported_rules(inner, f"{path}.{name}")
    elif isinstance(schema, list):
        for number, inner in enumerate(schema):
            yield from unsupported_rules(inner, f"{path}[{number}]")


def _is(value: Any, expected: str) -> bool:
    if isinstance(value, bool):
        return expected == "boolean"
    if expected == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, TYPES.get(expected, (object,)))


def _mistyped(path: str, expected: str, value: Any) -> Problem:
    actual = next((name for name in TYPES if _is(value, name)), "null")
    return Problem(path, "Invalid value", f'{path} in body must be of type {expected}: "{actual}"', actual)


def _of_string(schema: Schema, value: str, path: str) -> Iterator[Problem]:
    if len(value) < schema.get("minLength", 0):
        yield Problem(
            path, "Invalid value", f"{path} in body should be at least {schema['minLength']} chars long", value
        )
    if "maxLength" in schema and len(value) > schema["maxLength"]:
        yield Problem(
            path, "Invalid value", f"{path} in body should be at most {schema['maxLength']} chars long", value
        )
    if "pattern" in schema and not _pattern(schema["pattern"]).search(value):
        yield Problem(path, "Invalid value", f"{path} in body should match '{schema['pattern']}'", value)
    if schema.get("format") == "date-time" and not _is_time(value):
        yield Problem(path, "Invalid value", f'{path} in body must be of type date-time: "{value}"', value)


def _of_number(schema: Schema, value: float, path: str) -> Iterator[Problem]:
    bits = INT_BITS.get(schema.get("format", ""))
    if bits is not None and not -(1 << bits) <= value < 1 << bits:
        yield Problem(path, "Invalid value", f"{path} in body must be of type {schema['format']}", value)
    if "minimum" in schema and value < schema["minimum"]:
        reason = f"{path} in body should be greater than or equal to {schema['minimum']}"
        yield Problem(path, "Invalid value", reason, value)
    if "maximum" in schema and value > schema["maximum"]:
        reason = f"{path} in body should be less than or equal to {schema['maximum']}"
        yield Problem(path, "Invalid value", reason, value)


def _of_list(schema: Schema, value: list[Any], path: str) -> Iterator[Problem]:
    if len(value) < schema.get("minItems", 0):
        yield Problem(
            path, "Invalid value", f"{path} in body should have at least {schema['minItems']} items", len(value)
        )
    if "maxItems" in schema and len(value) > schema["maxItems"]:
        yield Problem(path, "Invalid value", f"must have at most {schema['maxItems']} items", len(value))
    for number, item in enumerate(value):
        yield from problems(schema.get("items", {}), item, f"{path}[{number}]")


def _of_object(schema: Schema, value: dict[str, Any], path: str) -> Iterator[Problem]:
    named, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield Problem(f"{path}.{name}" if path else name, "Required value")
    if "maxProperties" in schema and len(value) > schema["maxProperties"]:
        yield Problem(path, "Invalid value", f"must have at most {schema['maxProperties']} items", len(value))
    for name, item in value.items():
        if not path and name in ALWAYS:
            continue
        inner = named.get(name) or (rest if isinstance(rest, dict) else None)
        if inner is not None:
            yield from problems(inner, item, f"{path}.{name}" if path else name)


@lru_cache(256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def _is_time(text: str) -> bool:
    """True for RFC 3339 of any year, as in Go's time.Parse."""
    return _TIME.fullmatch(text) is not None
