"""Keys of one release are kept by the other, there and back: the authority, certificates and users of the etcd."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import pytest
from clusters.keys_world import KeptCluster, kept
from clusters.kube_apiserver import KubeApiServer
from clusters.operator_process import OperatorProcess, ready
from machine import previous_release

from isthmus.kube.objects.core import SECRET

pytestmark = [pytest.mark.upgrade, pytest.mark.kube]

OLD, NEW = str(previous_release.previous().python), sys.executable


@pytest.fixture
async def cluster(kube_apiserver: KubeApiServer, tmp_path: Path) -> AsyncIterator[KeptCluster]:
    async with kept(kube_apiserver, tmp_path) as made:
        await made.define()
        yield made


SERVER: Final = frozenset({"server.crt", "server.key"})
"""Pair that a release issues anew, by the same authority, if its etcd has names that the pair lacks."""


async def secrets(cluster: KeptCluster) -> dict[tuple[str, str], str]:
    """Content by Secret and file."""
    found = await cluster.admin.list(SECRET, cluster.namespace)
    return {(each.metadata.name, file): text for each in found for file, text in (each.data or {}).items()}


def changed(before: dict[tuple[str, str], str], now: dict[tuple[str, str], str]) -> set[str]:
    """Files that differ, came or went."""
    return {name[1] for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


async def ended(process: OperatorProcess) -> None:
    process.process.terminate()
    assert await asyncio.to_thread(process.process.wait, 60) == 0, process.log


async def test_keys_are_the_same_whichever_release_keeps_them_and_either_operator_uses_them(
    cluster: KeptCluster,
) -> None:
    keys = cluster.start("keys", python=OLD)
    await cluster.mount("isthmus-etcd-server", "isthmus-etcd-operator")
    cluster.etcd.start()
    operator = cluster.start("operator", python=OLD)
    await ready(keys)
    await ready(operator)
    states = [await secrets(cluster)]
    for keeper, user in ((NEW, OLD), (NEW, NEW), (OLD, NEW), (OLD, OLD)):
        await ended(keys)
        await ended(operator)
        keys, operator = cluster.start("keys", python=keeper), cluster.start("operator", python=user)
        await ready(keys)
        await ready(operator)
        states.append(await secrets(cluster))
    first, second, *others = states
    assert changed(first, second) <= SERVER
    assert others == [second] * len(others), "neither takes back what the other issued"
