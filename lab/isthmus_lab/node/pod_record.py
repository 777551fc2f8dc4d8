"""Location of a pod on its node, and the state stored there to resume or clean up after a crash."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from isthmus_lab import cgroups
from isthmus_lab.layout import Node
from isthmus_lab.network import namespaces
from isthmus_lab.network.pods import PodLink, detach
from isthmus_lab.node.status import ContainerState

FILE: Final = "pod.json"


class PodLocation(Struct, frozen=True):
    """A pod's place; everything of it on the host follows."""

    node: Node
    uid: str
    namespace: str
    name: str
    number: int
    """The last part of its address."""
    host_network: bool = False
    """True if it uses its node's network."""

    @property
    def address(self) -> str:
        """The pod's first."""
        return self.addresses[0]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The pod's, one of each family of its cluster."""
        return self.node.addresses if self.host_network else self.node.pod(self.number)

    @property
    def namespace_path(self) -> Path | None:
        """The network namespace of its processes; None where there are none."""
        return namespaces.place(self.node.namespace if self.host_network else self.plug.namespace)

    @property
    def plug(self) -> PodLink:
        """Its network."""
        wire = f"p{self.node.number * 256 + self.number}"
        return PodLink(self.node.namespace, f"{self.node.cluster.namespace}-{wire}", wire, self.addresses)

    @property
    def cgroup(self) -> Path:
        """All its processes; named so that ``lab exec`` finds them without a request to any process."""
        pods = cgroups.root() / self.node.cluster.lab.prefix / self.node.pods_cgroup
        return pods / f"{self.namespace}_{self.name}"

    @property
    def directory(self) -> Path:
        """Its files."""
        return self.node.directory / "pods" / self.uid

    async def clear(self) -> None:
        """Leave nothing."""
        cgroups.end(self.cgroup)
        if not self.node.cluster.lab.loopback:
            await detach(self.plug)
        shutil.rmtree(self.directory, ignore_errors=True)


class PodState(Struct, frozen=True):
    """Pod state that a node process stores for its successor."""

    namespace: str
    name: str
    number: int
    started: str
    inits: list[ContainerState] = []
    mains: list[ContainerState] = []

    def of(self, container: str) -> ContainerState | None:
        """Last state of a container, None if it has none."""
        return next((each for each in [*self.inits, *self.mains] if each.name == container), None)


def save_state(place: PodLocation, memory: PodState) -> None:
    """Write it down, whole or not at all."""
    place.directory.mkdir(parents=True, exist_ok=True)
    draft = place.directory / f".{FILE}"
    draft.write_bytes(msgspec.json.encode(memory))
    draft.rename(place.directory / FILE)


def load_states(node: Node) -> dict[str, PodState]:
    """Stored pod states by uid. Unreadable files are skipped."""
    states = {}
    for path in (node.directory / "pods").glob(f"*/{FILE}"):
        try:
            states[path.parent.name] = msgspec.json.decode(path.read_bytes(), type=PodState)
        except (OSError, msgspec.MsgspecError):
            continue
    return states


def tidy(node: Node, states: dict[str, PodState]) -> None:
    """Remove what is left of pods that are no longer known."""
    places = [place_of(node, uid, memory) for uid, memory in states.items()]
    pods = cgroups.make(cgroups.root() / node.cluster.lab.prefix / node.pods_cgroup)
    for group in _unknown(pods, {place.cgroup.name for place in places}):
        cgroups.end(group)
    for directory in _unknown(node.directory / "pods", set(states)):
        shutil.rmtree(directory, ignore_errors=True)
    mine = {PodLocation(node, "", "", "", number).plug.namespace for number in range(256)}
    for name in mine.intersection(namespaces.names()) - {place.plug.namespace for place in places}:
        namespaces.remove(name)


def place_of(node: Node, uid: str, memory: PodState) -> PodLocation:
    """Location of a pod from its stored state."""
    return PodLocation(node, uid, memory.namespace, memory.name, memory.number)


def _unknown(directory: Path, uids: set[str]) -> Iterator[Path]:
    for entry in list(directory.iterdir()) if directory.is_dir() else ():
        if entry.is_dir() and entry.name not in uids:
            yield entry
