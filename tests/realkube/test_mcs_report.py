"""`make conformance` publishes a report of the Multi-Cluster Services API's suite if all of it passed."""

from __future__ import annotations

from typing import Any

import yaml
from clusters.mcs_conformance import PUBLISHED, differences, objections


def report(**passed: bool) -> dict[str, Any]:
    tests = [{"desc": name, "passed": result} for name, result in passed.items()]
    return {"groups": [{"name": "Required", "tests": tests[:1]}, {"name": "Optional", "tests": tests[1:]}]}


def test_the_published_report_claims_what_passed() -> None:
    published = yaml.safe_load(PUBLISHED.read_text())
    assert objections(published) == []
    assert (published["passed"], published["total"]) == (27, 27)


def test_a_report_is_published_only_if_both_groups_ran_and_all_passed() -> None:
    assert objections(report(imports=True, names=True)) == []
    assert objections(report(imports=True, names=False)) == ["names: did not pass"]
    assert objections(report(imports=True)) == ["Optional: no test of it was run"]
    assert objections({}) == ["Required: no test of it was run", "Optional: no test of it was run"]


def test_results_are_compared_with_the_published_ones_by_test() -> None:
    before = report(imports=True, names=True, old=True)
    assert differences(report(imports=True, names=False, new=True), before) == [
        "names: did not pass, and passed in the published report",
        "new: passed, and was not run in the published report",
        "old: was not run, and passed in the published report",
    ]
    assert differences(before, before) == []
