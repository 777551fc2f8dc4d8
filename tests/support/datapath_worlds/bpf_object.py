"""The compiled datapath as an ELF object: its functions, their calls and the stack that each takes."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FRAME, LOAD, STORES, CALL, WIDE = 10, 1, (2, 3), 0x85, 0x18
"""The register of the frame; classes and codes of linux/bpf.h."""
MOVE, ADD = 0xBF, 0x07
WRITES_REGISTER = (0, 1, 4, 7)


class Section(NamedTuple):
    """A section header of elf.h, as far as it is read."""

    name: int
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int


class Function(NamedTuple):
    """One of the object, by the section that it is in and its place there."""

    name: str
    section: str
    stack: int
    calls: frozenset[tuple[int, int]]
    helpers: frozenset[int]
    """By their numbers in enum bpf_func_id."""


class Object:
    """What is read of it."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        start, size, count, names = *struct.unpack_from("<Q", raw, 40), *struct.unpack_from("<HHH", raw, 58)
        headers = [struct.unpack_from("<IIQQQQIIQQ", raw, start + n * size) for n in range(count)]
        self.sections = [Section(h[0], h[1], h[2], h[4], h[5], h[6], h[7]) for h in headers]
        self._names = self.sections[names]
        [table] = [each for each in self.sections if each.kind == 2]  # SHT_SYMTAB
        self._strings = self.sections[table.link]
        self._symbols = list(struct.iter_unpack("<IBBHQQ", self.content(table)))

    def content(self, section: Section) -> bytes:
        return self._raw[section.offset : section.offset + section.size]

    def name(self, section: Section) -> str:
        return self._text(self._names, section.name)

    def code(self) -> Iterator[tuple[str, bytes]]:
        """Name and instructions of each section of code."""
        for section in self.sections:
            if section.kind == 1 and section.flags & 4:  # SHT_PROGBITS, SHF_EXECINSTR
                yield self.name(section), self.content(section)

    def functions(self) -> dict[tuple[int, int], Function]:
        """All of them by section and place."""
        found = {}
        for name, info, _, section, place, size in self._symbols:
            if info & 15 == 2:  # STT_FUNC
                code = self.content(self.sections[section])[place : place + size]
                calls = frozenset(self._calls(code, section, place))
                title = self.name(self.sections[section])
                found[section, place] = Function(
                    self._text(self._strings, name), title, stack(code), calls, helpers(code)
                )
        return found

    def programs(self) -> dict[str, frozenset[int]]:
        """The helpers that each program calls, itself or by the functions that it calls."""
        functions = self.functions()

        def called(at: tuple[int, int], seen: set[tuple[int, int]]) -> frozenset[int]:
            seen.add(at)
            function = functions[at]
            return function.helpers.union(*(called(each, seen) for each in function.calls if each not in seen))

        return {each.name: called(at, set()) for at, each in functions.items() if each.section != ".text"}

    def _text(self, strings: Section, at: int) -> str:
        start = strings.offset + at
        return self._raw[start : self._raw.index(b"\0", start)].decode()

    def _calls(self, code: bytes, section: int, place: int) -> Iterator[tuple[int, int]]:
        """Section and place of what a function calls; of one elsewhere a relocation has it."""
        moved = {
            offset: self._symbols[what >> 32]
            for each in self.sections
            if each.kind == 9 and each.info == section  # SHT_REL
            for offset, what in struct.iter_unpack("<QQ", self.content(each))
        }
        for at, (op, registers, _, immediate) in instructions(code):
            if op == CALL and registers >> 4 == 1:
                if symbol := moved.get(place + at):
                    _, info, _, where, start, _ = symbol
                    yield where, start if info & 15 == 2 else start + 8 * (immediate + 1)
                else:
                    yield section, place + at + 8 * (immediate + 1)


def instructions(code: bytes) -> Iterator[tuple[int, tuple[int, int, int, int]]]:
    """Place and struct bpf_insn of each: code, registers, offset, immediate."""
    at = 0
    while at < len(code):
        found: tuple[int, int, int, int] = struct.unpack_from("<BBhi", code, at)
        yield at, found
        at += 16 if found[0] == WIDE else 8


def helpers(code: bytes) -> frozenset[int]:
    """Numbers of the helpers that are called."""
    return frozenset(
        immediate for _, (op, registers, _, immediate) in instructions(code) if op == CALL and registers < 16
    )


def stack(code: bytes) -> int:
    """Bytes below the frame's top that a function uses: by the frame's register, or an address made from it."""
    deepest = 0
    addresses: dict[int, int] = {}
    for _, (op, registers, offset, immediate) in instructions(code):
        target, source, kind = registers & 15, registers >> 4, op & 7
        if (kind == LOAD and source == FRAME) or (kind in STORES and target == FRAME):
            deepest = max(deepest, -offset)
        if op == MOVE and source == FRAME:
            addresses[target] = 0
        elif op == ADD and target in addresses:
            addresses[target] += immediate
            deepest = max(deepest, -addresses[target])
        elif kind in WRITES_REGISTER:
            addresses.pop(target, None)
    return deepest


def read(path: Path) -> Object:
    return Object(path.read_bytes())
