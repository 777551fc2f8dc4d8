"""The kernel's part: its programs and maps, how rows fill the maps, and what the kernel reports.

What belongs here: everything that depends on the layout of bpf/maps.h. What never does: choosing backends.

    core/         mechanisms that every feature uses: libbpf, maps as bytes, the manifest's rows, attachment
    services/     plans → maps: which backend a call gets
    failures/     ejection, rescue, sockets of deleted backends
    flows/        sampled calls, bytes by cluster
    manifest.py   every map and program, a row each
    settings.py   the one entry of settings: DNS, exemptions
    datapath.py   a node's datapath, assembled from the above
    alive.py      the deadline that the node's DNS server renews
    metrics.py    calls and ejections for Prometheus
    view.py       what is in the kernel, for people
"""

from isthmus.datapath.core.attach import remove
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.requirements import cgroup_root, requirements
from isthmus.datapath.core.tc import PodLinks, PodLinksStats
from isthmus.datapath.datapath import Datapath, open_maps
from isthmus.datapath.services.callers import Callers, CallersFirst, identities
from isthmus.datapath.services.ignored import IgnoredPods
from isthmus.datapath.services.target import PlanTarget

__all__ = [
    "Callers",
    "CallersFirst",
    "Datapath",
    "DatapathError",
    "IgnoredPods",
    "PlanTarget",
    "PodLinks",
    "PodLinksStats",
    "cgroup_root",
    "identities",
    "open_maps",
    "remove",
    "requirements",
]
