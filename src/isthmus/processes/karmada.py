"""``isthmus karmada``: the loop over a control plane, and the users of a member's etcd."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

from isthmus import kube
from isthmus.clusterset import OwnCluster
from isthmus.config import Config
from isthmus.karmada import Control, Granting
from isthmus.kube.lease import Election
from isthmus.processes.start import start, supervised


def join(config: Config, *, namespace: str, definitions: Sequence[dict[str, Any]]) -> int:
    """Keep the members of a control plane joined; of several replicas one does. Its exit code."""
    return start("karmada join", partial(_join, namespace=namespace, definitions=definitions), config)


async def _join(config: Config, *, namespace: str, definitions: Sequence[dict[str, Any]]) -> None:
    async with await kube.connect(config.kubernetes) as client:
        control = Control(client, namespace=namespace, definitions=definitions)
        identity = f"{socket.gethostname()}-{os.getpid()}"
        election = Election(client, name="isthmus-karmada", namespace=namespace, identity=identity)
        async with supervised() as tasks:
            tasks.start("election", lambda: election.run(control.run))


def access(config: Config, home: OwnCluster) -> int:
    """Keep the users of a member's etcd as its keys say. Its exit code."""

    async def main(config: Config) -> None:
        async with supervised() as tasks:
            tasks.start("users", Granting(home).run)

    return start("karmada access", main, config)
