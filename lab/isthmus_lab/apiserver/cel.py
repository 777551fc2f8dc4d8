"""CEL rules of definitions: the part of the language that those of Isthmus and the Gateway API use.

A rule is compiled to nested functions of its variables. What this part lacks raises Unsupported when it is compiled, so
that a definition is refused rather than kept with a rule that is not checked. Public rules: the language definition of
github.com/google/cel-spec, and Kubernetes' "Validation rules" of CustomResourceDefinitions.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

from isthmus import bounds
from isthmus.bounds import OutOfBounds

Variables = Mapping[str, Any]
Evaluate = Callable[[Variables], Any]


class Unsupported(Exception):  # noqa: N818 about the rule
    """A rule that cannot be compiled; the message has its place."""


class Failed(Exception):  # noqa: N818 about the value
    """A rule that cannot be evaluated for a value, such as one without a field that it reads."""


ERRORS: Final = (Failed, TypeError, ValueError, LookupError, re.error)
"""Exceptions of an evaluation whose value does not fit the rule; OutOfBounds is a ValueError."""


class Type(NamedTuple):
    """A type as a value: what ``type(x)`` returns."""

    name: str


TYPES: Final = {bool: "bool", int: "int", float: "double", str: "string", list: "list", dict: "map", type(None): "null"}
TYPE_NAMES: Final = frozenset({*TYPES.values()} - {"null"})
TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)
    |(?P<raw>[rR](?:\"{3}(?:.|\n)*?\"{3}|'{3}(?:.|\n)*?'{3}|"[^"\n]*"|'[^'\n]*'))
    |(?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>&&|\|\||[=!<>]=|[-+*/%<>!?:.,()\[\]]))""",
    re.VERBOSE,
)
ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}
COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "in": lambda item, items: item in items,
}  # fmt: skip
SUMS: Final[dict[str, Callable[[Any, Any], Any]]] = {"+": operator.add, "-": operator.sub}
MACROS: Final = ("all", "exists", "exists_one", "filter", "map")


@lru_cache(1024)
def compiled(rule: str) -> Evaluate:
    """Compile a rule. Raises Unsupported."""
    parser = _Parser(rule)
    try:
        found = parser.ternary()
    except RecursionError:
        raise Unsupported(f"nested too deep: {rule[:40]}…") from None
    parser.end()
    return found


def holds(rule: str, **variables: Any) -> bool:
    """True if a rule holds. Raises Failed if it cannot be evaluated."""
    try:
        found = compiled(rule)(variables)
    except Failed:
        raise
    except ERRORS as error:
        raise Failed(f"{type(error).__name__}: {error}") from None
    if found is not True and found is not False:
        raise Failed(f"the rule's value is no bool but {found!r}")
    return found


