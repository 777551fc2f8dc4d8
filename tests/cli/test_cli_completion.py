"""What a shell completes: values that exist on this machine, and nothing where they cannot be found out."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from rows.admin_world import list_clusters, serving

from isthmus.cli import local, root
from isthmus.model import tables
from isthmus.model.names import ServiceName
from isthmus.model.services import Import, Service


@pytest.fixture(autouse=True)
def labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(local, "LABS", tmp_path)
    list_clusters(tmp_path / "demo", "c1", "c2")
    list_clusters(tmp_path / "other", "c1")
    return tmp_path


def completed(*words: str) -> list[str]:
    """Values for the last word."""
    items = ShellComplete(root, {}, "isthmus", "_ISTHMUS_COMPLETE").get_completions([*words[:-1]], words[-1])
    return [item.value for item in items]


def test_labs_and_their_clusters_are_completed() -> None:
    assert completed("status", "--lab", "") == ["demo", "other"]
    assert completed("status", "--lab", "demo", "--cluster", "") == ["c1", "c2"]
    assert completed("status", "--lab", "none", "--cluster", "") == []


def test_contexts_of_all_kubeconfigs_are_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_text("contexts: [{name: east, context: {}}, {name: west, context: {}}]")
    (tmp_path / "two").write_text("]")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'one'}:{tmp_path / 'two'}:{tmp_path / 'absent'}")
    assert completed("--context", "") == completed("status", "--context", "") == ["east", "west"]
    assert completed("status", "--context", "e") == ["east"]


async def test_tables_and_services_of_the_process_that_is_asked_are_completed(tmp_path: Path) -> None:
    socket = tmp_path / "agent.sock"
    async with serving(socket) as process:
        process.put(tables.IMPORTS, Import(name=ServiceName("demo/echo")))
        process.put(tables.SERVICES, Service(name=ServiceName("shop/web"), source="kubernetes"))
        asked = ("--socket", str(socket))
        assert await asyncio.to_thread(completed, "get", *asked, "pl") == ["plans", "plans_status"]
        assert await asyncio.to_thread(completed, "get", *asked, "imports", "") == ["demo/echo", "shop/web"]
        assert await asyncio.to_thread(completed, "explain", *asked, "s") == ["shop/web"]
    assert await asyncio.to_thread(completed, "get", "--socket", str(socket), "pl") == [], "it does not run"


def test_flags_and_their_values_are_completed() -> None:
    assert completed("get", "imports", "--wa") == ["--watch"]
    assert completed("get", "imports", "-o", "") == ["table", "wide", "name", "json", "yaml"]
