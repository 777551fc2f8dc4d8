"""``isthmus bpf remove`` leaves nothing of Isthmus on a node."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import World

from isthmus.datapath.core import attach, libbpf

pytestmark = [pytest.mark.bpf, pytest.mark.own_datapath]

ADDRESSES = "ip link set lo up; ip address add 169.254.7.1/32 dev lo; ip address add fd00:169:254:7::1/128 dev lo"


def test_programs_pins_addresses_and_files_are_removed_and_a_second_time_finds_nothing(
    world: World, tmp_path: Path
) -> None:
    datapath = world.open()
    datapath.repair()
    assert attach.pinned(world.pin).is_dir()
    datapath.close()
    for name in ("run/isthmus/proxy", "var/lib/isthmus/peers", "run/other"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text("x")
    remove = f"{sys.executable} -m isthmus bpf remove --everything --pin {world.pin} --root {tmp_path}"
    script = f"{ADDRESSES}; {remove} && {remove} && ip -o address show dev lo"
    done = subprocess.run(["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=True)
    shown = [line for line in done.stdout.splitlines() if "scope" in line]
    assert not [line for line in shown if "169.254.7.1" in line or "fd00:169:254:7::1" in line]
    assert not Path(world.pin).exists()
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["file", "lib", "other", "run", "var"]
    fd = os.open(world.cgroup, 0)
    try:
        assert libbpf.cgroup_programs(fd, attach.CONNECT4) == []
    finally:
        os.close(fd)
