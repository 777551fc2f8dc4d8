"""What Envoy would refuse in a message, found before it is sent.

Envoy's API carries rules of validation as options of its fields (protoc-gen-validate, ``validate/validate.proto``).
:func:`problems` applies those that its messages use, nested messages and known extensions included, so that one bad
object is kept back here. Rules that are only in Envoy's code are not seen: what breaks one is found by its NACK.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Final, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError

from isthmus.proxy.messages import message, required_oneofs, rules_by_field, unpacked

ANY: Final = "google.protobuf.Any"
HEADERS: Final = {
    (1, True): re.compile(r":?[0-9a-zA-Z!#$%&'*+\-.^_|~`]+\Z"),
    (1, False): re.compile(r"[^\x00\n\r]+\Z"),
    (2, True): re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*\Z"),
    (2, False): re.compile(r"[^\x00\n\r]*\Z"),
}
"""By ``KnownRegex`` (1 a header's name, 2 its value) and whether it is strict, as validate.proto defines them."""

BOUNDS: Final[dict[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "gt": ("greater than", operator.gt),
    "gte": ("at least", operator.ge),
    "lt": ("less than", operator.lt),
    "lte": ("at most", operator.le),
    "const": ("", operator.eq),
}

Check = Callable[[Any], str]
"""What is wrong with a value, as the end of a sentence; empty: nothing."""


class Rules(NamedTuple):
    """The rules of one field: of whether it is there, of the value as a whole, of each item, key or nested message."""

    required: bool
    whole: tuple[Check, ...]
    each: tuple[Check, ...]
    descend: bool


NONE: Final = Rules(False, (), (), True)


def problem(type_name: str, body: bytes) -> str:
    """The first error for which Envoy would refuse an encoded message of that type; empty where there is none."""
    try:
        decoded = message(type_name).FromString(body)
    except KeyError:
        return f"{type_name}: not a message of Envoy's that is known here"
    except DecodeError as why:
        return f"{type_name}: {why}"
    return next(problems(decoded), "")


def problems(checked: Any, path: str = "") -> Iterator[str]:
    """What breaks a rule, each as '<field path>: <what is wrong>'."""
    descriptor = checked.DESCRIPTOR
    if descriptor.full_name == ANY:
        yield from _in_any(checked, path)
        return
    for oneof in _oneofs(descriptor):
        if checked.WhichOneof(oneof) is None:
            yield f"{path or descriptor.name}: one of {oneof} is required"
    for field, rules in _fields(descriptor):
        where = f"{path}.{field.name}" if path else field.name
        repeated = field.is_repeated
        there = len(getattr(checked, field.name)) > 0 if repeated else _has(checked, field)
        if rules.required and not there and not _is_choice(field):
            yield f"{where}: is required"
        if there or not field.has_presence:
            yield from _of_value(getattr(checked, field.name), field, rules, where, repeated=repeated)


def _of_value(value: Any, field: FieldDescriptor, rules: Rules, where: str, *, repeated: bool) -> Iterator[str]:
    yield from (f"{where}: {wrong}" for check in rules.whole if (wrong := check(value)))
    if not repeated:
        if field.message_type is not None and rules.descend:
            yield from problems(value, where)
        return
    for label, item in _items(value, field):
        yield from (f"{where}[{label}]: {wrong}" for check in rules.each if (wrong := check(item)))
        if hasattr(item, "DESCRIPTOR") and rules.descend:
            yield from problems(item, f"{where}[{label}]")


def _items(value: Any, field: FieldDescriptor) -> Iterable[tuple[Any, Any]]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return list(value.items())
    return list(enumerate(value))


def _in_any(checked: Any, path: str) -> Iterator[str]:
    try:
        inner = unpacked(checked)
    except DecodeError as why:
        yield f"{path}: {why}"
        return
    if inner is not None:
        yield from problems(inner, f"{path}({inner.DESCRIPTOR.name})")


def _is_choice(field: FieldDescriptor) -> bool:
    """Whether a field is one of a oneof: it is required only if it is the one that was chosen."""
    return field.containing_oneof is not None


def _has(checked: Any, field: FieldDescriptor) -> bool:
    return bool(checked.HasField(field.name)) if field.has_presence else bool(getattr(checked, field.name))


@cache
def _oneofs(descriptor: Descriptor) -> tuple[str, ...]:
    required = required_oneofs()
    return tuple(o.name for o in descriptor.oneofs if f"{descriptor.full_name}.{o.name}" in required)


@cache
def _fields(descriptor: Descriptor) -> tuple[tuple[FieldDescriptor, Rules], ...]:
    """The fields that have rules or messages to look into."""
    found = []
    for field in descriptor.fields:
        options = rules_by_field().get(f"{descriptor.full_name}.{field.name}")
        rules = _compiled(options, field) if options is not None else NONE
        if rules is not NONE or field.message_type is not None:
            found.append((field, rules))
    return tuple(found)


def _compiled(options: Any, field: FieldDescriptor) -> Rules:
    kind = options.WhichOneof("type")
    of_message = options.message
    required, descend = of_message.required, not of_message.skip
    if kind is None:
        return Rules(required, (), (), descend)
    rules = getattr(options, kind)
    if kind == "repeated":
        each = _scalar_checks(rules.items, field)
        return Rules(required, tuple(_of_repeated(rules)), tuple(each), descend)
    if kind == "map":
        return Rules(required, tuple(_at_least(rules, "min_pairs")), (), descend)
    if kind in ("any", "duration"):
        required = required or rules.required
    return Rules(required, tuple(_scalar_checks(options, field)), (), descend)


def _unless(holds: Callable[[Any], bool], wrong: str) -> Check:
    return lambda value: "" if holds(value) else wrong


def _of_repeated(rules: Any) -> Iterator[Check]:
    yield from _at_least(rules, "min_items")
    if rules.HasField("max_items"):
        most = rules.max_items
        yield _unless(lambda value: len(value) <= most, f"has more than {most} items")
    if rules.unique:
        yield _unless(lambda value: len(set(value)) == len(value), "has an item twice")


def _at_least(rules: Any, bound: str) -> Iterator[Check]:
    if rules.HasField(bound):
        least = getattr(rules, bound)
        yield _unless(lambda value: len(value) >= least, f"has fewer than {least} items")


def _scalar_checks(options: Any, field: FieldDescriptor) -> Iterator[Check]:
    kind = options.WhichOneof("type")
    if kind is None or kind in ("any", "repeated", "map"):
        return
    rules = getattr(options, kind)
    if kind == "string":
        yield from _of_string(rules)
    elif kind == "bytes":
        yield from _of_length(rules, "bytes", "min_len", "max_len")
    elif kind == "enum":
        yield from _of_enum(rules, field)
    else:
        yield from _of_number(rules, _seconds if kind == "duration" else _number)


def _of_string(rules: Any) -> Iterator[Check]:
    for check in (*_of_length(rules, "characters", "min_len", "max_len"), *_of_text(rules)):
        yield _if_given(check) if rules.ignore_empty else check


def _if_given(check: Check) -> Check:
    return lambda value: check(value) if value else ""


def _of_length(rules: Any, unit: str, lower: str, upper: str) -> Iterator[Check]:
    if rules.HasField(lower):
        least = getattr(rules, lower)
        yield _unless(lambda value: len(value) >= least, f"is shorter than {least} {unit}")
    if rules.HasField(upper):
        most = getattr(rules, upper)
        yield _unless(lambda value: len(value) <= most, f"is longer than {most} {unit}")


def _of_text(rules: Any) -> Iterator[Check]:
    if rules.HasField("max_bytes"):
        yield _unless(lambda value: len(value.encode()) <= rules.max_bytes, f"is longer than {rules.max_bytes} bytes")
    if rules.HasField("pattern"):
        pattern = re.compile(rules.pattern)
        yield _unless(lambda value: pattern.search(value) is not None, f"does not match {pattern.pattern}")
    if rules.HasField("prefix"):
        yield _unless(lambda value: value.startswith(rules.prefix), f"does not begin with {rules.prefix}")
    if rules.HasField("suffix"):
        yield _unless(lambda value: value.endswith(rules.suffix), f"does not end with {rules.suffix}")
    if choices := tuple(getattr(rules, "in")):
        yield _unless(lambda value: value in choices, f"is none of {', '.join(choices)}")
    if rules.WhichOneof("well_known") == "well_known_regex":
        header = HEADERS[rules.well_known_regex, rules.strict]
        yield _unless(lambda value: not value or header.match(value) is not None, "is no valid header")


def _of_enum(rules: Any, field: FieldDescriptor) -> Iterator[Check]:
    if rules.defined_only and field.enum_type is not None:
        known = field.enum_type.values_by_number
        yield _unless(lambda value: value in known, "is no value of its enum")
    if refused := tuple(rules.not_in):
        yield _unless(lambda value: value not in refused, f"may not be one of {refused}")


def _of_number(rules: Any, value_of: Callable[[Any], Any]) -> Iterator[Check]:
    for bound, (words, holds) in BOUNDS.items():
        if rules.HasField(bound):
            limit = value_of(getattr(rules, bound))
            yield _bounded(holds, value_of, limit, words)


def _bounded(holds: Callable[[Any, Any], bool], value_of: Callable[[Any], Any], limit: Any, words: str) -> Check:
    return _unless(lambda value: holds(value_of(value), limit), f"has to be {words} {limit}".replace("  ", " "))


def _number(value: Any) -> Any:
    """Wrapped numbers (``google.protobuf.UInt32Value``) have the rules of what they wrap."""
    return value.value if hasattr(value, "DESCRIPTOR") else value


def _seconds(value: Any) -> float:
    return int(value.seconds) + int(value.nanos) / 1e9
