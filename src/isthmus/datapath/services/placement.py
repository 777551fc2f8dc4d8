"""Checks of the configuration against the pods of this node: their place below the cgroup, and their nameservers.

Values that exist and are wrong have no other sign: programs are attached, maps are full, and no call meets them.
A pod's ``/etc/resolv.conf`` is the pod's own to write, so it is opened without following links, read up to a bound, and
what follows from it is a warning; it concerns only pods whose search list is that of Kubernetes.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from isthmus.config import DnsSection
from isthmus.datapath.core import pods_cgroup
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.namespaces import Process, processes_by_group
from isthmus.datapath.services.callers import UID_OF_GROUP, addresses_of
from isthmus.model.hosts import canonical, endpoint
from isthmus.model.services import Pod

RESOLV_CONF: Final = 8192
"""Bytes of a resolv.conf that are read; the kubelet writes some hundred."""
SHOWN: Final = 3
"""Addresses that a sentence lists."""


class Resolver(Struct, frozen=True):
    """Nameservers of a pod, and the domain of the cluster by its search list; empty if that is not Kubernetes'."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""


class Placement(Struct, frozen=True):
    """Result of a look at the pods of this node."""

    pods: int = 0
    """Ready pods with a network of their own."""
    in_cgroup: int = 0
    """Number of them below the cgroup."""
    outside: tuple[str, ...] = ()
    """Names of the others."""
    resolvers: tuple[Resolver, ...] = ()
    """Resolvers of the pods that have Kubernetes' search list."""


def expected(pods: Iterable[Pod], node: str) -> list[Pod]:
    """Pods of a node that are ready, and that have a network of their own.

    One that is not ready may have no process yet, or no more.
    """
    ready = (pod for pod in pods if pod.node == node and pod.ready and pod.phase == "Running")
    return [pod for pod in ready if pod.addresses and not pod.host_network]


def look(cgroup: Path, pods: Collection[Pod], *, proc: Path = Path("/proc")) -> Placement:
    """Find the pods below a cgroup, by the UIDs in names of cgroups and by addresses, and read their resolvers."""
    uids = {pod.uid: pod.name for pod in pods if pod.uid}
    owners = {address: pod.name for pod in pods for address in pod.addresses}
    members: set[str] = set()
    for directory, _, _ in os.walk(cgroup):
        members |= {uids[uid] for each in UID_OF_GROUP.findall(directory) if (uid := each.replace("_", "-")) in uids}
    resolvers: dict[str, Resolver] = {}
    seen: dict[int, str] = {}
    for _, process in processes_by_group(cgroup):
        name = _pod(process, owners, seen)
        if name:
            members.add(name)
        if name and name not in resolvers:
            settings = resolver(_read(proc / str(process.pid) / "root"))
            if settings.domain:
                resolvers[name] = settings
    outside = sorted({pod.name for pod in pods} - members)
    return Placement(len(pods), len(members), tuple(outside), tuple(resolvers[name] for name in sorted(resolvers)))


def _pod(process: Process, owners: dict[str, str], seen: dict[int, str]) -> str:
    """Pod that a process belongs to by the addresses of its network namespace; empty if it belongs to none."""
    if process.namespace not in seen:
        if not (addresses := addresses_of(process.pid)):
            return ""  # it has ended; another one of its pod may still run
        seen[process.namespace] = next((name for address, name in owners.items() if address in addresses), "")
    return seen[process.namespace]


def cgroup_problem(cgroup: Path, placement: Placement) -> str:
    """Sentence on a cgroup that has none of the node's pods; empty if it has one, or the node has none."""
    if not placement.pods or placement.in_cgroup:
        return ""
    sentence = f"datapath.cgroup {cgroup} has none of this node's {placement.pods} pods: their calls are not translated"
    try:
        other = pods_cgroup.find()
    except (DatapathError, OSError):
        return sentence
    return f'{sentence}; that of this agent is below {other} (datapath.cgroup = "auto" finds it)'


def second_cgroup(cgroup: Path, placement: Placement) -> str:
    """Sentence on pods that are below another cgroup than the node's other pods; empty if none is, or all are."""
    if not placement.outside or not placement.in_cgroup:
        return ""
    names = ", ".join(placement.outside[:SHOWN]) + (", …" if len(placement.outside) > SHOWN else "")
    return (
        f"datapath.cgroup {cgroup} lacks {len(placement.outside)} of this node's {placement.pods} pods ({names}): "
        "their calls are not translated"
    )


def dns_problem(section: DnsSection, placement: Placement) -> str:
    """Sentence on nameservers that no pod has, or a domain that none has; empty if one pod agrees, or none is known."""
    if section.mode == "off" or not placement.resolvers:
        return ""
    configured = {*map(_host, section.cluster_dns), *map(_host, section.resolvers), *map(_host, section.listen)}
    asked = dict.fromkeys(address for each in placement.resolvers for address in each.nameservers)
    if configured.isdisjoint(asked):
        own = ", ".join(section.cluster_dns) or "nothing"
        return (
            f"pods of this node ask {', '.join(list(asked)[:SHOWN])} for names, and dns.cluster_dns has {own}: "
            "names of the clusterset are not answered"
        )
    domains = dict.fromkeys(each.domain for each in placement.resolvers)
    if (domain := section.cluster_domain.strip(".")) and domain not in domains:
        return f"pods of this node search in {', '.join(list(domains)[:SHOWN])}, and dns.cluster_domain is {domain}"
    return ""


def _host(text: str) -> str:
    try:
        return endpoint(text, port=53).host
    except ValueError:
        return text


def resolver(text: str) -> Resolver:
    """Parse a resolv.conf."""
    nameservers: list[str] = []
    domain = ""
    for words in map(str.split, text.splitlines()):
        if words[:1] == ["nameserver"] and len(words) > 1 and canonical(words[1]):
            nameservers.append(words[1])
        elif words[:1] == ["search"]:
            domain = next((each[4:].rstrip(".") for each in words[1:] if each.startswith("svc.")), "")
    return Resolver(tuple(nameservers), domain if domain.isprintable() and len(domain) < 254 else "")


def _read(root: Path) -> str:
    """Text of a process's /etc/resolv.conf; empty if it is no regular file, or a link leads to it.

    A link of a pod would be followed from the root of this process.
    """
    try:
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:
        return ""
    opened = [top]
    try:
        opened.append(os.open("etc", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=top))
        opened.append(os.open("resolv.conf", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=opened[-1]))
        if not stat.S_ISREG(os.fstat(opened[-1]).st_mode):
            return ""
        return os.read(opened[-1], RESOLV_CONF).decode(errors="replace")
    except OSError:
        return ""
    finally:
        for fd in opened:
            os.close(fd)
