"""What a bug report has in it."""

from __future__ import annotations

import asyncio
import json
import stat
import tarfile
from pathlib import Path

from click.testing import CliRunner, Result
from rows.admin_world import serving

from isthmus.cli import root
from isthmus.model.services import Namespace
from isthmus.model.tables import NAMESPACES


def gather(*words: str) -> Result:
    return CliRunner().invoke(root, ["gather", *words])


async def test_a_report_has_status_and_tables_and_is_its_owners_only(tmp_path: Path) -> None:
    path, report = tmp_path / "agent.sock", tmp_path / "report.tar.gz"
    async with serving(path) as process:
        process.put(NAMESPACES, Namespace("demo"))
        done = await asyncio.to_thread(gather, "--socket", str(path), "-f", str(report))
    assert done.exit_code == 0, done.output
    assert stat.S_IMODE(report.stat().st_mode) == 0o600
    with tarfile.open(report) as archive:
        found = {name.partition("/")[2]: json.load(archive.extractfile(name) or ()) for name in archive.getnames()}  # type: ignore[arg-type]
    assert {"versions.json", "agent/status.json", "diagnosis.json"} <= found.keys()
    assert found["agent/tables/namespaces.json"]["rows"][0]["name"] == "demo"


def test_a_report_is_never_written_over_another_file(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    done = gather("--socket", str(tmp_path / "none.sock"), "-f", str(tmp_path / "kept"))
    assert (done.exit_code, (tmp_path / "kept").read_text()) == (1, "mine")
    assert "File exists" in done.output


def test_of_a_process_that_does_not_answer_the_report_has_the_reason(tmp_path: Path) -> None:
    done = gather("--socket", str(tmp_path / "agent.sock"), "-f", str(tmp_path / "report.tar.gz"))
    assert done.exit_code == 0, done.output
    assert "not everything could be asked; the reasons are in agent/error.txt" in done.stderr
    with tarfile.open(tmp_path / "report.tar.gz") as archive:
        reason = archive.extractfile("report/agent/error.txt")
        assert reason is not None
        assert b"no process serves" in reason.read()
