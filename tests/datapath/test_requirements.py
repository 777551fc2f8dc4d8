"""What a machine lacks is reported in sentences that name the remedy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.datapath import requirements
from isthmus.datapath.core.libbpf import library

ASK = "from isthmus.datapath import requirements; print(*requirements(), sep='\\n')"


@pytest.mark.bpf
def test_this_machine_lacks_nothing() -> None:
    assert requirements() == []


@pytest.mark.bpf
def test_without_capabilities_the_sentence_names_them_and_the_remedy() -> None:
    command = ["setpriv", "--bounding-set=-net_admin,-sys_admin", "--inh-caps=-all", sys.executable, "-c", ASK]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == "CAP_NET_ADMIN and CAP_SYS_ADMIN missing: run as root (sudo)\n"


def test_an_old_kernel_is_named_with_the_version_that_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.release", lambda: "5.4.0-42-generic")
    assert "kernel 5.4.0-42-generic is older than 5.10: boot a newer one" in requirements()


def test_a_missing_object_is_named_with_how_to_make_it() -> None:
    assert any("make bpf" in sentence for sentence in requirements(compiled=Path("/nowhere/isthmus.bpf.o")))


def test_a_missing_library_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("isthmus.datapath.core.libbpf.SONAME", "libbpf.so.nowhere")
    library.cache_clear()
    assert any("apt-get install libbpf1" in sentence for sentence in requirements())
    library.cache_clear()
