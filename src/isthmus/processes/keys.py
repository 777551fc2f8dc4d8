"""The keeper of keys, one per cluster: its authority, its certificates, and the users of its etcd, in Secrets.

It alone has the authority's key and the etcd's root. While it is down everything works, and nothing is renewed. Its
Deployment ends the pod before it starts another; two that run for a moment write the Secret of keys on the condition
that it has not changed, so there is never a second authority, which a Lease would guarantee no better.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from prometheus_client.metrics_core import Metric

from isthmus import kube, metrics
from isthmus.admin.protocol import ProcessStatus
from isthmus.clusterset import Folder, Keeper, OwnCluster, Step
from isthmus.config import Config
from isthmus.model import tables
from isthmus.processes import pair_keys
from isthmus.processes.certificates import OwnCertificates
from isthmus.processes.links import Links
from isthmus.processes.observing import Shown, View
from isthmus.processes.start import identified, require, start, supervised
from isthmus.sources import kubernetes
from isthmus.statedb import Database

PREFIX = "isthmus_keys"
SHOWN = ("operator", "mirror", "local", "node", "gateway", "peer", "server")
"""Pairs in the folder whose ends are displayed, beside the authority's."""


def run(config: Config) -> int:
    """The process; its exit code."""
    return start("keys", main, config)


async def main(config: Config) -> None:
    """Wire the parts and run them."""
    require(
        config, cluster__id=config.cluster.id, etcd__endpoints=config.etcd.endpoints, etcd__ca_file=config.etcd.ca_file
    )
    async with await kube.connect(config.kubernetes) as client, supervised() as tasks:
        shown = Shown(tasks, config, PREFIX)
        config = await identified(config, client, shown)
        home = own_cluster(config)
        own_pair = pair_keys.OwnPair(every=config.identity.rotation)
        keeper = Keeper(
            client,
            home,
            config.keys,
            namespace=config.kubernetes.namespace,
            also=own_pair.ensure if config.identity.enabled else None,
        )
        db = Database(tables.LINKS, tables.FAULTS)
        reflectors = kubernetes.reflectors(db, client, tables=("links",), cluster=home.name)
        served = Links(client, db, keeper, config)
        pairs = pair_keys.PairKeys(client, keeper, config)
        certificates = OwnCertificates(config, files=[home.folder.path / f"{name}.crt" for name in SHOWN])

        def problems() -> Iterator[str]:
            yield from client.problems()
            yield from keeper.problems()
            yield from served.problems()
            yield from pairs.problems()
            yield from filter(None, [own_pair.problem])
            yield from certificates.problems()

        def warnings() -> Iterator[str]:
            yield from certificates.warnings()
            if keeper.rotation.waits:
                yield f"rotation of the authority ({keeper.rotation.step}): {'; '.join(keeper.rotation.waits)}"

        def families() -> Iterator[Metric]:
            yield from certificates.families(PREFIX)
            yield metrics.ROTATION_STEP.value(PREFIX, [*Step].index(keeper.rotation.step))

        shown.show(
            View(
                db=db,
                status=lambda: KeysStatus(
                    cluster=home.name,
                    outcome=keeper.outcome,
                    authority=keeper.rotation.sentence(),
                    signatures=own_pair.sentence() if config.identity.enabled else "",
                ),
                problems=problems,
                imminent=certificates.imminent,
                warnings=lambda: [*keeper.warnings(), *warnings()],
                families=families,
            )
        )
        tasks.start("keeper", keeper.run)
        for reflector in reflectors:
            tasks.start(reflector.name, reflector.run)
        tasks.start("links", served.run)
        if config.identity.enabled:
            tasks.start("pair keys", pairs.run)
        tasks.start("certificates", certificates.run)
        tasks.start("api server", client.probe)


class KeysStatus(ProcessStatus, frozen=True, kw_only=True):
    """The keeper's part of ``isthmus status``."""

    cluster: str
    outcome: str
    """State of the own etcd, as a sentence."""
    authority: str
    """State of the authority and of its rotation, as a sentence."""
    signatures: str = ""
    """State of the pair by which callers are signed, as a sentence; empty without identities of callers."""


def own_cluster(config: Config) -> OwnCluster:
    """The cluster whose keys are kept. Its folder is that of ``etcd.ca_file``, as for ``isthmus clusters``."""
    return OwnCluster(
        cluster=config.cluster,
        clusterset=config.clusterset,
        etcd=config.etcd,
        folder=Folder(Path(config.etcd.ca_file).parent),
        domain=config.gateway.domain,
    )
