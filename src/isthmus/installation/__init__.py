"""Installation of Isthmus into a cluster: what the cluster is, what follows from it, and the objects to apply.

    facts.py      what was read of a cluster: ranges, DNS, network, meshes, kernels; each with its source
    reading.py    the facts from lists of objects: pure functions
    plan.py       facts and flags → variables of cluster.env, components, warnings, blockers: pure functions
    rendering.py  the manifests of deploy/ → objects, as ``kubectl kustomize`` renders them
    merging.py    strategic merge patches of the kinds that deploy/ patches
    shipped.py    deploy/ of the wheel or of the checkout
    progress.py   what the installed workloads and pods lack, from their status and Events: pure functions
    checks.py     judgements of ``isthmus check``, from what was read and tried: pure functions
    removal.py    what of a cluster is ours, and the pods that remove the nodes' part: pure functions

What belongs here: decisions. What never does: requests (``cli`` makes them) and anything that a running process needs.
"""

from __future__ import annotations

from typing import Final

SYSTEM: Final = "isthmus-system"
"""Namespace of the manifests in deploy/. Here, since commands that need no more of an installation load no more."""
