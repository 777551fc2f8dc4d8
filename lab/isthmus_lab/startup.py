"""Starts a lab and follows it until it is ready."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2s
from pathlib import Path
from typing import Any, Final

from isthmus.datapath import requirements
from isthmus.etcd import EtcdError
from isthmus.host_user import HOST_USER, RUN, refusal
from isthmus.proxy import NoEnvoyError, binary
from isthmus_lab import cgroups, confinement, etcd_program, families, privileges, record, removal
from isthmus_lab.images import PATH, Image
from isthmus_lab.layout import ETCD, MAX_CLUSTERS, MAX_NODES, MAX_ON_LOOPBACK, NAME, Lab
from isthmus_lab.realapi import binaries
from isthmus_lab.record import ApiServer, Datapath
from isthmus_lab.supervisor_client import ask, control_group

READY_WITHIN: Final = 180.0
"""Seconds; a lab takes ten, but three clusters on a slow machine that has other work a minute and more."""


NETS: Final = 254
"""Labs on loopback addresses that there may be on a machine: in 127.1.0.0/16 to 127.254.0.0/16."""


class CannotStart(Exception):  # noqa: N818
    """A lab cannot start; the message has one reason per line."""


def located(lab: Lab) -> tuple[Lab, str]:
    """Place a lab, on loopback addresses if this user has no namespaces; returns it and the sentence about it."""
    if not privileges.CONFINED:
        return lab, ""
    if not privileges.on_loopback() or not (lacks := confinement.missing()):
        return lab, privileges.NOTICE
    reason = "; ".join(lacks).removeprefix("user namespaces: ")
    return replace(lab, loopback=_free_net(lab)), privileges.NOTICE_ON_LOOPBACK.format(reason)


def _free_net(lab: Lab) -> int:
    """The second byte of addresses that no other lab has: the first one free, from one that depends on the name.

    Accepts a race: of two labs that are started at once one may find an address in use, and does not come up.
    """
    start = int.from_bytes(blake2s(f"{HOST_USER} {lab.name}".encode(), digest_size=4).digest(), "big")
    for step in range(NETS):
        net = 1 + (start + step) % NETS
        first = replace(lab, loopback=net).clusters[0]
        try:
            socket.create_server((first.address, ETCD)).close()
        except OSError:
            continue
        return net
    raise CannotStart("all of 127.0.0.0/8 is in use")


def missing(lab: Lab, *, apiserver: ApiServer = "small", datapath: Datapath = "isthmus") -> list[str]:
    """Missing requirements of this machine, each with its remedy."""
    lacks = [] if privileges.CONFINED else [*requirements(), *_read_only()]
    if lab.loopback:
        lacks += [] if envoy() else ["Envoy, which makes all calls of a lab on loopback addresses: tools/setup envoy"]
    elif shutil.which("nft", path=PATH) is None:
        lacks.append("nft: apt-get install nftables")
    try:
        etcd_program.find()
    except EtcdError as error:
        lacks.append(str(error))
    if apiserver == "real":
        lacks += binaries.missing(binaries.SERVER, binaries.CONTROLLERS)
    if datapath == "kube-proxy":
        lacks += binaries.missing(binaries.PROXY, binaries.COREDNS)
    return lacks


def _read_only() -> list[str]:
    root = cgroups.mount_point()
    if root is None or os.access(root, os.W_OK):
        return []
    return [f"cgroup v2 is mounted read-only at {root}: in a container, run that with --privileged"]


def envoy() -> Path | None:
    """The Envoy of this machine, for routes of the Gateway API; a lab is whole without one."""
    try:
        return binary.find()
    except NoEnvoyError:
        return None


def check(lab: Lab, *, isthmus: bool = True, apiserver: ApiServer = "small", datapath: Datapath = "isthmus") -> None:
    """CannotStart unless this lab can be made here now."""
    if not NAME.match(lab.name):
        raise CannotStart(f"--lab {lab.name}: at most 12 lower-case letters and digits, a letter first")
    if not 1 <= lab.size <= MAX_CLUSTERS:
        raise CannotStart(f"--clusters {lab.size}: 1 to {MAX_CLUSTERS}")
    if not 1 <= lab.nodes <= MAX_NODES:
        raise CannotStart(f"--nodes {lab.nodes}: 1 to {MAX_NODES}")
    if not 1 <= lab.gateways <= lab.nodes:
        raise CannotStart(f"--gateways {lab.gateways}: 1 to --nodes, which is {lab.nodes}")
    if datapath == "kube-proxy" and privileges.CONFINED:
        raise CannotStart("--datapath kube-proxy: kube-proxy wants the machine's own privileges: run this as root")
    if datapath == "kube-proxy" and apiserver != "real":
        raise CannotStart("--datapath kube-proxy: wants --apiserver real")
    if datapath == "kube-proxy" and lab.islands:
        raise CannotStart("--datapath kube-proxy: its nodes call no gateways, so no --network island")
    if isthmus and lab.islands and envoy() is None:
        raise CannotStart(
            "--network island: no Envoy is installed here, by which islands are called: tools/setup envoy"
        )
    if lab.loopback:
        _check_on_loopback(lab, apiserver)
    for scheme in lab.schemes:
        if not families.usable(scheme.family):
            raise CannotStart(f"--ip-families: this kernel has no {scheme.family}; was it booted with ipv6.disable=1?")
    if reason := refusal():
        raise CannotStart(reason)
    if lacks := missing(lab, apiserver=apiserver, datapath=datapath):
        raise CannotStart(f"this machine cannot run a lab; missing: {'; '.join(lacks)}")
    if _exists(lab):
        raise CannotStart(_already_exists(lab))


def _check_on_loopback(lab: Lab, apiserver: ApiServer) -> None:
    for option, wrong in (
        (f"--clusters {lab.size}", lab.size > MAX_ON_LOOPBACK),
        (f"--nodes {lab.nodes}", lab.nodes > 1),
        ("--network island", lab.islands),
        ("--ip-families", any(each != ("IPv4",) for each in lab.families)),
        (f"--apiserver {apiserver}", apiserver != "small"),
    ):
        if wrong:
            raise CannotStart(
                f"{option}: a lab on loopback addresses has at most {MAX_ON_LOOPBACK} flat clusters of one node, IPv4 "
                f"and the lab's own API server; {'; '.join(confinement.missing())}"
            )


def _already_exists(lab: Lab) -> str:
    return f"lab {lab.name} is there already: isthmus lab status, or isthmus lab down --lab {lab.name}"


def _exists(lab: Lab) -> bool:
    try:
        return removal.exists(lab)
    except cgroups.NoCgroups as error:
        raise CannotStart(str(error)) from None


def reserve(lab: Lab) -> None:
    """Make its directory, and so this command the one that makes the lab, and may remove it; CannotStart for others."""
    if privileges.on_loopback():
        RUN.mkdir(exist_ok=True, mode=0o700)
    try:
        lab.directory.mkdir(parents=True, mode=0o700)
    except FileExistsError:
        raise CannotStart(_already_exists(lab)) from None


def start(
    lab: Lab,
    *,
    images: dict[str, Image],
    isthmus: bool = True,
    apiserver: ApiServer = "small",
    datapath: Datapath = "isthmus",
    doors: Sequence[socket.socket] = (),
) -> None:
    """Start the supervisor of a lab that is reserved, in its control group from its first instruction on.

    ``doors``: listeners outside of the lab's namespaces, one for each cluster's API server, where it is confined.
    """
    lab.logs.mkdir()
    record.write(
        record.Record(
            lab.name,
            lab.size,
            lab.nodes,
            images,
            isthmus,
            apiserver,
            datapath,
            lab.networks,
            lab.families,
            lab.places,
            lab.gateways,
            lab.loopback,
            lab.identity,
            str(envoy() or "") if isthmus and datapath == "isthmus" else "",
        )
    )
    group = cgroups.make(control_group(lab))
    with (lab.logs / "supervisor.log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "isthmus_lab.supervisor", lab.name, *(str(door.fileno()) for door in doors)],
            pass_fds=[door.fileno() for door in doors],
            env={**os.environ, **cgroups.room(group)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
            preexec_fn=lambda: cgroups.enter(group),
        )


async def follow(lab: Lab, tell: Callable[[dict[str, Any]], None]) -> None:
    """Call ``report`` with every step until the lab is ready; CannotStart where it does not become so in time."""
    log = lab.logs / "supervisor.log"
    try:
        async with asyncio.timeout(READY_WITHIN):
            await _listening(lab)
            async for step in ask(lab, {"do": "follow"}):
                tell(step)
                if step.get("ready"):
                    return
    except TimeoutError:
        raise CannotStart(f"not ready after {READY_WITHIN:g} s: isthmus lab status, and logs in {lab.logs}") from None
    except ConnectionError:
        pass
    raise CannotStart(f"the supervisor ended: {_last(lab)}: {log}")


async def _listening(lab: Lab) -> None:
    group = control_group(lab)
    while not lab.socket.exists():
        await asyncio.sleep(0.02)
        if not cgroups.processes(group):
            raise CannotStart(f"the supervisor ended: {_last(lab)}")
    while True:
        try:
            _, writer = await asyncio.open_unix_connection(lab.socket)
        except ConnectionRefusedError:
            await asyncio.sleep(0.02)
        else:
            writer.close()
            return


def _last(lab: Lab) -> str:
    lines = (lab.logs / "supervisor.log").read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
