"""From nothing installed on two clusters with real kubelets to the first call between them: ``make bench NAME=life``.

The applications run before, as they would in clusters that are in use. Images are on the nodes already, so that no
download is measured.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Final

from nodes.cluster import isthmus, two, until

from nodes import apps

AIM: Final = 90.0
"""Seconds for all steps (issue 34)."""


def main() -> None:
    """Run the steps, and print the seconds of each."""
    with two() as clusters:
        c1, c2 = clusters
        for cluster in clusters:
            cluster.apply(*apps.base())
        c1.apply(apps.deployment("echo", "serve", replicas=2, probe=True), apps.service())
        c2.apply(apps.deployment("client"))
        for cluster in clusters:
            until(partial(cluster.pods_ready, apps.NAMESPACE), what=f"the applications of {cluster.name}")
        contexts = ("--context=c1", "--context=c2")
        began = time.monotonic()
        isthmus(c1.world, "install", *contexts, f"--image={apps.IMAGE}")
        installed = time.monotonic()
        for cluster in clusters:  # as a cloud gives the Service an address
            cluster.balance()
        until(lambda: f"{isthmus(c1.world, 'connect', 'c1', 'c2')}\n", what="link")  # once the addresses are published
        connected = time.monotonic()
        c1.apply(apps.export())
        until(lambda: apps.calls(c2, 1) == 1, what="first answer")
        answered = time.monotonic()
    print(f"{installed - began:6.1f} s  isthmus install --context c1 --context c2 --image …")
    print(f"{connected - installed:6.1f} s  isthmus connect c1 c2")
    print(f"{answered - connected:6.1f} s  a ServiceExport, and the first answer by its name")
    within = "within" if answered - began <= AIM else "above"
    print(f"{answered - began:6.1f} s  in all, {within} the aim of {AIM:.0f} s")


if __name__ == "__main__":
    main()
