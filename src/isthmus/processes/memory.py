"""Give freed memory back to the system.

The C library keeps what is freed for later: after a peer with many records has left, a process would hold their memory
for as long as it runs. How much that is is looked up now and then, and given back where it is much.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from typing import Any, Final

from isthmus import logs

LOOK_EVERY: Final = 30.0
"""Seconds between two looks: a look walks the free lists of the C library, some 10 µs."""
MUCH: Final = 16 << 20
"""Bytes that are freed and kept from which giving them back is worth its cost: some ms in a thread, and that they are
taken again a page at a time."""

log = logs.get("memory")


class _Arenas(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks"),
            *("uordblks", "fordblks", "keepcost"),
        )
    )


def _glibc() -> Any:
    """The C library; None where it is another than glibc 2.33 or newer."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2") or not hasattr(library, "malloc_trim"):
        return None
    library.mallinfo2.restype = _Arenas
    library.malloc_trim.argtypes = (ctypes.c_size_t,)
    return library


_library: Final = _glibc()


def unused() -> int:
    """Bytes that the process has freed and the C library keeps; 0 where the C library does not report them."""
    kept: int = _library.mallinfo2().fordblks if _library is not None else 0
    return kept


def give_back() -> None:
    """Give what is freed and kept back to the system."""
    if _library is not None:
        _library.malloc_trim(0)


def clear_free_lists() -> None:
    """Free the objects that Python keeps for later: each holds a megabyte in which nothing else may be used.

    A full collection does that, too. Here it finds no object to look at: all are set aside for its time.
    """
    gc.freeze()
    gc.collect()
    gc.unfreeze()


async def keep_small(*, every: float = LOOK_EVERY, much: int = MUCH) -> None:
    """Give memory back whenever much has been free at two looks, for ever: what is used again at once is left alone."""
    previous = 0
    while True:
        current = unused()
        if min(previous, current) >= much:
            clear_free_lists()
            await asyncio.to_thread(give_back)
            log.debug("memory given back", bytes=current - unused())
            current = 0
        previous = current
        await asyncio.sleep(every)
