"""Measurements of a process's machine: of this one, of network namespaces made here, and of files as the kernel has."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from machine.full_disk import SmallDisk
from machine.namespaces import ip

from isthmus.admin.machine import Machine, Table, measure

MEASURE = (
    "import msgspec, sys; from isthmus.admin.machine import measure; print(msgspec.json.encode(measure()).decode())"
)
EXHAUST = """
import socket
server = socket.create_server(("127.0.0.1", 80), backlog=64)
clients = []
try:
    while True:
        clients.append(socket.create_connection(("127.0.0.1", 80)))
except OSError as error:
    assert error.errno == 99, error
"""


@pytest.fixture
def namespace() -> Iterator[str]:
    name = f"machine-{os.getpid()}"
    ip("netns", "add", name)
    try:
        ip("-n", name, "link", "set", "lo", "up")
        yield name
    finally:
        ip("netns", "delete", name)


def inside(name: str, *command: str) -> str:
    done = subprocess.run(
        ["ip", "netns", "exec", name, *command], check=True, capture_output=True, text=True, timeout=60
    )
    return done.stdout


def python(name: str, code: str) -> str:
    return inside(name, sys.executable, "-c", code)


def test_this_machine_has_each_value() -> None:
    machine = measure(["/"])
    assert machine.descriptors is not None
    assert machine.local_ports is not None
    assert machine.local_ports.limit > 1000
    [disk] = machine.disks
    assert 0 < disk.free_bytes <= disk.size_bytes


def test_open_descriptors_are_counted_against_the_limit_of_the_process() -> None:
    before = measure().descriptors
    assert before is not None
    with socket.socket(), socket.socket():
        now = measure().descriptors
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert now == Table(before.used + 2, limit)


def test_a_file_system_is_measured_once_and_a_missing_directory_not_at_all(small_disk: SmallDisk) -> None:
    (small_disk.path / "run").mkdir()
    path = str(small_disk.path)
    small_disk.fill()
    [disk] = measure([path, f"{path}/run", f"{path}/missing", ""]).disks
    assert (disk.path, disk.free_bytes) == (path, 0)


def test_files_of_the_kernel_that_are_missing_cost_their_own_values_alone(tmp_path: Path) -> None:
    machine = measure(proc=tmp_path)
    assert machine.time > 0
    assert msgspec.structs.replace(machine, time=0.0) == Machine(time=0.0)


def test_conntrack_is_the_namespaces_count_and_limit(tmp_path: Path) -> None:
    files = tmp_path / "sys/net/netfilter"
    files.mkdir(parents=True)
    (files / "nf_conntrack_count").write_text("262144\n")
    (files / "nf_conntrack_max").write_text("262144\n")
    assert measure(proc=tmp_path).conntrack == Table(262_144, 262_144)


@pytest.mark.bpf
def test_ports_that_are_all_taken_by_calls_of_one_destination_are_counted_with_it(namespace: str) -> None:
    inside(namespace, "sh", "-c", "echo 30000 30019 >/proc/sys/net/ipv4/ip_local_port_range")
    free = msgspec.json.decode(python(namespace, MEASURE), type=Machine)
    assert (free.local_ports, free.port_destination) == (Table(0, 20), "")
    full = msgspec.json.decode(python(namespace, EXHAUST + MEASURE), type=Machine)
    assert (full.local_ports, full.port_destination) == (Table(20, 20), "127.0.0.1:80")


@pytest.mark.bpf
def test_packets_whose_way_back_is_another_are_counted(namespace: str) -> None:
    """A packet arrives from an address that is routed by another interface, and rp_filter is strict."""
    peer = f"{namespace}-peer"
    ip("netns", "add", peer)
    try:
        ip("-n", namespace, "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", peer)
        ip("-n", namespace, "address", "add", "10.77.9.1/24", "dev", "eth0")
        ip("-n", peer, "address", "add", "10.77.9.2/24", "dev", "eth0")
        ip("-n", peer, "address", "add", "10.88.0.1/32", "dev", "eth0")
        for each in (namespace, peer):
            ip("-n", each, "link", "set", "eth0", "up")
        inside(namespace, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter")
        send = (
            "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('{}', 0)); "
            "s.sendto(b'x', ('10.77.9.1', 9))"
        )
        python(peer, send.format("10.77.9.2"))
        assert msgspec.json.decode(python(namespace, MEASURE), type=Machine).reverse_path_drops == 0
        python(peer, send.format("10.88.0.1"))
        assert msgspec.json.decode(python(namespace, MEASURE), type=Machine).reverse_path_drops == 1
    finally:
        ip("netns", "delete", peer)
