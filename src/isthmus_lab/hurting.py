"""Hurts a lab on purpose: processes, pods and machines are killed, paused and started, the network is cut and slowed.

Pods and cables are hurt from here, since nobody else has to answer for that; the lab's processes by the supervisor,
which would start them again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from isthmus_lab import cgroups, starting, things
from isthmus_lab.layout import Lab
from isthmus_lab.network import netem, weather
from isthmus_lab.network.weather import Cut, Link, Weather
from isthmus_lab.things import NoSuchThing, Thing

Action = Literal["kill", "pause", "start"]


async def hurt(lab: Lab, action: Action, thing: Thing) -> str:
    """Do it; a sentence on what was done. A machine that is killed answers nobody: its cable is dead, too."""
    done = await _programs(lab, action, thing)
    machines = things.nodes(lab, thing)
    groups = [_root(lab) / node.pods_cgroup for node in machines]
    if thing.pod:
        groups = _pod(lab, thing)
    for group in groups:
        _group(group, action)
    if machines and action in ("kill", "start"):
        _cables(lab, frozenset(things.wires(lab, thing)), dead=action == "kill")
    pods = sum(1 for group in groups for _ in group.glob("*/cgroup.procs")) if machines else len(groups)
    said = {"kill": "killed", "pause": "paused", "start": "started"}[action]
    return f"{said} {thing}: {len(done)} processes of the lab, {pods} pods"


async def cut(lab: Lab, new: Cut) -> None:
    """Cut; what was cut between the two before is replaced."""
    now = weather.read(lab)
    kept = tuple(each for each in now.cuts if not _same(each, new.a, new.b) or (new.one_way and each.a != new.a))
    await _put(lab, msgspec.structs.replace(now, cuts=(*kept, new)))


async def link(lab: Lab, new: Link) -> None:
    """Set how a link is; a link as new is forgotten."""
    now = weather.read(lab)
    kept = tuple(each for each in now.links if not _same(each, new.a, new.b))
    plain = new == Link(new.a, new.b)
    await _put(lab, msgspec.structs.replace(now, links=kept if plain else (*kept, new)))


async def heal(lab: Lab, a: Thing | None = None, b: Thing | None = None) -> int:
    """Undo cuts and links: all, those of one thing, or those between two; how many. Dead machines stay dead."""
    now = weather.read(lab)
    cuts = tuple(each for each in now.cuts if not _meant(each, a, b))
    links = tuple(each for each in now.links if not _meant(each, a, b))
    await _put(lab, msgspec.structs.replace(now, cuts=cuts, links=links))
    return len(now.cuts) + len(now.links) - len(cuts) - len(links)


async def _put(lab: Lab, new: Weather) -> None:
    """Put it in force. Packets are held by the kernel where it can, else by relays, which the supervisor runs."""
    before = weather.read(lab)
    weather.write(lab, new)
    if before.links == new.links:
        return
    if netem.there():
        netem.write(lab, new)
        return
    async for answer in starting.ask(lab, {"do": "relay"}):
        if answer["error"]:
            raise OSError(0, answer["error"])


async def _programs(lab: Lab, action: Action, thing: Thing) -> list[str]:
    known: list[str] = []
    async for answer in starting.ask(lab, {"do": "status"}):
        known = [each["name"] for each in answer["programs"]]
    names = things.programs(lab, thing, known)
    if not names and thing.process:
        raise NoSuchThing(f"{thing}: no such process runs in this lab")
    done: dict[str, Any] = {"done": []}
    if names:
        async for answer in starting.ask(lab, {"do": action, "programs": names}):
            done = answer
    return list(done["done"])


def _pod(lab: Lab, thing: Thing) -> list[Path]:
    name = thing.pod.replace("/", "_", 1)
    cluster = lab.cluster(thing.cluster)
    assert cluster is not None
    found = [path for node in cluster.nodes if (path := _root(lab) / node.pods_cgroup / name).exists()]
    if not found:
        raise NoSuchThing(f"{thing}: no such pod runs in {thing.cluster}")
    return found


def _group(group: Path, action: Action) -> None:
    match action:
        case "kill":
            (group / "cgroup.freeze").write_text("0")
            cgroups.kill(group)
        case "pause":
            (group / "cgroup.freeze").write_text("1")
        case "start":
            (group / "cgroup.freeze").write_text("0")


def _cables(lab: Lab, wires: frozenset[str], *, dead: bool) -> None:
    now = weather.read(lab)
    down = frozenset(now.down) | wires if dead else frozenset(now.down) - wires
    weather.write(lab, msgspec.structs.replace(now, down=tuple(sorted(down))))


def _root(lab: Lab) -> Path:
    return cgroups.root() / lab.prefix


def _same(each: Cut | Link, a: Thing, b: Thing) -> bool:
    return {each.a, each.b} == {a, b}


def _meant(each: Cut | Link, a: Thing | None, b: Thing | None) -> bool:
    return {thing for thing in (a, b) if thing is not None} <= {each.a, each.b}
