"""Scenarios after Cilium's load-balancer test scripts, each a file in scenarios/ with its rule and its outcome.

On a map double and on the kernel's maps, one map operation in ten failing. Which scenarios there are not, and why:
docs/loadbalancer.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import World
from rows.scenario import MADE_OF_PLANS, REWRITE, Scenario, files

import isthmus
from isthmus.datapath import remove
from isthmus.datapath.core.maps import DictMaps, KernelMaps

FOLDER = Path(__file__).parent / "scenarios"
FILES = files(FOLDER)
SOURCE = Path(isthmus.__file__).parent
NAMES = [str(path.relative_to(FOLDER).with_suffix("")) for path in FILES]


@pytest.mark.parametrize("seed", range(1 if REWRITE else 3))
@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_scenario(path: Path, seed: int) -> None:
    Scenario(path, DictMaps(), seed=seed).play()


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KernelMaps]:
    world = World(tmp_path_factory.mktemp("scenarios"))
    try:
        opened = world.open()
        try:
            yield opened.maps
        finally:
            opened.close()
            remove(world.pin)
    finally:
        world.close()


@pytest.mark.bpf
@pytest.mark.parametrize("path", FILES, ids=NAMES)
@pytest.mark.slow
def test_scenario_on_the_kernels_maps(path: Path, kernel: KernelMaps) -> None:
    for name in MADE_OF_PLANS:  # what a test before this one left when it failed
        kernel.drop(name, [key for key, _ in kernel.items(name)])
    Scenario(path, kernel).play()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_scenario_states_its_rule_first(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert "." in path.read_text().partition("\n\n")[0]


def test_each_scenario_has_the_edit_that_takes_its_rule_out_and_finds_it_once() -> None:
    """What the edit is for: docs/loadbalancer.md. Make mutate, which applies them, is not run with every change."""
    edits: dict[str, dict[str, str]] = tomllib.loads((FOLDER.parent / "mutations.toml").read_text())
    assert sorted(edits) == sorted(NAMES)
    found = {name: (SOURCE / edit["file"]).read_text().count(edit["old"]) for name, edit in edits.items()}
    assert {name: count for name, count in found.items() if count != 1} == {}
