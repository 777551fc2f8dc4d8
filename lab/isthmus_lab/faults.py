"""Fault injection: processes, pods and machines are killed, paused and started, the network is cut and slowed.

Pods and cables are handled here, since no other process manages them; the lab's processes by the supervisor,
which would start them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from isthmus_lab import cgroups, fault_targets, supervisor_client
from isthmus_lab.fault_targets import FaultTarget, NoSuchTarget
from isthmus_lab.layout import Lab
from isthmus_lab.network import impairments, netem
from isthmus_lab.network.impairments import Cut, Impairments, Link

Action = Literal["kill", "pause", "start"]


async def inject(lab: Lab, action: Action, target: FaultTarget) -> str:
    """Do it; a sentence with the counts. A killed machine is cut off as well: its cable is down."""
    done = await _programs(lab, {"do": action}, target)
    machines = fault_targets.nodes(lab, target)
    groups = [_root(lab) / node.pods_cgroup for node in machines]
    if target.pod:
        groups = _pod(lab, target)
    for group in (*groups, *_envoys(lab, target)):
        _group(group, action)
    if machines and action in ("kill", "start") and not lab.loopback:
        _cables(lab, frozenset(fault_targets.wires(lab, target)), dead=action == "kill")
    pods = sum(1 for group in groups for _ in cgroups.groups(group, depth=1)) if machines else len(groups)
    verb = {"kill": "killed", "pause": "paused", "start": "started"}[action]
    return f"{verb} {target}: {len(done)} processes of the lab, {pods} pods"


async def replace(lab: Lab, target: FaultTarget, python: Path) -> list[str]:
    """Run Isthmus' processes of a target from another interpreter's environment; their names."""
    done = await _programs(lab, {"do": "replace", "python": str(python)}, target)
    if not done:
        raise NoSuchTarget(f"{target}: no process of Isthmus")
    return done


async def cut(lab: Lab, new: Cut) -> None:
    """Cut; what was cut between the two before is replaced."""
    impaired = impairments.read(lab)
    kept = tuple(each for each in impaired.cuts if not _same(each, new.a, new.b) or (new.one_way and each.a != new.a))
    await _put(lab, msgspec.structs.replace(impaired, cuts=(*kept, new)))


async def link(lab: Lab, new: Link) -> None:
    """Set how a link is; a link as new is forgotten."""
    impaired = impairments.read(lab)
    kept = tuple(each for each in impaired.links if not _same(each, new.a, new.b))
    plain = new == Link(new.a, new.b)
    await _put(lab, msgspec.structs.replace(impaired, links=kept if plain else (*kept, new)))


async def heal(lab: Lab, a: FaultTarget | None = None, b: FaultTarget | None = None) -> int:
    """Undo cuts and links: all, those of one target, or those between two; how many. Killed machines stay dead."""
    impaired = impairments.read(lab)
    cuts = tuple(each for each in impaired.cuts if not _matches(each, a, b))
    links = tuple(each for each in impaired.links if not _matches(each, a, b))
    await _put(lab, msgspec.structs.replace(impaired, cuts=cuts, links=links))
    return len(impaired.cuts) + len(impaired.links) - len(cuts) - len(links)


async def _put(lab: Lab, new: Impairments) -> None:
    """Put it in force. Packets are held by the kernel where it can, else by relays, which the supervisor runs."""
    before = impairments.read(lab)
    impairments.write(lab, new)
    if before.links == new.links:
        return
    if netem.supported():
        netem.write(lab, new)
        return
    async for answer in supervisor_client.ask(lab, {"do": "relay"}):
        if answer["error"]:
            raise OSError(0, answer["error"])


async def _programs(lab: Lab, request: dict[str, str], target: FaultTarget) -> list[str]:
    known: list[str] = []
    async for answer in supervisor_client.ask(lab, {"do": "status"}):
        known = [each["name"] for each in answer["programs"]]
    names = fault_targets.programs(lab, target, known)
    if not names and target.process:
        raise NoSuchTarget(f"{target}: no such process runs in this lab")
    done: dict[str, Any] = {"done": []}
    if names:
        async for answer in supervisor_client.ask(lab, {**request, "programs": names}):
            done = answer
    return list(done["done"])


def _envoys(lab: Lab, target: FaultTarget) -> list[Path]:
    """Groups of Envoys that are hit: one outlives the process that runs it, but not its machine."""
    cluster = lab.cluster(target.cluster)
    if cluster is None or target.pod:
        return []
    cgroups = []
    for node in cluster.nodes:
        if target.node in (0, node.number):
            cgroups += [node.envoy_cgroup] if target.process in ("", "envoy") else []
            cgroups += [node.gateway_cgroup] if target.process in ("", "gateway-envoy") else []
    return [group for each in cgroups if (group := _root(lab) / each).exists()]


def _pod(lab: Lab, target: FaultTarget) -> list[Path]:
    name = target.pod.replace("/", "_", 1)
    cluster = lab.cluster(target.cluster)
    assert cluster is not None
    paths = [path for node in cluster.nodes if (path := _root(lab) / node.pods_cgroup / name).exists()]
    if not paths:
        raise NoSuchTarget(f"{target}: no such pod runs in {target.cluster}")
    return paths


def _group(group: Path, action: Action) -> None:
    match action:
        case "kill":
            cgroups.freeze(group, frozen=False)
            cgroups.kill(group)
        case "pause":
            cgroups.freeze(group, frozen=True)
        case "start":
            cgroups.freeze(group, frozen=False)


def _cables(lab: Lab, wires: frozenset[str], *, dead: bool) -> None:
    impaired = impairments.read(lab)
    down = frozenset(impaired.down) | wires if dead else frozenset(impaired.down) - wires
    impairments.write(lab, msgspec.structs.replace(impaired, down=tuple(sorted(down))))


def _root(lab: Lab) -> Path:
    return cgroups.root() / lab.prefix


def _same(impairment: Cut | Link, a: FaultTarget, b: FaultTarget) -> bool:
    return {impairment.a, impairment.b} == {a, b}


def _matches(impairment: Cut | Link, a: FaultTarget | None, b: FaultTarget | None) -> bool:
    return {target for target in (a, b) if target is not None} <= {impairment.a, impairment.b}
