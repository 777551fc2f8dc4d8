"""Programs of a lab are started from the code that is on disk, not from what the zygote has imported."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from isthmus_lab.supervisor import sources
from isthmus_lab.supervisor.forking import Zygote


def test_a_changed_a_new_and_a_removed_file_are_noticed(tmp_path: Path) -> None:
    file = tmp_path / "package" / "a.py"
    file.parent.mkdir()
    file.write_text("one")
    seen = [sources.stamp([tmp_path])]
    file.write_text("two!")
    os.utime(file, ns=(seen[0].newest, seen[0].newest))  # within one tick of the file system's clock
    seen.append(sources.stamp([tmp_path]))
    (tmp_path / "b.py").write_text("")
    seen.append(sources.stamp([tmp_path]))
    file.unlink()
    seen.append(sources.stamp([tmp_path]))
    assert len(set(seen)) == 4
    assert sources.stamp([tmp_path]) == seen[-1]


def test_a_zygote_whose_code_is_no_longer_that_on_disk_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("one")
    ours, zygotes = socket.socketpair()
    with ours, zygotes:
        zygote = Zygote(ours, loaded=sources.stamp([tmp_path]), roots=[tmp_path])
        assert zygote.usable
        (tmp_path / "a.py").write_text("another")
        assert not zygote.usable
