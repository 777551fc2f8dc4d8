"""Resolvers of pods, as they are configured on real clusters, find the kernel's answers. Each in a pod of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from answers.names_node import SUPPORT, Node
from answers.names_world import CLUSTER_DNS, CLUSTER_DNS6, SECTION, ZONE
from machine import programs
from msgspec.structs import replace

from isthmus.model.dns import Name

pytestmark = pytest.mark.bpf

BOTH = f"both.demo.svc.{ZONE}"
FOUR = tuple(f"10.1.0.{n}" for n in range(1, 11))
SIX = tuple(f"fd00:1::{n}" for n in range(1, 10))
ROWS = (Name(BOTH, "A", FOUR), Name(BOTH, "AAAA", SIX))
NODE_LOCAL = "169.254.20.10"
SEARCH = "demo.svc.cluster.local svc.cluster.local cluster.local"
CONFIGURATIONS = {
    "cluster DNS": (CLUSTER_DNS,),
    "cluster DNS over IPv6": (CLUSTER_DNS6,),
    "node-local cache": (NODE_LOCAL,),
    "three": (NODE_LOCAL, CLUSTER_DNS, CLUSTER_DNS6),
}
PYTHON = "import socket, sys; print(*{each[4][0] for each in socket.getaddrinfo(sys.argv[1], 80)}, sep='\\n')"
GO = """package main

import ("fmt"; "net"; "os")

func main() {
	found, err := net.LookupHost(os.Args[1])
	if err != nil { panic(err) }
	for _, each := range found { fmt.Println(each) }
}
"""
DIG = ("dig", "+short", "+search", "+tries=1")
RESOLVERS = {
    "gcc": pytest.param("gcc", marks=pytest.mark.needs("gcc")),
    "musl": pytest.param("musl-gcc", marks=pytest.mark.needs("musl-gcc")),
    "python": pytest.param("python"),
    "go": pytest.param("go", marks=(pytest.mark.kube, pytest.mark.needs("go"))),  # that suite has a Go toolchain
    **{
        words: pytest.param(words, marks=pytest.mark.needs("dig"))
        for words in ("dig +noedns", "dig +edns=0", "dig +dnssec +bufsize=4096", "dig 0x20")
    },
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp("resolvers")
    bpffs = directory / "bpffs"
    bpffs.mkdir()
    subprocess.run(["mount", "-t", "bpf", "bpf", str(bpffs)], check=True)
    made = Node(directory, bpffs, ROWS, section=replace(SECTION, resolvers=(NODE_LOCAL,)))
    try:
        with contextlib.closing(made.attach()):
            yield made
    finally:
        made.close()
        subprocess.run(["umount", str(bpffs)], check=True)


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What was built already, by resolver."""
    return {}


def command(resolver: str, built: dict[str, list[str]], directory: Path) -> list[str]:
    """What prints the addresses of a name."""
    if resolver.startswith("dig"):
        options = [word for word in resolver.split()[1:] if word != "0x20"]
        name = BOTH.swapcase().title() if resolver.endswith("0x20") else BOTH
        return [*DIG, *options, name, "A", name, "AAAA"]
    if resolver not in built:
        built[resolver] = build(resolver, directory)
    return [*built[resolver], BOTH]


def build(resolver: str, directory: Path) -> list[str]:
    """A program that asks a resolver."""
    program = directory / "resolve"
    if resolver == "python":
        return [sys.executable, "-c", PYTHON]
    if resolver == "go":
        (directory / "resolve.go").write_text(GO)
        pure = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=mod", "GO111MODULE": "off"}
        environment = {**os.environ, **pure}
        subprocess.run(
            [programs.path("go"), "build", "-o", str(program), "resolve.go"], cwd=directory, env=environment, check=True
        )
    else:
        subprocess.run([resolver, "-O1", "-o", str(program), str(SUPPORT / "answers" / "resolve.c")], check=True)
    return [str(program)]


@pytest.mark.parametrize("resolver", RESOLVERS.values(), ids=RESOLVERS)
@pytest.mark.slow
def test_every_resolver_finds_the_whole_set_however_it_is_configured(
    node: Node, commands: dict[str, list[str]], resolver: str, tmp_path: Path
) -> None:
    conf = tmp_path / "resolv.conf"
    for about, servers in CONFIGURATIONS.items():
        lines = [f"nameserver {each}" for each in servers]
        conf.write_text("\n".join([*lines, f"search {SEARCH}", "options ndots:5 timeout:1 attempts:1", ""]))
        within = ["ip", "netns", "exec", node.pod, "unshare", "--mount", "--propagation", "private"]
        bound = ["sh", "-c", 'mount --bind "$0" /etc/resolv.conf && exec "$@"', str(conf)]
        done = subprocess.run(
            [*within, *bound, *command(resolver, commands, tmp_path)], capture_output=True, text=True, check=False
        )
        assert sorted(done.stdout.split()) == sorted((*FOUR, *SIX)), f"{about}: {done.stdout}{done.stderr}"
