"""The examples that add a part of their own to the ordinary ones: run as people run them, read as people read them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import World, sweep
from peers.etcd_server import free_ports

from isthmus.admin.query import QueryError, Socket
from isthmus.datapath import remove

ROOT = Path(__file__).parents[2]
STATIC_VMS = ROOT / "examples" / "static-vms" / "static_vms.py"
HEALTH_CHECKER = ROOT / "examples" / "health-checker" / "health_checker.py"
SECONDS = 60.0


@contextmanager
def running(example: Path, folder: Path, *arguments: str, more: str = "") -> Iterator[Socket]:
    """The example as a process, with a configuration of the test's; it ends well when it is told to."""
    config, path = folder / "node.toml", folder / "admin.sock"
    config.write_text(f'[cluster]\nname = "c1"\n[node]\nname = "n1"\n[admin]\nsocket = "{path}"\n{more}')
    process = subprocess.Popen([sys.executable, example, config, *arguments], cwd=ROOT)
    try:
        yield Socket(path)
    finally:
        process.terminate()
        assert process.wait(60) == 0


def plans(asked: Socket) -> dict[str, list[str]]:
    """Service → backends; nothing while nobody answers yet."""
    try:
        rows = asked.table("plans", wait=1.0).rows
    except QueryError:
        return {}
    return {
        row["key"]["service"]: [f"{t['address']}:{t['port']}" for group in row["groups"] for t in group["targets"]]
        for row in rows
    }


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


@pytest.mark.parametrize("example", [STATIC_VMS, HEALTH_CHECKER], ids=lambda path: path.stem)
def test_a_part_of_ones_own_takes_less_than_sixty_lines(example: Path) -> None:
    assert len(example.read_text().splitlines()) < 60


def test_a_list_of_machines_is_a_source_like_any_other(tmp_path: Path) -> None:
    with running(STATIC_VMS, tmp_path, str(STATIC_VMS.parent / "vms.txt")) as asked:
        until(lambda: len(plans(asked)) == 2)
        assert plans(asked) == {"shop/cache": ["192.0.2.21:6379"], "shop/db": ["192.0.2.11:5432", "192.0.2.12:5432"]}


def listening(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.listen(16)
    return made


def test_what_the_health_checker_finds_dead_is_in_no_plan_until_it_answers_again(tmp_path: Path) -> None:
    ports = free_ports(2)
    one, two = map(listening, ports)
    services = tmp_path / "services"
    services.mkdir()
    text = (HEALTH_CHECKER.parent / "services" / "web.yaml").read_text()
    (services / "web.yaml").write_text(text.replace("8081", str(ports[0])).replace("8082", str(ports[1])))
    both = sorted(f"127.0.0.1:{port}" for port in ports)
    with one, running(HEALTH_CHECKER, tmp_path, more=f'[sources]\nfiles = "{services}"\n') as asked:
        until(lambda: sorted(plans(asked).get("demo/web", [])) == both)
        two.close()
        until(lambda: plans(asked).get("demo/web", []) == [f"127.0.0.1:{ports[0]}"])
        [dead] = [row for row in asked.table("probes").rows if not row["healthy"]]
        assert dead["key"]["port"] == ports[1]
        assert dead["reason"]
        with listening(ports[1]):
            until(lambda: sorted(plans(asked).get("demo/web", [])) == both)


@pytest.mark.bpf
def test_an_example_with_a_cgroup_programs_the_kernel(tmp_path: Path) -> None:
    sweep()
    world = World(tmp_path)
    try:
        more = f'[datapath]\ncgroup = "{world.cgroup}"\npin = "{world.pin}"\n[dns]\nmode = "off"\n'
        with running(STATIC_VMS, tmp_path, str(STATIC_VMS.parent / "vms.txt"), more=more) as asked:
            until(lambda: len(plans(asked)) == 2)
            until(lambda: len(asked.table("plans_status").rows) == 0 and len(list(Path(world.pin).rglob("plans"))) == 1)
    finally:
        remove(world.pin)
        world.close()
