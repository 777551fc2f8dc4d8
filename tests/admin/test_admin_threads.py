"""Commands ask several processes at once, by threads: the first answers may come at the same moment."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import pytest

BESIDE: Final = """
import sys, threading
import msgspec
from isthmus.admin import query
from {module} import {tables}

sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)

def read():
    barrier.wait()
    for decoder in (query._LINE, query._TABLE_LINE, query._FEED_LINE, query._LISTING):
        try:
            decoder.decode(b"{{}}")
        except msgspec.ValidationError:
            pass
    for table in {tables}:
        try:
            msgspec.convert({{}}, table.row)
        except msgspec.ValidationError:
            pass

threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize(
    ("module", "tables"), [("isthmus.cli.ui.sources", "AGENT_TABLES"), ("isthmus.cli.diagnosis.facts", "TABLES")]
)
def test_threads_that_decode_their_first_rows_at_the_same_moment_do_not_crash(module: str, tables: str) -> None:
    for _ in range(5):
        code = BESIDE.format(module=module, tables=tables)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
