"""Ids of map entries. Zero is never allocated; a released id is reused only after all others were allocated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

WORD: Final = 256
"""Bits in a word. A set of numbers would take 300 times the memory."""
UNBOUNDED: Final = 0xFFFF_FFFE
"""Larger than any map."""


class Ids:
    """An allocator. Restored ids (``used``) are reserved before any is allocated.

    ``most`` is the last id that fits into an array. Higher ids are allocated only while all lower ones are in use; the
    kernel refuses their entries.
    """

    def __init__(self, used: Iterable[int] = (), *, most: int = UNBOUNDED) -> None:
        self._words: dict[int, int] = {}
        self._count = 0
        self._beyond = 0
        """Number of ids in use above ``most``."""
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
        """Free ids, in the order of :meth:`take`."""
        if count > self._room():
            return [self.take() for _ in range(count)]
        numbers: list[int] = []
        while len(numbers) < count:
            first = self._last % self._most + 1
            word, bit = divmod(first, WORD)
            used = self._words.get(word, 0)
            run = min(count - len(numbers), WORD - bit, self._most - first + 1)
            if used >> bit:  # some ids of this word are in use
                numbers.append(self.take())
                continue
            self._words[word] = used | ((1 << run) - 1) << bit
            self._count += run
            self._last = first + run - 1
            numbers += range(first, first + run)
        return numbers

    def release(self, numbers: list[int]) -> None:  # hot:
        """Release ids; one that is not in use is no error."""
        if numbers and numbers[-1] <= self._most and numbers == [*range(numbers[0], numbers[0] + len(numbers))]:
            self._release_run(numbers[0], numbers[-1])  # mostly: ids are released in allocation order
            return
        for number in numbers:
            word, bit = divmod(number, WORD)
            if self._free(word, 1 << bit):
                self._beyond -= number > self._most

    def _release_run(self, first: int, last: int) -> None:
        """Release all ids from ``first`` to ``last``, none of them above ``most``."""
        for word in range(first // WORD, last // WORD + 1):
            start, end = max(first - word * WORD, 0), min(last - word * WORD + 1, WORD)
            self._free(word, (1 << end) - (1 << start))

    def _free(self, word: int, bits: int) -> int:
        """Clear these bits of a word. Returns how many of them were set. An empty word is not stored."""
        used = self._words.get(word, 0)
        count = (used & bits).bit_count()
        if remaining := used & ~bits:
            self._words[word] = remaining
        else:
            self._words.pop(word, None)
        self._count -= count
        return count

    def _room(self) -> int:
        return self._most - (self._count - self._beyond)

    def _reserve(self, number: int) -> bool:
        """Take this id; False if it is in use already."""
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