class _Parser:
    """Recursive descent, one method for each precedence of the language."""

    def __init__(self, rule: str) -> None:
        self._rule = rule
        self._tokens = list(_tokens(rule))
        self._at = 0

    def end(self) -> None:
        if self._at < len(self._tokens):
            raise self._unsupported()

    def _unsupported(self) -> Unsupported:
        _, text = self._tokens[self._at] if self._at < len(self._tokens) else ("", "its end")
        return Unsupported(f"not understood at '{text}': {self._rule}")

    def _next(self, *signs: str) -> str:
        """The next token if it is one of these, which is consumed; else empty."""
        if self._at < len(self._tokens) and self._tokens[self._at][1] in signs:
            kind, text = self._tokens[self._at]
            if kind in ("sign", "name"):
                self._at += 1
                return text
        return ""

    def _want(self, sign: str) -> None:
        if not self._next(sign):
            raise self._unsupported()

    def _name(self) -> str:
        if self._at >= len(self._tokens) or self._tokens[self._at][0] != "name":
            raise self._unsupported()
        self._at += 1
        return self._tokens[self._at - 1][1]

    def ternary(self) -> Evaluate:
        condition = self._or()
        if not self._next("?"):
            return condition
        yes = self._or()
        self._want(":")
        no = self.ternary()
        return lambda v: yes(v) if _bool(condition(v)) else no(v)

    def _or(self) -> Evaluate:
        found = self._and()
        while self._next("||"):
            found = _either(found, self._and(), decisive=True)
        return found

    def _and(self) -> Evaluate:
        found = self._comparison()
        while self._next("&&"):
            found = _either(found, self._comparison(), decisive=False)
        return found

    def _comparison(self) -> Evaluate:
        found = self._sum()
        while sign := self._next(*COMPARISONS):
            found = _binary(COMPARISONS[sign], found, self._sum())
        return found

    def _sum(self) -> Evaluate:
        found = self._unary()
        while sign := self._next(*SUMS):
            found = _binary(SUMS[sign], found, self._unary())
        return found

    def _unary(self) -> Evaluate:
        if self._next("!"):
            inner = self._unary()
            return lambda v: not _bool(inner(v))
        if self._next("-"):
            negative = self._unary()
            return lambda v: -negative(v)
        return self._member(self._primary())

    def _member(self, found: Evaluate) -> Evaluate:
        while sign := self._next(".", "["):
            if sign == "[":
                found = _binary(_item, found, self.ternary())
                self._want("]")
            else:
                name = self._name()
                found = self._method(name, found) if self._next("(") else _field(name, found)
        return found

    def _primary(self) -> Evaluate:
        if self._at >= len(self._tokens):
            raise self._unsupported()
        kind, text = self._tokens[self._at]
        if self._next("("):
            found = self.ternary()
            self._want(")")
            return found
        if self._next("["):
            items = self._arguments("]")
            return lambda v: [item(v) for item in items]
        if kind == "name":
            self._at += 1
            return self._function(text) if self._next("(") else _variable(text)
        if kind == "sign":
            raise self._unsupported()
        self._at += 1
        constant = _constant(kind, text)
        return lambda v: constant

    def _arguments(self, end: str) -> list[Evaluate]:
        found: list[Evaluate] = []
        while not self._next(end):
            if found:
                self._want(",")
            found.append(self.ternary())
        return found

    def _function(self, name: str) -> Evaluate:
        if name == "has":
            path = self._member(self._primary())
            self._want(")")
            if not isinstance(path, _Field):
                raise Unsupported(f"has() of what is no field: {self._rule}")
            return lambda v: path.key in _object(path.target(v))
        arguments = self._arguments(")")
        if name not in FUNCTIONS or len(arguments) != 1:
            raise Unsupported(f"function {name} of {len(arguments)}: {self._rule}")
        function, [argument] = FUNCTIONS[name], arguments
        return lambda v: function(argument(v))

    def _method(self, name: str, target: Evaluate) -> Evaluate:
        if name in MACROS:
            variable = self._name()
            self._want(",")
            body = self.ternary()
            self._want(")")
            return _macro(name, target, variable, body)
        arguments = self._arguments(")")
        if (name, len(arguments)) not in METHODS:
            raise Unsupported(f"method {name} of {len(arguments)}: {self._rule}")
        method = METHODS[name, len(arguments)]
        return lambda v: method(target(v), *(each(v) for each in arguments))


def _tokens(rule: str) -> Iterator[tuple[str, str]]:
    at, text = 0, rule.rstrip()
    while at < len(text):
        found = TOKEN.match(text, at)
        if found is None or found.lastgroup is None:
            raise Unsupported(f"not understood at '{text[at : at + 10]}': {rule}")
        at = found.end()
        yield found.lastgroup, found[found.lastgroup]


def _constant(kind: str, text: str) -> Any:
    if kind == "number":
        return float(text) if "." in text else int(text)
    if kind == "raw":
        quotes = 3 if text[1:4] in ('"""', "'''") else 1
        return text[1 + quotes : -quotes]
    return re.sub(r"\\(.)", lambda found: ESCAPES.get(found[1], found[1]), text[1:-1])


def _variable(name: str) -> Evaluate:
    constants = {"true": True, "false": False, "null": None}
    if name in constants:
        return lambda v: constants[name]

    def find(variables: Variables) -> Any:
        if name in variables:
            return variables[name]
        if name in TYPE_NAMES:
            return Type(name)
        raise Failed(f"no such variable: {name}")

    return find


