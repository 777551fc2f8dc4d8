"""The kernel: libbpf binding, map codecs, plans → maps, attachment, kernel events.

What belongs here: everything that knows the layout of bpf/maps.h. What never does: choosing backends.

    libbpf.py        the C library, by ctypes: objects, maps, links; errors with errno and what the verifier said
    btf.py           the structs of the compiled object, as the compiler laid them out
    codecs.py        rows ↔ bytes of each map, checked against BTF
    maps.py          the maps as bytes: of the kernel, or of a dict with the same face
    ids.py           numbers for things in the maps
    installed.py     what is in the maps, as objects
    restore.py       that, from the maps an earlier process left
    plans.py         a plan row → the changes that bring the maps there (pure)
    rings.py         which backend each caller has, for consistent hashing
    callers.py       which pod a caller is, for that and for redirects that do not mean all
    target.py        the reconciler's target: carries changes out
    leftovers.py     what the grace period keeps
    audit.py         what is really in the maps against what should be
    attach.py        load, pin, attach, detach
    datapath.py      all of it put together
    alive.py         the deadline that the node's DNS server renews
    view.py          what is in the kernel, for people
    requirements.py  what this machine lacks
"""

from isthmus.datapath.attach import remove
from isthmus.datapath.callers import Callers, Introduced
from isthmus.datapath.datapath import Datapath, open_maps
from isthmus.datapath.errors import DatapathError
from isthmus.datapath.requirements import cgroup_root, requirements
from isthmus.datapath.target import PlanTarget

__all__ = [
    "Callers",
    "Datapath",
    "DatapathError",
    "Introduced",
    "PlanTarget",
    "cgroup_root",
    "open_maps",
    "remove",
    "requirements",
]
