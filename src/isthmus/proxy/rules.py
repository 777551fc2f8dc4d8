"""Validates messages by the rules of Envoy's API, before they are sent.

Envoy's API carries validation rules as options of its fields (protoc-gen-validate, ``validate/validate.proto``). This
module applies the rules that its messages use, including nested messages and known extensions, so that an invalid
object is held back. Rules that exist only in Envoy's code are not known here; Envoy's NACK reports their violation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from isthmus.bounds import Syntax
from isthmus.proxy.messages import message, required_oneofs, rules_by_field, unpacked

if TYPE_CHECKING:  # the library is imported with the first message: commands use pure functions of this package
    from google.protobuf.descriptor import Descriptor, FieldDescriptor

ANY: Final = "google.protobuf.Any"
MAX_TEXT: Final = 16_384
"""Characters up to which a text is matched: more than a route can have."""
HEADERS: Final = {
    (1, True): Syntax(r":?[0-9a-zA-Z!#$%&'*+\-.^_|~`]+", most=MAX_TEXT, meaning="the name of a header"),
    (1, False): Syntax(r"[^\x00\n\r]+", most=MAX_TEXT, meaning="the name of a header"),
    (2, True): Syntax(r"[^\x00-\x08\x0a-\x1f\x7f]*", most=MAX_TEXT, meaning="the value of a header"),
    (2, False): Syntax(r"[^\x00\n\r]*", most=MAX_TEXT, meaning="the value of a header"),
}
"""Syntax for each ``KnownRegex`` (1 header name, 2 header value) and ``strict``, as defined in validate.proto."""

BOUNDS: Final[dict[str, tuple[str, Callable[[Any, Any], bool]]]] = {
    "gt": ("greater than", operator.gt),
    "gte": ("at least", operator.ge),
    "lt": ("less than", operator.lt),
    "lte": ("at most", operator.le),
    "const": ("", operator.eq),
}

Check = Callable[[Any], str]
"""Function from a value to its problem as the end of a sentence; empty if it is valid."""


class Rules(NamedTuple):
    """Rules of one field: of its presence, its whole value, each of its items, and nested messages."""

    required: bool
    whole: tuple[Check, ...]
    per_item: tuple[Check, ...]
    descend: bool


NONE: Final = Rules(False, (), (), True)


def problem(type_name: str, body: bytes) -> str:
    """Return the first error for which Envoy would refuse an encoded message of a type; empty if it is valid."""
    from google.protobuf.message import DecodeError

    try:
        decoded = message(type_name).FromString(body)
    except KeyError:
        return f"{type_name}: not a message of Envoy's that is known here"
    except DecodeError as error:
        return f"{type_name}: {error}"
    broken = _first(decoded)
    return f"{broken[0] or decoded.DESCRIPTOR.name}: {broken[1]}" if broken is not None else ""


Problem = tuple[str, str]
"""Path of a field that breaks a rule, and the problem."""


class Checks(NamedTuple):
    """Compiled checks of a message type. Only fields that are set are visited: in most messages, few."""

    oneofs: tuple[str, ...]
    required: tuple[str, ...]
    always: tuple[tuple[str, tuple[Check, ...]], ...]
    """Fields whose whole value is checked even if it is the default."""
    set_fields: Mapping[int, tuple[FieldDescriptor, Rules]]
    """Rules of fields that are checked only if set, by number."""


def _first(checked: Any) -> Problem | None:
    """Return the first rule that a message breaks."""
    checks = _checks(checked.DESCRIPTOR)
    for oneof in checks.oneofs:
        if checked.WhichOneof(oneof) is None:
            return "", f"one of {oneof} is required"
    for name in checks.required:
        if not _has(checked, name):
            return name, "is required"
    for name, whole in checks.always:
        value = getattr(checked, name)
        for check in whole:
            if wrong := check(value):
                return name, wrong
    set_fields = checks.set_fields
    for field, value in checked.ListFields():
        if (checked_field := set_fields.get(field.number)) is not None and (
            broken := _of_value(value, *checked_field)
        ) is not None:
            return broken
    return None


def _of_value(value: Any, field: FieldDescriptor, rules: Rules) -> Problem | None:
    """Return the first rule that a field with a value breaks."""
    if not field.is_repeated:
        if field.has_presence:
            for check in rules.whole:
                if wrong := check(value):
                    return field.name, wrong
        return _nested(field.name, value) if field.message_type is not None and rules.descend else None
    descend = rules.descend and field.message_type is not None
    for label, item in _items(value, field):
        for check in rules.per_item:
            if wrong := check(item):
                return f"{field.name}[{label}]", wrong
        if descend and hasattr(item, "DESCRIPTOR") and (broken := _nested(f"{field.name}[{label}]", item)) is not None:
            return broken
    return None


def _nested(where: str, value: Any) -> Problem | None:
    if value.DESCRIPTOR.full_name == ANY:
        from google.protobuf.message import DecodeError

        try:
            inner = unpacked(value)
        except DecodeError as error:
            return where, str(error)
        if inner is None:
            return None
        where, value = f"{where}({inner.DESCRIPTOR.name})", inner
    if (broken := _first(value)) is None:
        return None
    return f"{where}.{broken[0]}" if broken[0] else where, broken[1]


def _items(value: Any, field: FieldDescriptor) -> Iterable[tuple[Any, Any]]:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return list(value.items())
    return enumerate(value)


def _has(checked: Any, name: str) -> bool:
    field = checked.DESCRIPTOR.fields_by_name[name]
    return bool(checked.HasField(name)) if field.has_presence else bool(getattr(checked, name))


@cache
def _checks(descriptor: Descriptor) -> Checks:
    """Compile the checks of a message type."""
    oneofs, required, always, set_fields = [], [], [], {}
    for oneof in descriptor.oneofs:
        if f"{descriptor.full_name}.{oneof.name}" in required_oneofs():
            oneofs.append(oneof.name)
    for field in descriptor.fields:
        options = rules_by_field().get(f"{descriptor.full_name}.{field.name}")
        rules = _compiled(options, field) if options is not None else NONE
        if rules.required and field.containing_oneof is None:  # else only if it is the one that was chosen
            required.append(field.name)
        if rules.whole and not field.has_presence:
            always.append((field.name, rules.whole))
        if (field.message_type is not None and rules.descend) or rules.per_item or (rules.whole and field.has_presence):
            set_fields[field.number] = field, rules
    return Checks(tuple(oneofs), tuple(required), tuple(always), set_fields)


def _compiled(options: Any, field: FieldDescriptor) -> Rules:
    kind = options.WhichOneof("type")
    of_message = options.message
    required, descend = of_message.required, not of_message.skip
    if kind is None:
        return Rules(required, (), (), descend)
    rules = getattr(options, kind)
    if kind == "repeated":
        item_checks = _scalar_checks(rules.items, field)
        return Rules(required, tuple(_of_repeated(rules)), tuple(item_checks), descend)
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
        syntax = Syntax(rules.pattern, most=MAX_TEXT, meaning=f"of the form {rules.pattern}")
        yield _unless(
            lambda value: len(value) <= MAX_TEXT and syntax.search(value) is not None, f"does not match {rules.pattern}"
        )
    if rules.HasField("prefix"):
        yield _unless(lambda value: value.startswith(rules.prefix), f"does not begin with {rules.prefix}")
    if rules.HasField("suffix"):
        yield _unless(lambda value: value.endswith(rules.suffix), f"does not end with {rules.suffix}")
    if choices := tuple(getattr(rules, "in")):
        yield _unless(lambda value: value in choices, f"is none of {', '.join(choices)}")
    if rules.WhichOneof("well_known") == "well_known_regex":
        header = HEADERS[rules.well_known_regex, rules.strict]
        yield _unless(lambda value: not value or header.fits(value), "is no valid header")


def _of_enum(rules: Any, field: FieldDescriptor) -> Iterator[Check]:
    if rules.defined_only and field.enum_type is not None:
        numbers = field.enum_type.values_by_number
        yield _unless(lambda value: value in numbers, "is no value of its enum")
    if refused := tuple(rules.not_in):
        yield _unless(lambda value: value not in refused, f"may not be one of {refused}")


def _of_number(rules: Any, value_of: Callable[[Any], Any]) -> Iterator[Check]:
    for bound, (words, holds) in BOUNDS.items():
        if bound in rules.DESCRIPTOR.fields_by_name and rules.HasField(bound):  # of booleans there is only const
            limit = value_of(getattr(rules, bound))
            yield _bounded(holds, value_of, limit, words)


def _bounded(holds: Callable[[Any, Any], bool], value_of: Callable[[Any], Any], limit: Any, words: str) -> Check:
    return _unless(lambda value: holds(value_of(value), limit), f"has to be {words} {limit}".replace("  ", " "))


def _number(value: Any) -> Any:
    """Unwrap a number (``google.protobuf.UInt32Value``), to which the rules of the number apply."""
    return value.value if hasattr(value, "DESCRIPTOR") else value


def _seconds(value: Any) -> float:
    seconds: float = value.seconds + value.nanos / 1e9
    return seconds
