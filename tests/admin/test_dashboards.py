"""The dashboards ask for metrics and labels that exist, in PromQL, and say what each panel shows."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import yaml
from labs.dashboards import FILES, expressions, read
from machine import programs

from isthmus import metrics

EXPOSED = {each.exposed(process): set(each.labels) for each in metrics.ALL for process in each.processes}
OWN = {"instance", "job", "le"}
"""Labels that Prometheus adds."""

dashboards = pytest.mark.parametrize("file", FILES, ids=lambda each: each.stem)


@dashboards
def test_a_dashboard_is_of_metrics_that_exist_with_labels_that_they_have(file: Path) -> None:
    for title, expression in expressions(file):
        named = {re.sub("_bucket$", "", each) for each in re.findall(r"\bisthmus_\w+", expression)}
        assert named <= EXPOSED.keys(), title
        known = OWN.union(*(EXPOSED[each] for each in named))
        if named:
            grouped = {each.strip() for found in re.findall(r"by \(([^)]*)\)", expression) for each in found.split(",")}
            matched = set(re.findall(r'(\w+)(?:=~|!=|=)"', expression)) - {"alertname", "alertstate"}
            assert grouped | matched <= known, title


@dashboards
def test_each_panel_has_a_title_of_its_own_a_meaning_and_a_place(file: Path) -> None:
    panels = read(file)["panels"]
    assert len({each["id"] for each in panels}) == len(panels)
    assert Counter(each["title"] for each in panels).most_common(1)[0][1] == 1
    assert all(each["description"].endswith(".") and each["targets"] for each in panels if each["type"] != "row")
    cells = [
        (x, y)
        for each in panels
        for x in range(each["gridPos"]["x"], each["gridPos"]["x"] + each["gridPos"]["w"])
        for y in range(each["gridPos"]["y"], each["gridPos"]["y"] + each["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24


@pytest.mark.needs("promtool")
@dashboards
def test_prometheus_reads_every_expression(file: Path, tmp_path: Path) -> None:
    rules = [{"record": f"panel:{n}", "expr": each} for n, (_, each) in enumerate(expressions(file))]
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump({"groups": [{"name": file.stem, "rules": rules}]}))
    command = [programs.path("promtool"), "check", "rules", str(tmp_path / "rules.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
