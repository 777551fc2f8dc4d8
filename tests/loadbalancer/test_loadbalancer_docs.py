"""What the documents of load balancing say is shown by a test is shown by a test of that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIFETIME = ROOT / "docs" / "decisions" / "service-lifetime.md"
DOCUMENTS = [ROOT / "docs" / "loadbalancer.md", LIFETIME]
TEST = re.compile(r"`(?:([\w/]+\.py)::)?(test_\w+)`")


def defined_in(path: Path) -> set[str]:
    return set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_a_document_names_is_there(document: Path) -> None:
    here = set().union(*map(defined_in, Path(__file__).parent.glob("test_*.py")))
    for module, name in TEST.findall(document.read_text()):
        assert name in (defined_in(ROOT / module) if module else here), f"{document.name}: {name}"


def test_every_scenario_that_a_document_names_is_there() -> None:
    scenarios = Path(__file__).parent / "scenarios"
    for name in re.findall(r"scenario `([\w/-]+)`", DOCUMENTS[0].read_text()):
        assert (scenarios / f"{name}.txt").exists(), name


def test_the_table_of_lifetimes_has_every_test_of_its_module_and_no_other() -> None:
    assert {name for _, name in TEST.findall(LIFETIME.read_text())} == defined_in(
        Path(__file__).parent / "test_service_lifetime.py"
    )
