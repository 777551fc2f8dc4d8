"""Settings of a node process, as a file."""

from __future__ import annotations

import tomllib
from pathlib import Path

import msgspec
from msgspec import Struct

from isthmus_lab.families import Families
from isthmus_lab.layout import Lab, Network, Node


class Settings(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings of a node process: its lab, cluster and node, and access to the API server."""

    lab: str
    clusters: int
    nodes: int
    networks: tuple[Network, ...] = ("flat",)
    families: tuple[Families, ...] = (("IPv4",),)
    loopback: int = 0
    cluster: str
    node: int
    kubeconfig: str
    services: bool = True
    """Program Services; ``False`` if kube-proxy does."""
    plans: str = ""
    """Admin socket of the agent whose plans this node programs; empty if the agent programs them."""

    @property
    def place(self) -> Node:
        """Layout of the node: its paths, addresses and names."""
        lab = Lab(self.lab, self.clusters, self.nodes, self.networks, self.families, loopback=self.loopback)
        return next(n for c in lab.clusters if c.name == self.cluster for n in c.nodes if n.number == self.node)


def load(path: Path) -> Settings:
    """Read the file; msgspec.ValidationError names a field that is wrong."""
    return msgspec.convert(tomllib.loads(path.read_text()), Settings)


def dump(settings: Settings) -> str:
    """The file."""
    plain: dict[str, object] = msgspec.to_builtins(settings)
    return "".join(f"{name} = {msgspec.json.encode(value).decode()}\n" for name, value in plain.items())
