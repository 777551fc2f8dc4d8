"""Splitting a stream into lines: wherever it is cut, the same lines come out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.kube import store
from isthmus.kube.errors import Unreachable

LINES = st.lists(st.binary(max_size=20).map(lambda b: b.replace(b"\n", b".")), max_size=12)


async def chunks(data: bytes, cuts: list[int]) -> AsyncIterator[bytes]:
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        yield data[start:end]


async def split(data: bytes, cuts: list[int]) -> list[bytes]:
    return [line async for lines in store._lines(chunks(data, cuts), "watch") for line in lines]


@given(LINES, st.lists(st.integers(min_value=0), max_size=20), st.binary(max_size=5))
def test_cuts_do_not_matter_and_a_line_without_end_is_dropped(lines: list[bytes], cuts: list[int], rest: bytes) -> None:
    data = b"".join(line + b"\n" for line in lines) + rest.replace(b"\n", b".")
    assert asyncio.run(split(data, cuts)) == [line for line in lines if line.strip()]


async def test_a_line_without_end_does_not_fill_the_memory() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 100

    with pytest.raises(Unreachable, match="more than 1000 bytes"):
        async for _ in store._lines(endless(), "watch", 1000):
            pass
