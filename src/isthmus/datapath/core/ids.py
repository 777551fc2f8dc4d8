"""Ids of entries in the maps. Zero is never given out; one given back is not given out again before all others were."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

WORD: Final = 256
"""Numbers in a word of bits: a set of numbers takes three hundred times the room."""
UNBOUNDED: Final = 0xFFFF_FFFE
"""More than any map has room for."""


class Ids:
    """An allocator. What is in use at the start (restored) is reserved before anything is given out.

    ``most``: the last that an array has room for. Others are given out only while all of these are in use, for entries
    that the kernel refuses.
    """

    def __init__(self, used: Iterable[int] = (), *, most: int = UNBOUNDED) -> None:
        self._words: dict[int, int] = {}
        self._count = 0
        self._beyond = 0
        """How many of these are above ``most``."""
        self._last = 0
        self._highest = self._most = most
        for number in used:
            self._reserve(number)
            if number <= most:
                self._last = max(self._last, number)

    def __len__(self) -> int:
        return self._count

    def __repr__(self) -> str:
        return f"<Ids: {self._count} in use, last {self._last}>"

    def take(self) -> int:
        """A free id."""
        if not self._room():
            self._reserve(self._highest + 1)
            return self._highest
        number = self._last % self._most + 1
        while not self._reserve(number):
            number = number % self._most + 1
        self._last = number
        return number

    def take_many(self, count: int) -> list[int]:  # hot:
        """Free ids, in the order in which :meth:`take` would give them."""
        if count > self._room():
            return [self.take() for _ in range(count)]
        found: list[int] = []
        while len(found) < count:
            first = self._last % self._most + 1
            word, bit = divmod(first, WORD)
            used = self._words.get(word, 0)
            run = min(count - len(found), WORD - bit, self._most - first + 1)
            if used >> bit:  # some of this word are in use
                found.append(self.take())
                continue
            self._words[word] = used | ((1 << run) - 1) << bit
            self._count += run
            self._last = first + run - 1
            found += range(first, first + run)
        return found

    def release(self, numbers: list[int]) -> None:  # hot:
        """Give numbers back; one that is not in use is no error."""
        if numbers and numbers[-1] <= self._most and numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
            self._release_run(numbers[0], numbers[-1])  # mostly: they go in the order in which they came
            return
        for number in numbers:
            word, bit = divmod(number, WORD)
            if self._free(word, 1 << bit):
                self._beyond -= number > self._most

    def _release_run(self, first: int, last: int) -> None:
        """Give back all numbers from one to another, none of them above ``most``."""
        for word in range(first // WORD, last // WORD + 1):
            start, end = max(first - word * WORD, 0), min(last - word * WORD + 1, WORD)
            self._free(word, (1 << end) - (1 << start))

    def _free(self, word: int, bits: int) -> int:
        """Take these bits out of a word; gives how many of them were in it. An empty word takes no room."""
        used = self._words.get(word, 0)
        count = (used & bits).bit_count()
        if left := used & ~bits:
            self._words[word] = left
        else:
            self._words.pop(word, None)
        self._count -= count
        return count

    def _room(self) -> int:
        return self._most - (self._count - self._beyond)

    def _reserve(self, number: int) -> bool:
        """Take this id; False where it is taken already."""
        word, bit = divmod(number, WORD)
        used = self._words.get(word, 0)
        if used >> bit & 1:
            return False
        self._words[word] = used | 1 << bit
        self._count += 1
        if number > self._most:
            self._beyond += 1
            self._highest = max(self._highest, number)
        return True
