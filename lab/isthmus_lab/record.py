"""Description of a lab, written by ``lab up`` for later commands: ``lab.json`` in its directory."""

from __future__ import annotations

import os
from typing import Literal

import msgspec

from isthmus_lab.families import Families
from isthmus_lab.images import Image
from isthmus_lab.layout import Lab, Network

ApiServer = Literal["small", "real"]
"""The lab's own, or kube-apiserver and kube-controller-manager."""
Datapath = Literal["isthmus", "kube-proxy"]
"""Ours, or kube-proxy and CoreDNS with the operator only."""


class Record(msgspec.Struct, frozen=True):
    """The file."""

    name: str
    size: int
    nodes: int
    images: dict[str, Image] = {}
    isthmus: bool = True
    """Run Isthmus; ``False`` for clusters only."""
    apiserver: ApiServer = "small"
    datapath: Datapath = "isthmus"
    networks: tuple[Network, ...] = ("flat",)
    families: tuple[Families, ...] = (("IPv4",),)
    places: tuple[tuple[str, str], ...] = ()
    gateways: int = 1
    loopback: int = 0
    identity: bool = False
    envoy: str = ""
    """Path of the Envoy that nodes run for routes; empty if there is none, then routes have no effect."""

    @property
    def lab(self) -> Lab:
        """The lab it is of."""
        where = self.networks, self.families, self.places
        return Lab(self.name, self.size, self.nodes, *where, self.gateways, self.loopback, self.identity)


def write(record: Record) -> None:
    """Write it into the lab's directory."""
    path = record.lab.directory / "lab.json"
    part = path.with_suffix(".part")
    part.write_bytes(msgspec.json.encode(record))
    part.replace(path)  # whole or not at all: nodes read it while `lab image add` writes


def read(name: str) -> Record:
    """The record of a lab; KeyError where there is none."""
    file = Lab(name).directory / "lab.json"
    try:
        if file.stat().st_uid != os.geteuid():
            raise KeyError(name)  # another user's, in a directory that any user may have made
        return msgspec.json.decode(file.read_bytes(), type=Record)
    except FileNotFoundError:
        raise KeyError(name) from None
