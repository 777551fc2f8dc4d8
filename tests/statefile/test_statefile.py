"""Files that a process begins with: whatever became of them, it begins."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from machine.full_disk import SmallDisk

from isthmus import statefile
from isthmus.statefile import KEPT, Unusable

BODY = b'{"cluster": "c2", "rows": []}'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "state"


def test_what_was_written_is_read_again(path: Path) -> None:
    statefile.write(path, BODY, version=3)
    assert statefile.read(path, version=3) == BODY
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in path.parent.iterdir()] == ["state"]


def test_no_file_is_no_state(path: Path) -> None:
    assert statefile.read(path, version=3) is None


@pytest.mark.parametrize("version", [2, 4])
def test_a_file_of_another_version_is_refused_by_its_version(path: Path, version: int) -> None:
    statefile.write(path, BODY, version=version)
    with pytest.raises(Unusable, match=f"^it is of version {version}, want 3$"):
        statefile.read(path, version=3)


@given(data=st.data())
def test_a_file_that_was_changed_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("state") / "state"
    statefile.write(path, BODY, version=3)
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    changed = data.draw(
        st.one_of(
            st.just(whole[:at]),  # a disk that was full, a machine that lost power
            st.integers(0, 7).map(lambda bit: whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]),
            st.binary(min_size=1, max_size=50).map(lambda more: whole[:at] + more + whole[at:]),
            st.binary(max_size=200),
        ).filter(lambda content: content != whole)
    )
    path.write_bytes(changed)
    with pytest.raises(Unusable):
        statefile.read(path, version=3)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [Path.mkdir, fifo, loop])
def test_what_is_no_file_is_refused_and_written_over(path: Path, make: Callable[[Path], None]) -> None:
    path.parent.mkdir()
    make(path)
    with pytest.raises(Unusable):
        statefile.read(path, version=3)
    statefile.write(path, BODY, version=3)
    assert statefile.read(path, version=3) == BODY


def test_what_a_killed_process_had_written_in_part_is_written_over(path: Path) -> None:
    statefile.write(path, BODY, version=3)
    (path.parent / ".state.part").write_bytes(BODY * 100)
    for _ in range(3):
        statefile.write(path, BODY, version=3)
    assert [each.name for each in path.parent.iterdir()] == ["state"]


def test_a_disk_that_is_full_keeps_the_last_state_and_no_rest_of_the_new_one(small_disk: SmallDisk) -> None:
    path = small_disk.path / "state"
    statefile.write(path, BODY, version=3)
    small_disk.fill()
    with pytest.raises(OSError, match="No space left on device"):
        statefile.write(path, BODY * 1_000, version=3)
    assert statefile.read(path, version=3) == BODY
    assert sorted(each.name for each in path.parent.iterdir()) == ["filler", "state"]


def test_a_file_is_set_aside_with_its_content_and_few_of_them_are_kept(path: Path) -> None:
    path.parent.mkdir()
    for number in range(10):
        path.write_text(f"{number}")
        place = statefile.set_aside(path)
        assert place is not None
        assert place.read_text() == f"{number}"
        assert not path.exists()
    assert [each.read_text() for each in statefile.aside(path)] == ["7", "8", "9"]
    assert len(list(path.parent.iterdir())) == KEPT


def test_a_directory_in_the_place_of_a_file_is_set_aside_and_never_deleted(path: Path) -> None:
    for number in range(KEPT + 2):
        path.mkdir(parents=True)
        (path / f"{number}").touch()
        statefile.replace(path, BODY)
        path.unlink()
    assert len(list(path.parent.glob("*/*"))) == KEPT + 2
