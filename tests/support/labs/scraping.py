"""A real Prometheus with the deployed rules, which scrapes the processes of a lab."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import yaml
from machine import programs

from isthmus_lab.layout import Lab
from isthmus_lab.supervisor.configs import OF_NODES, PORTS, monitor_of

MONITORING: Final = Path(__file__).parents[3] / "deploy" / "monitoring"
LISTEN: Final = "127.0.0.1:9090"
EVERY: Final = "1s"
FASTER: Final = 30
"""Durations of the rules are divided by this: what takes a quarter of an hour to alert takes half a minute."""
FETCH: Final = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"


class Prometheus:
    """One that runs in the lab's fabric, from where all machines can be reached."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def get(self, path: str, **query: str) -> Any:
        """``data`` of an answer of its API; AssertionError while there is none."""
        url = f"http://{LISTEN}/api/v1/{path}?{urlencode(query)}"
        command = ["ip", "netns", "exec", self._lab.fabric, sys.executable, "-I", "-c", FETCH, url]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)["data"]

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Series that an expression has now, with their labels and values."""
        found: list[dict[str, Any]] = self.get("query", query=expression)["result"]
        return found

    def firing(self) -> dict[str, list[dict[str, Any]]]:
        """Alerts that fire, by name."""
        found: dict[str, list[dict[str, Any]]] = {}
        for alert in self.get("alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert)
        return found


@contextmanager
def prometheus(lab: Lab, folder: Path) -> Iterator[Prometheus]:
    """Prometheus while it runs; its files are in ``folder``."""
    (folder / "rules.yaml").write_text(hastened((MONITORING / "rules.yaml").read_text()))
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration(lab)))
    command = ["ip", "netns", "exec", lab.fabric, programs.path("prometheus")]
    options = [f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *options, f"--web.listen-address={LISTEN}"], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        yield Prometheus(lab)
    finally:
        process.terminate()
        process.wait(timeout=30)


def hastened(rules: str) -> str:
    """The rules with durations that a test can wait for. The processes are no faster: a window spans the half minute
    after which an ejection ends without a call."""

    def shorter(found: re.Match[str]) -> str:
        seconds = int(found[2]) * {"s": 1, "m": 60, "h": 3600}[found[3]]
        return f"{found[1]}{max(45 if found[1] == '[' else 1, seconds // FASTER)}s"

    return re.sub(r"(\[|for: )(\d+)([smh])\b", shorter, rules)


def configuration(lab: Lab) -> dict[str, Any]:
    """Scrapes of every process, as deploy/monitoring/podmonitor.yaml names them: a job a process."""
    targets: dict[str, list[dict[str, Any]]] = {}
    for cluster in lab.clusters:
        scraped = [(cluster.nodes[0], "operator"), *((node, each) for node in cluster.nodes for each in OF_NODES)]
        scraped += [(node, "gateway") for node in cluster.nodes if node.gateway and lab.islands]
        for node, process in scraped:
            labels = {"instance": node.name, "cluster": cluster.name}
            targets.setdefault(process, []).append({"targets": [monitor_of(node, process)], "labels": labels})
    return {
        "global": {"scrape_interval": EVERY, "evaluation_interval": EVERY},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [
            {"job_name": process, "static_configs": targets[process]} for process in PORTS if process in targets
        ],
    }
