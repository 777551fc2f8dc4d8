"""Large sequences of few items, so that large and small ones are as common in a test's random rows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from isthmus.model import chunked


@contextmanager
def small_chunks(*, chunk: int, small: int) -> Iterator[pytest.MonkeyPatch]:
    """Sequences of more than ``small`` items are kept in chunks of ``chunk``; gives the patch, for what else is few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunked, "CHUNK", chunk)
        patch.setattr(chunked, "SMALL", small)
        yield patch
