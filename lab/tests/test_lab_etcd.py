"""Choice of the etcd that a lab runs, and what is printed about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.etcd import EtcdError, binary
from isthmus_lab import etcd_program
from isthmus_lab.realapi import binaries


def program(path: Path, version: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho 'etcd Version: {version}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_one_of_path_comes_first_then_the_one_built_then_that_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBEBUILDER_ASSETS", raising=False)
    packaged = Path(program(tmp_path / "package" / "etcd", "3.5.1"))
    monkeypatch.setattr(binary, "in_package", lambda: packaged)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setattr(binaries.find, "__kwdefaults__", {"environment": {}, "built": tmp_path / "built"})
    assert etcd_program.find() == str(packaged)
    built = program(tmp_path / "built" / "etcd", "3.7.3")
    assert etcd_program.find() == built
    on_path = program(tmp_path / "path" / "etcd", "3.6.5")
    assert etcd_program.find() == on_path
    monkeypatch.setattr(binary, "in_package", lambda: None)
    Path(on_path).unlink()
    Path(built).unlink()
    with pytest.raises(EtcdError, match="make kube-tools builds one"):
        etcd_program.find()


@pytest.mark.parametrize(("version", "warned"), [("3.5.0", True), ("3.5.2", True), ("3.5.3", False), ("3.7.3", False)])
def test_a_release_that_may_lose_writes_has_a_warning_with_what_to_do(
    tmp_path: Path, version: str, warned: bool
) -> None:
    warning = etcd_program.inspect(program(tmp_path / "etcd", version)).warning
    assert warning.startswith(f"etcd {version} may lose writes when it is killed: make kube-tools") == warned
    assert bool(warning) == warned


def test_a_program_that_does_not_run_is_an_error_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(EtcdError, match="does not run"):
        etcd_program.inspect(str(tmp_path / "none"))
