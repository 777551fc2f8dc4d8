"""What a process has freed goes back to the system, measured in a process of its own."""

from __future__ import annotations

import subprocess
import sys

GROWN_AND_SHRUNK = """
import asyncio, os
from isthmus.processes import memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

def grow_and_shrink():
    rows = [bytes(1_000) for _ in range(100_000)]
    last = bytes(1_000)  # at the end of the heap: the C library gives nothing back by itself
    del rows
    return last

async def main():
    task = asyncio.create_task(memory.keep_small(every=0.01))
    while resident() > before + (30 << 20):
        await asyncio.sleep(0.01)
    task.cancel()

before = resident()
last = grow_and_shrink()
assert resident() > before + (80 << 20), "the test frees nothing that is kept"
asyncio.run(main())
"""


def test_memory_that_a_process_has_freed_goes_back_to_the_system() -> None:
    subprocess.run([sys.executable, "-c", GROWN_AND_SHRUNK], check=True, timeout=120)
