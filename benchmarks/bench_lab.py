"""What a lab costs: seconds to start it, to have all pods ready, to remove it, and memory. Needs root.

benchmarks/bench_lab.py --clusters 10 --nodes 3 --pods 300
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from isthmus_lab import cgroups
from isthmus_lab.layout import Lab

MANIFEST = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: idle, namespace: default}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: idle}}}}
  template:
    metadata: {{labels: {{app: idle}}}}
    spec: {{containers: [{{name: idle, image: pause}}]}}
"""


def lab(verb: str, name: str, *words: str) -> str:
    command = [sys.executable, "-m", "isthmus", "lab", verb, "--lab", name, *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def memory(name: str) -> tuple[int, int]:
    """Processes, and bytes of their proportional set: shared pages are counted once."""
    pids = cgroups.processes(cgroups.root() / Lab(name).prefix)
    total = 0
    for pid in pids:
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return len(pids), total * 1024


def ready(name: str) -> int:
    pods = json.loads(lab("status", name, "-o", "json"))["pods"]
    return sum(pod["state"] == "Running 1/1" for pod in pods)


def measure(name: str, *, clusters: int, nodes: int, pods: int, patience: float) -> dict[str, Any]:
    found: dict[str, Any] = {"clusters": clusters, "nodes": nodes, "pods": pods, "load": round(os.getloadavg()[0], 1)}
    try:
        with tempfile.TemporaryDirectory() as directory:
            if pods:
                (Path(directory) / "idle.yaml").write_text(MANIFEST.format(replicas=pods // clusters))
            begun = time.monotonic()
            lab("up", name, "--clusters", str(clusters), "--nodes", str(nodes), "--from", directory)
        found["up"] = round(time.monotonic() - begun, 1)
        while (now := ready(name)) < pods and time.monotonic() - begun < patience:
            time.sleep(0.5)
        found["ready"], found["pods_ready"] = round(time.monotonic() - begun, 1), now
        found["processes"], bytes_ = memory(name)
        found["memory_mib"] = bytes_ >> 20
    finally:
        begun = time.monotonic()
        lab("down", name)
        found["down"] = round(time.monotonic() - begun, 1)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    for option, default in (("clusters", 3), ("nodes", 1), ("pods", 0)):
        parser.add_argument(f"--{option}", type=int, default=default)
    parser.add_argument("--lab", dest="name", default=f"b{os.getpid()}"[:12])
    parser.add_argument("--patience", type=float, default=180.0)
    print(json.dumps(measure(**vars(parser.parse_args()))))
