"""A directory of YAML as a source: what a change costs, what a mistake costs, who wins."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from isthmus.model.services import Endpoint, Port
from isthmus.model.tables import ENDPOINT_SETS, FAULTS, SERVICES
from isthmus.sources.files import Files
from isthmus.statedb import Database

SERVICE = """
apiVersion: v1
kind: Service
metadata:
  name: {name}
  creationTimestamp: 2026-01-01T00:00:00Z
spec:
  clusterIP: {ip}
  ports:
  - {{name: http, port: 80}}
"""
SLICE = """
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: echo-1
  namespace: demo
  labels: {kubernetes.io/service-name: echo}
ports: [{name: http, port: 8080}]
endpoints:
- addresses: [10.1.1.5]
"""


class World:
    """A directory, a database, and a source between them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.db = Database(SERVICES, ENDPOINT_SETS, FAULTS)
        self.source = Files(self.db, folder)

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        before = path.stat().st_mtime_ns if path.exists() else 0
        path.write_text(text)
        os.utime(path, ns=(before + 1, before + 1))

    def settle(self) -> None:
        self.source.step()
        self.source.step()

    def services(self) -> dict[str, tuple[str, ...]]:
        return {row.name: row.cluster_ips for row in self.db.snapshot().all(SERVICES)}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_first_look_fills_and_completes_both_tables(world: World) -> None:
    world.write("a.yaml", SERVICE.format(name="echo", ip="10.96.0.1") + "---\n" + SLICE)
    world.write("notes.txt", "not ours")
    assert not world.db.snapshot().initialized(SERVICES, ENDPOINT_SETS)
    world.source.step()
    assert world.db.snapshot().initialized(SERVICES, ENDPOINT_SETS)
    [service] = world.db.snapshot().all(SERVICES)
    assert (service.name, service.source, service.created) == ("default/echo", "files", "2026-01-01T00:00:00Z")
    [found] = world.db.snapshot().all(ENDPOINT_SETS)
    assert (found.service, found.cluster, found.source, found.part) == ("demo/echo", "", "files", "echo-1")
    assert found.endpoints == (Endpoint("10.1.1.5", (Port("http", 8080),)),)


def test_an_empty_directory_is_complete(world: World) -> None:
    world.source.step()
    assert world.db.snapshot().initialized(SERVICES)


def test_a_change_is_taken_once_it_stands_still(world: World) -> None:
    world.source.step()
    world.write("a.yaml", SERVICE.format(name="echo", ip="10.96.0.1"))
    assert not world.source.step()
    world.write("a.yaml", SERVICE.format(name="echo", ip="10.96.0.2"))
    assert not world.source.step()
    assert world.services() == {}
    assert world.source.step()
    assert world.services() == {"default/echo": ("10.96.0.2",)}
    assert not world.source.step()


def test_what_a_file_no_longer_says_goes_and_so_does_a_file(world: World) -> None:
    world.write("a.yaml", SERVICE.format(name="a", ip="10.96.0.1") + "---" + SERVICE.format(name="b", ip="10.96.0.2"))
    world.write("b.yaml", SERVICE.format(name="c", ip="10.96.0.3"))
    world.source.step()
    world.write("a.yaml", SERVICE.format(name="b", ip="10.96.0.2"))
    world.settle()
    assert world.services().keys() == {"default/b", "default/c"}
    (world.folder / "b.yaml").unlink()
    world.source.step()
    assert world.services().keys() == {"default/b"}


def test_a_file_that_is_no_yaml_keeps_what_it_last_said(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.write("a.yaml", SERVICE.format(name="a", ip="10.96.0.1"))
    world.source.step()
    world.write("a.yaml", "a: [")
    world.settle()
    assert world.services() == {"default/a": ("10.96.0.1",)}
    world.settle()
    [line] = [line for line in capsys.readouterr().err.splitlines() if "file ignored" in line]
    assert "a.yaml" in line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SERVICE.format(name="bad", ip="10.96.0.999"), "spec.clusterIPs: '10.96.0.999' is not an IP address"),
        (SERVICE.format(name="bad", ip="[]"), "$.spec.clusterIP"),
        ("kind: Deployment\nmetadata: {name: bad}", "kind: 'Deployment' is none of Service, EndpointSlice"),
        ("kind: EndpointSlice\nmetadata: {name: bad}", "metadata.labels: it belongs to no service"),
        ("- just\n- a list", "kind: 'None' is none of"),
        ("kind: Service", "$` - at"),
    ],
)
def test_an_object_that_cannot_be_read_costs_itself(
    world: World, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    world.write("a.yaml", f"{text}\n---{SERVICE.format(name='good', ip='10.96.0.1')}")
    world.source.step()
    assert world.services() == {"default/good": ("10.96.0.1",)}
    [line] = [line for line in capsys.readouterr().err.splitlines() if "object ignored" in line]
    assert "a.yaml" in line
    assert said.removeprefix("$` - at") in line


def test_an_object_and_a_file_that_turn_bad_keep_their_last_rows_and_are_faults(tmp_path: Path) -> None:
    world = World(tmp_path)
    good = SERVICE.format(name="good", ip="10.96.0.1")
    world.write("a.yaml", good + "---" + SERVICE.format(name="bad", ip="10.96.0.2"))
    world.source.step()
    world.write("a.yaml", good + "---" + SERVICE.format(name="bad", ip="10.96.0.999"))
    world.settle()
    assert world.services() == {"default/good": ("10.96.0.1",), "default/bad": ("10.96.0.2",)}
    [fault] = world.db.snapshot().all(FAULTS)
    assert (fault.kind, fault.name, fault.cause) == ("files", "a.yaml: Service default/bad", "malformed")
    world.write("a.yaml", "a: [")
    world.settle()
    assert len(world.services()) == 2
    [fault] = world.db.snapshot().all(FAULTS)
    assert fault.name == "a.yaml"
    (tmp_path / "a.yaml").unlink()
    world.source.step()
    assert world.services() == {}
    assert [*world.db.snapshot().all(FAULTS)] == []


def test_the_first_file_by_name_wins_and_the_other_surfaces_when_it_goes(world: World) -> None:
    world.write("b.yaml", SERVICE.format(name="echo", ip="10.96.0.2"))
    world.write("a.yaml", SERVICE.format(name="echo", ip="10.96.0.1"))
    world.source.step()
    assert world.services() == {"default/echo": ("10.96.0.1",)}
    (world.folder / "a.yaml").unlink()
    world.source.step()
    assert world.services() == {"default/echo": ("10.96.0.2",)}


def test_a_directory_that_is_away_changes_nothing(world: World, tmp_path: Path) -> None:
    gone = World(tmp_path / "gone")
    assert not gone.source.step()
    assert gone.db.snapshot().pending(SERVICES) == {"files"}
    gone.folder.mkdir()
    gone.source.step()
    assert gone.db.snapshot().initialized(SERVICES)


def test_lists_are_taken_apart(world: World) -> None:
    world.write(
        "a.yaml", "kind: List\nitems:\n- {kind: Service, metadata: {name: a}}\n- {kind: Service, metadata: {name: b}}"
    )
    world.source.step()
    assert world.services().keys() == {"default/a", "default/b"}
