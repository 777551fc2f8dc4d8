"""Regular expressions of tenants: RE2's syntax, judged and matched in time linear in the text.

A tenant's expression never reaches Python's ``re``, which backtracks without bound, and takes seconds to compile 200
classes such as ``[\x00-\uffff]`` without case. What is taken is a part of RE2's syntax
(https://github.com/google/re2/wiki/Syntax), without ``\\p``, ``\\C``, ``\\Q``, ``\\z``, ``\\x{…}``, ``(?<name>…)`` and
repeated assertions. Envoy refuses all routes of a listener for one expression that it does not take, so this decides
before. RE2 matches in linear time; what can be large is its program, which repetition multiplies.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, Literal

from msgspec import Struct

MAX_LENGTH: Final = 1_024
"""Characters of an expression."""
MAX_REPEAT: Final = 1_000
"""How often counted repetitions, nested ones multiplied, may repeat: RE2's kMaxRepeat."""
MAX_SIZE: Final = 1_000
"""Instructions of a program, as estimated here: a quarter of what an Envoy's bootstrap lets pass."""
MAX_NESTING: Final = 50
"""Groups within each other. RE2 takes a thousand; the functions here call themselves for each."""
WIDE: Final = 12
"""Instructions of a class that has characters beyond ASCII, as ``.`` and ``[^/]``."""

LAST: Final = 0x10FFFF
"""The last character of Unicode."""
Range = tuple[int, int]
Ranges = tuple[Range, ...]

DIGIT: Final[Ranges] = ((0x30, 0x39),)
SPACE: Final[Ranges] = ((0x09, 0x0A), (0x0C, 0x0D), (0x20, 0x20))
LOWER: Final[Ranges] = ((0x61, 0x7A),)
UPPER: Final[Ranges] = ((0x41, 0x5A),)
WORD: Final[Ranges] = (*DIGIT, *UPPER, (0x5F, 0x5F), *LOWER)
NEWLINE: Final[Ranges] = ((0x0A, 0x0A),)

ESCAPES: Final[dict[str, Ranges]] = {"d": DIGIT, "s": SPACE, "w": WORD}
CONTROLS: Final = {"a": 0x07, "f": 0x0C, "n": 0x0A, "r": 0x0D, "t": 0x09, "v": 0x0B}
POSIX: Final[dict[str, Ranges]] = {
    "alnum": (*DIGIT, *UPPER, *LOWER),
    "alpha": (*UPPER, *LOWER),
    "ascii": ((0x00, 0x7F),),
    "blank": ((0x09, 0x09), (0x20, 0x20)),
    "cntrl": ((0x00, 0x1F), (0x7F, 0x7F)),
    "digit": DIGIT,
    "graph": ((0x21, 0x7E),),
    "lower": LOWER,
    "print": ((0x20, 0x7E),),
    "punct": ((0x21, 0x2F), (0x3A, 0x40), (0x5B, 0x60), (0x7B, 0x7E)),
    "space": ((0x09, 0x0D), (0x20, 0x20)),
    "upper": UPPER,
    "word": WORD,
    "xdigit": (*DIGIT, (0x41, 0x46), (0x61, 0x66)),
}
NO_EXPRESSION: Final = "no expression of RE2"
SPECIAL: Final = frozenset("\\.+*?()|[]{}^$")

# Tokens, each matched at a position. They are linear, and the text has MAX_LENGTH characters at most.
_GROUP: Final = re.compile(r"\((?:\?(?:P<[A-Za-z_][A-Za-z0-9_]*>|([imsU]*)(?:-([imsU]+))?([:)])))?")
_REPEAT: Final = re.compile(r"(?:([*+?])|\{([0-9]+)(?:(,)([0-9]*))?\})\??")
_ESCAPE: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|0([0-7]{0,2})|(.))", re.DOTALL)
_POSIX: Final = re.compile(r"\[:(\^?)([A-Za-z]*):\]")

