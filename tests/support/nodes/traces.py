"""What Isthmus may leave in a cluster and on its node: everything of both, to be compared before and after."""

from __future__ import annotations

import sys
from functools import partial
from typing import Final

from nodes.cluster import Cluster, until

from nodes import attached

CHURN: Final = (
    "events",
    "leases",
    "endpoints",
    "endpointslices",
    "componentstatuses",
    "pods",
    "replicasets",
    "apiservices",
)
"""Resources of which others make and remove objects all the time; the API server has an APIService for each group."""
OTHERS: Final = (" dev veth", "local fe80:", "multicast ff00:")
"""Of pods of others, and what the kernel adds to an interface by itself, seconds after it is up."""
FILES: Final = ("/run/isthmus", "/var/lib/isthmus")


def _objects(cluster: Cluster) -> list[str]:
    resources = cluster.kubectl("api-resources", "--verbs=list", "--output=name").split()
    wanted = [each for each in resources if each.partition(".")[0] not in CHURN]
    columns = "--output=custom-columns=:.kind,:.metadata.namespace,:.metadata.name"
    return cluster.kubectl("get", ",".join(wanted), "-A", columns, "--no-headers").splitlines()


def traces(cluster: Cluster) -> set[str]:
    """Return a line for each object, attached program, pinned map, address of lo, route and file."""
    # A definition that was deleted a moment ago may still be listed as a resource, which cannot be read any more.
    objects = until(partial(_objects, cluster), what="objects of every resource")
    node = cluster.node
    lines = [f"object {' '.join(each.split())}" for each in objects]
    lines += node.run(sys.executable, attached.__file__, "/sys/fs/cgroup/unified").splitlines()
    lines += node.run("ip", "-o", "address", "show", "dev", "lo").splitlines()
    for family in ("-4", "-6"):
        lines += [f"route {each}" for each in node.run("ip", family, "route", "show", "table", "all").splitlines()]
    lines += node.run("find", *FILES, check=False).splitlines()
    return {line.strip() for line in lines if not any(each in line for each in OTHERS)}