class _Field:
    """The field of an object, as a function of variables."""

    def __init__(self, key: str, target: Evaluate) -> None:
        self.key = key
        self.target = target

    def __call__(self, variables: Variables) -> Any:
        """The field's value. Raises Failed without one."""
        found = _object(self.target(variables))
        if self.key not in found:
            raise Failed(f"no such key: {self.key}")
        return found[self.key]


def _field(name: str, target: Evaluate) -> Evaluate:
    """A field. Names that the language reserves are escaped (``__namespace__``)."""
    return _Field(name[2:-2] if name.startswith("__") and name.endswith("__") else name, target)


def _object(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Failed(f"{value!r} has no fields")
    return value


def _bool(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Failed(f"{value!r} is no bool")
    return value


def _either(first: Evaluate, second: Evaluate, *, decisive: bool) -> Evaluate:
    """``||`` and ``&&``: a decisive operand decides, whichever it is and even if the other one fails."""

    def evaluate(variables: Variables) -> bool:
        try:
            if _bool(first(variables)) is decisive:
                return decisive
        except ERRORS:
            if _bool(second(variables)) is decisive:
                return decisive
            raise
        return _bool(second(variables))

    return evaluate


def _binary(function: Callable[[Any, Any], Any], first: Evaluate, second: Evaluate) -> Evaluate:
    return lambda v: function(first(v), second(v))


def _item(target: Any, key: Any) -> Any:
    if isinstance(target, dict) and key not in target:
        raise Failed(f"no such key: {key}")
    return target[key]


def _macro(name: str, target: Evaluate, variable: str, body: Evaluate) -> Evaluate:
    if name in ("all", "exists"):
        return _any(target, variable, body, decisive=name == "exists")

    def evaluate(variables: Variables) -> Any:
        items = list(target(variables))
        results = ((item, body({**variables, variable: item})) for item in items)
        match name:
            case "map":
                return [result for _, result in results]
            case "filter":
                return [item for item, result in results if _bool(result)]
            case _:
                return sum(_bool(result) for _, result in results) == 1

    return evaluate


def _any(target: Evaluate, variable: str, body: Evaluate, *, decisive: bool) -> Evaluate:
    """``exists`` and ``all``: ``||`` and ``&&`` of the body for each item, which may fail if another one decides."""

    def evaluate(variables: Variables) -> bool:
        failed: Exception | None = None
        for item in list(target(variables)):
            try:
                if _bool(body({**variables, variable: item})) is decisive:
                    return decisive
            except ERRORS as error:
                failed = error
        if failed is not None:
            raise failed
        return not decisive

    return evaluate


def _matches(text: str, pattern: str) -> bool:
    """RE2 allows a flag after ``^``, Python only in front."""
    flags = re.IGNORECASE if "(?i)" in pattern else 0
    return re.compile(pattern.replace("(?i)", ""), flags).search(text) is not None


def _type(value: Any) -> Type:
    return Type(TYPES.get(type(value), "dyn"))


def _is_ip(text: str) -> bool:
    try:
        bounds.address(text, field="isIP")
    except OutOfBounds:
        return False
    return True


FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "size": len,
    "type": _type,
    "duration": lambda text: bounds.duration(text, units=("h", "m", "s", "ms"), digits=9, most=bounds.MAX_INT32),
    "isIP": _is_ip,
    "int": int,
    "string": str,
}
METHODS: Final[dict[tuple[str, int], Callable[..., Any]]] = {
    ("size", 0): len,
    ("matches", 1): _matches,
    ("startsWith", 1): str.startswith,
    ("endsWith", 1): str.endswith,
    ("contains", 1): lambda text, part: part in text,
    ("split", 1): str.split,
    ("substring", 1): lambda text, begin: text[begin:],
    ("substring", 2): lambda text, begin, end: text[begin:end],
    ("lowerAscii", 0): str.lower,
}