Edge = Literal["text start", "text end", "line start", "line end", "word", "no word"]


class Unsupported(ValueError):  # noqa: N818 about the expression, not about us
    """An expression is not taken; the message completes the sentence "it is …"."""


class Chars(Struct, frozen=True):
    """One character of some ranges, or with ``negated`` one of no range."""

    ranges: Ranges
    negated: bool = False
    fold: bool = False

    def has(self, char: str) -> bool:
        """True if the character is one of these; with ``fold`` in any case."""
        written = {char, char.lower(), char.upper(), char.upper().lower()} if self.fold else {char}
        codes = [ord(each) for each in written if len(each) == 1]
        return any(first <= code <= last for code in codes for first, last in self.ranges) != self.negated


class At(Struct, frozen=True):
    """A place between characters."""

    edge: Edge


class Split(Struct, frozen=True):
    """Go on at either of two steps, relative to this one."""

    one: int
    other: int


Program = tuple[Chars | At | Split, ...]
"""Steps, one after the other; a Split goes elsewhere. The text matches where it ends behind the last one."""


class Part(Struct, frozen=True):
    """A part of an expression, and what bounds it."""

    program: Program = ()
    size: int = 0
    """Instructions of RE2's program, as estimated."""
    repeats: int = 1
    """How often its counted repetitions repeat, nested ones multiplied."""
    repeatable: bool = True


def problem(text: str) -> str:
    """Why Envoy would not take an expression, as the end of a sentence; empty if it would."""
    try:
        _read(text)
    except Unsupported as why:
        return str(why)
    return ""


def literal(text: str) -> str:
    """The expression that matches a text and nothing else."""
    return "".join(f"\\{char}" if char in SPECIAL else char for char in text)


def matches(text: str, value: str) -> bool:
    """True if an expression matches a whole value; one that has a problem matches nothing."""
    try:
        program = _program(text)
    except Unsupported:
        return False
    states = _reached(program, {0}, value, 0)
    for position, char in enumerate(value, start=1):
        steps = {state: program[state] for state in states if state < len(program)}
        following = {state + 1 for state, step in steps.items() if isinstance(step, Chars) and step.has(char)}
        states = _reached(program, following, value, position)
    return len(program) in states


def _reached(program: Program, states: set[int], value: str, position: int) -> set[int]:
    """All steps that can be reached from some without reading a character."""
    reached: set[int] = set()
    pending = [*states]
    while pending:
        state = pending.pop()
        if state in reached:
            continue
        reached.add(state)
        match program[state] if state < len(program) else None:
            case Split(one, other):
                pending += (state + one, state + other)
            case At(edge) if _is_at(edge, value, position):
                pending.append(state + 1)
    return reached


def _is_at(edge: Edge, value: str, position: int) -> bool:
    before, after = value[:position][-1:], value[position : position + 1]
    match edge:
        case "text start":
            return not before
        case "text end":
            return not after
        case "line start":
            return before in ("", "\n")
        case "line end":
            return after in ("", "\n")
    word = Chars(WORD)
    differ = (before != "" and word.has(before)) != (after != "" and word.has(after))
    return differ == (edge == "word")


@lru_cache(16)
def _program(text: str) -> Program:
    return _read(text).program


def _read(text: str) -> Part:
    """An expression within its bounds; Unsupported if it is not."""
    if len(text) > MAX_LENGTH:
        raise Unsupported(f"an expression of more than {MAX_LENGTH} characters")
    reader = _Reader(text)
    part = reader.choice(frozenset())
    if not reader.ended:
        raise Unsupported(NO_EXPRESSION)
    if part.repeats > MAX_REPEAT:
        raise Unsupported(f"an expression that repeats more than {MAX_REPEAT} times")
    if part.size > MAX_SIZE:
        raise Unsupported(f"too large an expression: about {part.size} instructions, more than {MAX_SIZE}")
    return part


