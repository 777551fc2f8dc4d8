"""The Multi-Cluster Services API's own conformance suite against a lab of two clusters on kube-apiserver.

No module proxy serves the suite, a Go module inside kubernetes-sigs/mcs-api, so its compiled test is an argument:
docs/conformance.md says how it is made. It needs dig and nc on the host, which its pods run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml
from labs.lab_running import Running, lab_name

from isthmus_lab import removal
from isthmus_lab.layout import Lab

PUBLISHED: Final = Path(__file__).resolve().parents[3] / "docs" / "mcs-api-conformance.yaml"
SECONDS: Final = 1200
"""Seconds at most for the whole suite; it takes 250 on two busy cores."""


def run(suite: Path) -> tuple[dict[str, Any], str]:
    """The suite's report, which is empty if it wrote none, and all that it printed."""
    lab = Lab(lab_name("s"), 2, 1)
    try:
        Running(lab).cli("up", "--clusters", "2", "--apiserver", "real")
        with TemporaryDirectory() as directory:
            done = subprocess.run(
                [
                    suite,
                    f"-test.timeout={SECONDS}s",
                    *("-kubeconfig", lab.kubeconfig, "-contexts", "c1,c2"),
                    *("-organization", "isthmus", "-project", "isthmus"),
                    *("-version", version("isthmus"), "-url", "https://isthmus.io"),
                ],
                cwd=directory,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=False,
            )
            report = Path(directory) / "report.yaml"
            return yaml.safe_load(report.read_text()) if report.exists() else {}, done.stdout
    finally:
        removal.remove(lab)


def objections(report: Mapping[str, Any]) -> list[str]:
    """Reasons not to publish a report, as sentences: both groups, all of whose tests passed."""
    groups = {each["name"]: each["tests"] for each in report.get("groups") or ()}
    found = [f"{name}: no test of it was run" for name in ("Required", "Optional") if not groups.get(name)]
    return found + [
        f"{test['desc']}: did not pass" for tests in groups.values() for test in tests if not test["passed"]
    ]


def differences(report: Mapping[str, Any], published: Mapping[str, Any]) -> list[str]:
    """Tests of which one report has another result than the other, as sentences."""
    now, before = (
        {test["desc"]: test["passed"] for group in each.get("groups") or () for test in group["tests"]}
        for each in (report, published)
    )
    words = {True: "passed", False: "did not pass", None: "was not run"}
    return [
        f"{test}: {words[now.get(test)]}, and {words[before.get(test)]} in the published report"
        for test in sorted(now.keys() | before.keys())
        if now.get(test) != before.get(test)
    ]


def main(suite: str) -> int:
    """Publish the report in docs/ and print what differs from the one before; 1 if it is not one to publish."""
    report, output = run(Path(suite).resolve())
    before = yaml.safe_load(PUBLISHED.read_text()) if PUBLISHED.exists() else {}
    print("\n".join(differences(report, before)) or "MCS API: as in the published report")
    if why := objections(report):
        reasons = "\n  ".join(why)
        print(f"{output[-4000:]}\n{PUBLISHED} is left as it was:\n  {reasons}", file=sys.stderr)
        return 1
    PUBLISHED.write_text(yaml.safe_dump(report, sort_keys=False))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
