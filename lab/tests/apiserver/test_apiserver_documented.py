"""The differences to a real kube-apiserver that the comparison knows are those that people can read of."""

from __future__ import annotations

from pathlib import Path

from clusters.apiserver_session import KNOWN

DOCUMENT = Path(__file__).parents[2] / "docs" / "lab-apiserver.md"


def test_every_known_difference_stands_in_the_document_with_its_reason() -> None:
    table = DOCUMENT.read_text().partition("| request | difference |")[2].partition("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert dict(rows) == KNOWN
