"""How a process begins and ends: one event loop, signals end it cleanly, one line on stderr when it cannot run."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus import kube, logs
from isthmus.config import Config, ConfigError, EtcdSection
from isthmus.etcd import Credentials, Session, Tls
from isthmus.running import until_told
from isthmus.sources.identity import cluster_name
from isthmus.statedb import Backoff, Derivation, Retry, Table

ASKING = Backoff(0.2, 5.0)
SECOND_NAME = 2.0
"""Seconds to wait for the API server's ClusterProperty when a name is configured as well."""

log = logs.get("start")

Main = Callable[[Config], Coroutine[Any, Any, None]]

COLLECT_AFTER: Final = (3_000, 300, 20)
"""The garbage collector's thresholds. Rows are immutable and without cycles: it finds nothing in them and need not look
often. A look takes 0.1 ms. With 15,000 and 50,000 new objects for each there were fewer, of 0.5 and 3 ms, and together
they took as long.
"""


class CannotStart(Exception):  # noqa: N818
    """A process lacks something it cannot do without; the message names it, and how to get it."""


def start(name: str, main: Main, config: Config) -> int:
    """Run a process to its end; its exit code. 0: stopped by a signal, 1: it cannot run, for the reason on stderr."""
    logs.configure(level=config.log.level, form=config.log.format)
    log = logs.get(name)
    gc.set_threshold(*COLLECT_AFTER)
    try:
        until_told(main(config))
    except (CannotStart, ConfigError) as why:
        print(f"isthmus {name}: {why}", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        known, unknown = group.split((CannotStart, ConfigError))
        for cause in _leaves(known):
            print(f"isthmus {name}: {cause}", file=sys.stderr)
        if unknown is not None:
            raise unknown from None
        return 1
    log.info("stopped")
    return 0


def _leaves(group: BaseExceptionGroup[BaseException] | None) -> list[BaseException]:
    found: list[BaseException] = []
    for each in group.exceptions if group else ():
        found += _leaves(each) if isinstance(each, BaseExceptionGroup) else [each]
    return found


def require(config: Config, **fields: str | int | tuple[str, ...]) -> None:
    """CannotStart unless each named configuration field has a value."""
    empty = [name.replace("__", ".") for name, value in fields.items() if not value]
    if empty:
        raise CannotStart(f"not configured: {', '.join(empty)}; set them in the file or with --set section.field=value")


def tables_of(derived: Iterable[Derivation], *others: Table[Any, Any]) -> set[Table[Any, Any]]:
    """Derived tables, all that they read, and others: the tables of a process that computes them."""
    return {*others, *(table for each in derived for table in (*each.tables, *each.reads))}


async def identified(config: Config, client: kube.Client) -> Config:
    """The configuration with the cluster's name; where it has none, the API server is asked until it answers."""
    retry = Retry(ASKING)
    while True:
        try:
            async with asyncio.timeout(SECOND_NAME if config.cluster.name else None):
                name = await cluster_name(client, configured=config.cluster.name)
        except TimeoutError:
            return config
        except kube.Unreachable as why:
            log.warning("cannot ask what the cluster is called", why=str(why), attempt=retry.failed())
            await retry.pause()
        except kube.KubeError as why:
            raise CannotStart(f"cluster.name: not set, and its ClusterProperty cannot be read: {why}") from None
        else:
            return msgspec.structs.replace(config, cluster=msgspec.structs.replace(config.cluster, name=name))


def own_etcd(section: EtcdSection) -> Session:
    """A session with the own cluster's etcd, as configured; CannotStart where its password cannot be read."""
    tls = Tls(section.ca_file, section.cert_file, section.key_file) if section.ca_file or section.cert_file else None
    if not section.username:
        return Session(section.endpoints, tls=tls)
    try:
        password = Path(section.password_file).read_text().strip()
    except OSError as error:
        raise CannotStart(f"etcd.password_file = '{section.password_file}': {error.strerror}") from None
    return Session(section.endpoints, tls=tls, credentials=Credentials(section.username, password))
