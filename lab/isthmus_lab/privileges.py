"""Privileges of this user, as values: root has BPF and control groups; others have namespaces of their own.

Everything that differs in a lab without privileges asks :data:`CONFINED`, and is named here:

    confinement.py          the namespaces in which such a lab and every command about it run
    startup.py, removal.py  what a machine has to have; what is removed with the last lab
    cgroups.py              groups of processes are cgroup namespaces, not directories of cgroup v2
    network/namespaces.py   names of network namespaces are in a directory of this user
    node/sandbox.py         a container's root is made of an overlay for each directory of the host's
    node/planned.py         the agent's plans in nftables, in place of BPF
    node/pods.py            pods ask the node's name server themselves, which on other labs steps in
    supervisor/configs.py   agents pin no maps, and nodes read their plans
    supervisor/process.py   there is no file system for BPF
    demo/programmed.py      what is programmed is read from rules in place of maps
    demo/run.py             stories that want BPF are refused

Where there are no user namespaces either, :func:`on_loopback` is true: the lab is in the host's own namespaces, with
addresses of 127.0.0.0/8 (``layout.Lab.loopback``), and this is how it differs further:

    families.py, layout.py  ranges and ports of a cluster
    startup.py              what is refused; which addresses are free
    cgroups.py              a process is in the group that its environment names
    network/namespaces.py   no process enters a namespace; the network has no fabric, and pods no link
    spawn.py, pod_exec.py   containers have no namespaces either, so neither probes nor commands enter any
    node/shared_host.py     which pods are refused, and what the environment of others has
    node/calls.py           plans and Services are listeners of an Envoy, in place of nftables
    on_loopback.py          Isthmus' processes take loopback addresses for ordinary ones
    supervisor/zygote.py    ends what is left of the lab when the supervisor is gone
    programs/*.py           the lab's own listen on their pod's address, and ask its name server
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from isthmus.host_user import HOST_USER, VARIABLE

CONFINED: Final = HOST_USER != 0
"""True if labs run in a user namespace, since this user is not root."""


def on_loopback() -> bool:
    """True if this process belongs to a lab without namespaces: it has entered none, and this user is not root."""
    return CONFINED and VARIABLE not in os.environ


NOTICE: Final = (
    "without privileges: nftables in place of BPF: calls by name and weights work; "
    "no ejection, rescue, flows or answers by the kernel"
)
"""Printed where a lab is made."""
NOTICE_ON_LOOPBACK: Final = (
    "without user namespaces ({}): loopback addresses and Envoy: calls by name and weights work; no ejection, rescue, "
    "flows, cuts, islands or routes; names are resolved by `getent hosts` and by the lab's own programs"
)
"""Sentence about a lab without namespaces, with the reason."""
IN_PLACE: Final = "by nftables of the lab, from these plans: no ejection, rescue or flows"
"""Translation of calls in such a lab, as ``isthmus status`` shows it."""
BY_ENVOY: Final = "by an Envoy of the lab, from these plans: no ejection, rescue or flows"
"""Translation of calls in a lab on loopback addresses."""

LIMITS: Final = ("user", "mnt", "net", "pid", "cgroup", "uts", "ipc")
"""Kinds of namespaces that a lab takes, as in /proc/sys/user/max_*_namespaces."""


def sentence(code: int, limit: Callable[[str], str]) -> str:
    """Cause of a refusal with an error number, and its remedy. ``limit``: a setting below /proc/sys, or ''."""
    root = "or run this as root"
    if code == errno.ENOSPC:
        spent = ", ".join(f"user.max_{kind}_namespaces={limit(f'user/max_{kind}_namespaces')}" for kind in LIMITS)
        return f"user namespaces: this user may make no more ({spent}): raise these by sysctl, {root}"
    for name, number in (
        ("kernel/unprivileged_userns_clone", "1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "0"),
    ):
        if limit(name) not in ("", number):
            return f"user namespaces are for root only here: sysctl {name.replace('/', '.')}={number}, {root}"
    return f"user namespaces: {os.strerror(code)}: a container or sandbox may forbid them; allow unshare(2), {root}"


def setting(name: str) -> str:
    """Value of a setting below /proc/sys; '' if this kernel lacks it."""
    try:
        return Path("/proc/sys", name).read_text().strip()
    except OSError:
        return ""
