"""Label and field selectors: text → a predicate."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from isthmus_lab.apiserver import errors
from isthmus_lab.apiserver.objects import Object, labels_of, nested

Predicate = Callable[[Object], bool]

_SET = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)\s*\Z")
_EQUAL = re.compile(r"\s*(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)\s*\Z")
_EXISTS = re.compile(r"\s*(?P<not>!?)\s*(?P<key>[^\s!=,()]+)\s*\Z")
_COMMA = re.compile(r",(?![^()]*\))")


def labels(text: str) -> Predicate:
    """``a=b,c!=d,e in (f,g),!h`` as a predicate over objects."""
    terms = [_label_term(term) for term in _COMMA.split(text) if term.strip()]
    return lambda obj: all(term(labels_of(obj)) for term in terms)


def label_selector(selector: Mapping[str, Any]) -> Callable[[Mapping[str, str]], bool]:
    """A LabelSelector object (matchLabels, matchExpressions) as a predicate over labels; an empty one takes all."""
    labels = dict(selector.get("matchLabels") or {})
    expressions = list(selector.get("matchExpressions") or ())

    def matches(have: Mapping[str, str]) -> bool:
        return all(have.get(k) == v for k, v in labels.items()) and all(_expression(e, have) for e in expressions)

    return matches


def fields(text: str) -> Predicate:
    """``metadata.name=x,status.phase!=Running`` as a predicate over objects; an absent field is the empty string."""
    terms = []
    for term in text.split(","):
        if not term.strip():
            continue
        match = re.match(r"\s*([^=!\s]+)\s*(==|=|!=)\s*(.*?)\s*\Z", term)
        if match is None:
            raise errors.bad_request(f"invalid field selector {text!r}: want field=value")
        terms.append((match[1].split("."), match[2] != "!=", match[3]))
    return lambda obj: all((_text(nested(obj, *path, default="")) == value) is same for path, same, value in terms)


def combined(label_text: str, field_text: str) -> Predicate | None:
    """Both selectors at once; None where neither selects."""
    parts = [labels(label_text)] if label_text else []
    parts += [fields(field_text)] if field_text else []
    return (lambda obj: all(part(obj) for part in parts)) if parts else None


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _label_term(term: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET.match(term):
        key, inside = match["key"], match["op"] == "in"
        values = {value.strip() for value in match["values"].split(",")}
        return lambda have: (have.get(key) in values) is inside
    if match := _EQUAL.match(term):
        key, value, same = match["key"], match["value"], match["op"] != "!="
        return lambda have: (have.get(key) == value) is same
    if match := _EXISTS.match(term):
        key, required = match["key"], not match["not"]
        return lambda have: (key in have) is required
    raise errors.bad_request(f"unable to parse label selector requirement: {term.strip()!r}")


def _expression(expression: Mapping[str, Any], have: Mapping[str, str]) -> bool:
    key, operator, values = expression.get("key", ""), expression.get("operator"), expression.get("values") or ()
    match operator:
        case "In":
            return have.get(key) in values
        case "NotIn":
            return have.get(key) not in values
        case "Exists":
            return key in have
        case _:
            return key not in have