class _Reader:
    """An expression, read from left to right. Parts that are too large have no program: it would be as large."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._nesting = 0

    def __repr__(self) -> str:
        return f"<_Reader at {self._position} of {self._text!r}>"

    @property
    def ended(self) -> bool:
        """True behind the last character."""
        return self._position >= len(self._text)

    def _next(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """What is next, if it is of a pattern; the position is behind it."""
        result = pattern.match(self._text, self._position)
        if result is not None:
            self._position = result.end()
        return result

    def _is_next(self, text: str) -> bool:
        """True if a text is next; the position is behind it."""
        result = self._text.startswith(text, self._position)
        self._position += len(text) if result else 0
        return result

    def choice(self, flags: frozenset[str]) -> Part:
        """Alternatives, up to the end of the group. Flags that change within it count for what follows in it."""
        options = [Part()]
        while not self.ended and not self._text.startswith(")", self._position):
            if self._is_next("|"):
                options.append(Part(size=2))
                continue
            if self._next(_REPEAT) is not None:
                raise Unsupported(NO_EXPRESSION)  # of nothing
            group = self._next(_GROUP)
            if group is None:
                options[-1] = _joined(options[-1], self._repeated(self._atom(flags)))
                continue
            added, removed, end = group[1] or "", group[2] or "", group[3]
            changed = flags.union(added).difference(removed)
            if end != ")":
                options[-1] = _joined(options[-1], self._repeated(self._group(changed)))
            elif added or removed:
                flags, options[-1] = changed, _joined(options[-1], Part(size=2))
            else:
                raise Unsupported(NO_EXPRESSION)
        return _chosen(options)

    def _group(self, flags: frozenset[str]) -> Part:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            raise Unsupported(f"an expression of more than {MAX_NESTING} groups within each other")
        inner = self.choice(flags)
        if not self._is_next(")"):
            raise Unsupported(NO_EXPRESSION)
        self._nesting -= 1
        return Part(inner.program, inner.size + 2, inner.repeats)

    def _repeated(self, part: Part) -> Part:
        result = self._next(_REPEAT)
        if result is None:
            return part
        if not part.repeatable or self._next(_REPEAT) is not None:
            raise Unsupported(NO_EXPRESSION)
        sign, least, comma, most = result.groups()
        if sign:
            bounds = {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
            return Part(_repetition(part.program, *bounds), part.size + 2, part.repeats)
        lower = _count(least)
        upper = _count(most) if most else None if comma else lower
        if upper is not None and upper < lower:
            raise Unsupported(NO_EXPRESSION)
        times = max(1, lower if upper is None else upper)
        size, repeats = part.size * times, part.repeats * times
        fits = repeats <= MAX_REPEAT and size <= MAX_SIZE
        return Part(_repetition(part.program, lower, upper) if fits else (), size, repeats)

    def _atom(self, flags: frozenset[str]) -> Part:
        if (escape := self._next(_ESCAPE)) is not None:
            return self._escape(escape, flags)
        char = self._text[self._position]
        self._position += 1
        match char:
            case "[":
                return self._class(flags)
            case ".":
                return Part((Chars(() if "s" in flags else NEWLINE, negated=True),), WIDE + 1)
            case "^":
                return Part((At("line start" if "m" in flags else "text start"),), 1, repeatable=False)
            case "$":
                return Part((At("line end" if "m" in flags else "text end"),), 1, repeatable=False)
            case "\\":
                raise Unsupported(NO_EXPRESSION)
        return Part((Chars(_single(ord(char)), fold="i" in flags),), len(char.encode(errors="replace")))

    def _escape(self, escape: re.Match[str], flags: frozenset[str]) -> Part:
        edges: dict[str, Edge] = {"b": "word", "B": "no word", "A": "text start"}
        if escape[3] in edges:
            return Part((At(edges[escape[3]]),), 4, repeatable=False)
        ranges = self._escaped(escape)
        wide = escape[3] in ("D", "S", "W")
        return Part((Chars(ranges, fold="i" in flags and not wide),), WIDE + 2 if wide else 4)

    def _escaped(self, escape: re.Match[str]) -> Ranges:
        """The characters of an escape, within a class or not."""
        hexadecimal, octal, char = escape.groups()
        if hexadecimal is not None:
            return _single(bytes.fromhex(hexadecimal)[0])
        if octal is not None:
            return _single(_number(octal, base=8))
        if char.lower() in ESCAPES:
            ranges = ESCAPES[char.lower()]
            return _outside(ranges) if char.isupper() else ranges
        if char in CONTROLS:
            return _single(CONTROLS[char])
        if not char.isascii() or char.isalnum() or char == "_":
            raise Unsupported(NO_EXPRESSION)
        return _single(ord(char))

    def _class(self, flags: frozenset[str]) -> Part:
        begin = self._position - 1
        negated = self._is_next("^")
        ranges = self._members()
        while not self._is_next("]"):
            ranges += self._members()
        written = self._text[begin : self._position]
        size = len(written) + (WIDE if negated or not written.isascii() else 0)
        return Part((Chars(ranges, negated=negated, fold="i" in flags),), size)

    def _members(self) -> Ranges:
        """A named class, a range, or a character of a class."""
        if (posix := self._next(_POSIX)) is not None:
            if posix[2] not in POSIX:
                raise Unsupported(NO_EXPRESSION)
            ranges = POSIX[posix[2]]
            return _outside(ranges) if posix[1] else ranges
        first = self._member()
        if not self._text.startswith("-", self._position) or self._text.startswith("-]", self._position):
            return first
        self._position += 1
        last = self._member()
        if not _is_single(first) or not _is_single(last) or last < first:
            raise Unsupported(NO_EXPRESSION)
        return ((first[0][0], last[0][0]),)

    def _member(self) -> Ranges:
        if (escape := self._next(_ESCAPE)) is not None:
            return self._escaped(escape)
        if self.ended or self._text[self._position] == "\\":
            raise Unsupported(NO_EXPRESSION)
        self._position += 1
        return _single(ord(self._text[self._position - 1]))


def _joined(first: Part, then: Part) -> Part:
    size = first.size + then.size
    program = first.program + then.program if size <= MAX_SIZE else ()
    return Part(program, size, max(first.repeats, then.repeats))


def _chosen(options: list[Part]) -> Part:
    """One of some parts: try the first, or else go on to the others."""
    whole = options[-1]
    for each in reversed(options[:-1]):
        program = (
            Split(1, len(each.program) + 2), *each.program, Split(rest := len(whole.program) + 1, rest), *whole.program
        )  # fmt: skip
        whole = Part(program, each.size + whole.size, max(each.repeats, whole.repeats))
    return whole


def _repetition(program: Program, least: int, most: int | None) -> Program:
    """A program ``least`` to ``most`` times; ``None``: without end."""
    length = len(program)
    if most is None:
        again: Program = (Split(1, length + 2), *program, Split(-length - 1, -length - 1))
        return program * least + again
    return program * least + (Split(1, length + 1), *program) * (most - least)


def _count(digits: str) -> int:
    """A number of repetitions; ten times the bound if it has more than four digits."""
    significant = digits.lstrip("0")
    return _number(significant, base=10) if len(significant) <= 4 else 10 * MAX_REPEAT


def _number(digits: str, *, base: int) -> int:
    return sum(base**place * (ord(digit) - ord("0")) for place, digit in enumerate(reversed(digits)))


def _single(code: int) -> Ranges:
    return ((code, code),)


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][0] == ranges[0][1]


def _outside(ranges: Ranges) -> Ranges:
    """All characters but these."""
    edges = [-1, *(edge for first, last in sorted(ranges) for edge in (first, last)), LAST + 1]
    pairs = zip(edges[::2], edges[1::2], strict=True)
    return tuple((before + 1, after - 1) for before, after in pairs if before + 1 <= after - 1)
