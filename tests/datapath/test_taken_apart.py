"""Programs and pins that another process removes while the agent runs: calls go on, and they are restored."""

from __future__ import annotations

from pathlib import Path

import pytest
from datapath_worlds.bpf_world import BACKENDS, World, done, group, plan, programmed

from isthmus.datapath import Datapath, remove
from isthmus.datapath.core import attach, libbpf, manifest
from isthmus.datapath.manifest import PROGRAMS

pytestmark = [pytest.mark.bpf, pytest.mark.own_datapath]

VIP = "10.96.7.7"
ROW = plan("echo", VIP, group(BACKENDS[0]))


def pins(world: World, *where: str) -> list[str]:
    return sorted(path.name for path in Path(world.pin, *where).iterdir())


def test_nothing_taken_away_is_nothing_put_back(world: World, datapath: Datapath) -> None:
    datapath.repair()
    assert datapath.hooks == f"10 programs attached to {world.cgroup}"


def test_calls_go_on_although_the_links_are_unpinned_and_they_are_pinned_again(
    world: World, datapath: Datapath
) -> None:
    programmed(datapath.target(), ROW)
    before = pins(world, "links")
    for path in attach.links(world.pin).iterdir():
        path.unlink()
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    datapath.repair()
    assert pins(world, "links") == before
    assert datapath.hooks.endswith(f": {', '.join(program.name for program in PROGRAMS if program.kind == 'cgroup')}")
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"


@pytest.mark.slow
def test_the_next_agent_finds_them_although_their_directory_was_deleted(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), ROW)
    for path in attach.links(world.pin).iterdir():
        path.unlink()
    attach.links(world.pin).rmdir()
    datapath.repair()
    datapath.close()
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    reopened = world.open()
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    reopened.close()
    remove(world.pin)


def test_a_detached_program_is_attached_again(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), ROW)
    libbpf.detach_link(attach.links(world.pin) / "getpeername4")
    assert world.caller.tcp(VIP)["peer"] == BACKENDS[0]
    datapath.repair()
    assert datapath.hooks.endswith(": getpeername4")
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"


def test_an_unpinned_map_is_pinned_again_though_nothing_is_written(world: World, datapath: Datapath) -> None:
    programmed(datapath.target(), ROW)
    (attach.pinned(world.pin) / "slots").unlink()
    datapath.repair()
    assert datapath.hooks.endswith(": map slots")
    datapath.close()
    reopened = world.open()
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    reopened.close()
    remove(world.pin)


def test_a_deleted_cgroup_is_reported(world: World) -> None:
    below = world.cgroup / "pods"
    below.mkdir()
    datapath = world.open(cgroup=str(below))
    below.rmdir()
    datapath.repair()
    assert datapath.hooks == f"datapath.cgroup {below}: No such file or directory"
    datapath.close()
    remove(world.pin)


def test_an_agent_whose_place_another_took_keeps_nothing_where_it_was(
    world: World, datapath: Datapath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the old layout's maps, which the new agent has removed, would come back beside the new ones."""
    monkeypatch.setattr(manifest, "LAYOUT", manifest.LAYOUT + 1)
    newer = world.open()
    programmed(newer.target(), ROW)
    newer.take_over()
    datapath.repair()
    assert datapath.hooks == f"another agent's programs are attached to {world.cgroup}"
    assert set(done(datapath.target().update([ROW])).values()) == {datapath.hooks}
    assert pins(world) == ["links", f"v{manifest.LAYOUT}-1024"]
    newer.repair()
    assert newer.hooks == f"10 programs attached to {world.cgroup}"
    assert world.caller.tcp(VIP)["peer"] == f"{VIP}:80"
    newer.close()
