"""Scenarios after Cilium's load-balancer test scripts, each a file in scenarios/ with its rule and its outcome.

On a map double and on the kernel's maps, one map operation in ten failing. Which scenarios there are not, and why:
docs/loadbalancer.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from bpf_world import World
from scenario import MADE_OF_PLANS, REWRITE, Scenario, files

from isthmus.datapath import remove
from isthmus.datapath.core.maps import DictMaps, KernelMaps

FOLDER = Path(__file__).parent / "scenarios"
FILES = files(FOLDER)
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
def test_scenario_on_the_kernels_maps(path: Path, kernel: KernelMaps) -> None:
    for name in MADE_OF_PLANS:  # what a test before this one left when it failed
        kernel.drop(name, [key for key, _ in kernel.items(name)])
    Scenario(path, kernel).play()


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_a_scenario_states_its_rule_first(path: Path) -> None:
    first = path.read_text().splitlines()[0]
    assert first.startswith("# ")
    assert "." in path.read_text().partition("\n\n")[0]
