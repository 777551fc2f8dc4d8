"""Start and end of a process: one event loop, signals end it cleanly, one line on stderr when it cannot run."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from isthmus import kube, logs
from isthmus.config import Config, ConfigError, EtcdSection
from isthmus.etcd import Credentials, Session, Tls
from isthmus.processes.observing import Shown, View
from isthmus.running import Tasks, until_told
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
    """Run a process to its end. Return 0 if a signal stopped it, 1 if it cannot run, with the reason on stderr."""
    logs.configure(level=config.log.level, form=config.log.format)
    log = logs.get(name)
    gc.set_threshold(*COLLECT_AFTER)
    try:
        until_told(main(config))
    except (CannotStart, ConfigError) as error:
        print(f"isthmus {name}: {error}", file=sys.stderr)
        return 1
    except BaseExceptionGroup as group:
        expected, unknown = group.split((CannotStart, ConfigError))
        for cause in _leaves(expected):
            print(f"isthmus {name}: {cause}", file=sys.stderr)
        if unknown is not None:
            raise unknown from None
        return 1
    log.info("stopped")
    return 0


def _leaves(group: BaseExceptionGroup[BaseException] | None) -> list[BaseException]:
    leaves: list[BaseException] = []
    for inner in group.exceptions if group else ():
        leaves += _leaves(inner) if isinstance(inner, BaseExceptionGroup) else [inner]
    return leaves


def supervised() -> Tasks:
    """The tasks of a process. What a process cannot do without ends it at its start."""
    return Tasks(fatal=(CannotStart, ConfigError))


def require(config: Config, **fields: str | int | tuple[str, ...]) -> None:
    """CannotStart unless each named configuration field has a value."""
    empty = [name.replace("__", ".") for name, value in fields.items() if not value]
    if empty:
        raise CannotStart(f"not configured: {', '.join(empty)}; set them in the file or with --set section.field=value")


def tables_of(derived: Iterable[Derivation], *others: Table[Any, Any]) -> set[Table[Any, Any]]:
    """Derived tables, all that they read, and others: the tables of a process that computes them."""
    return {*others, *(table for each in derived for table in (*each.tables, *each.reads))}


async def identified(config: Config, client: kube.Client, shown: Shown) -> Config:
    """The configuration with the cluster's name; where it has none, the API server is asked until it answers."""
    retry, refusal = Retry(ASKING), ""
    shown.idle(View(problems=lambda: [*_reasons(client, refusal), "it waits to learn what its cluster is called"]))
    while True:
        try:
            async with asyncio.timeout(SECOND_NAME if config.cluster.name else None):
                name = await cluster_name(client, configured=config.cluster.name)
        except TimeoutError:
            return config
        except kube.KubeError as error:
            refusal = str(error)
            log.warning("cannot ask what the cluster is called", why=refusal, attempt=retry.failed())
            await retry.pause()
        else:
            return msgspec.structs.replace(config, cluster=msgspec.structs.replace(config.cluster, name=name))


def _reasons(client: kube.Client, refusal: str) -> Sequence[str]:
    """Reasons why the API server gives no name: it does not answer at all, or refuses this request."""
    return client.problems() or [refusal or "the API server has not answered yet"]


@asynccontextmanager
async def own_etcds(section: EtcdSection) -> AsyncIterator[dict[str, Session]]:
    """A session with each etcd of the own cluster, by its name; CannotStart where the password cannot be read."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(_session(section, endpoints))
            for name, endpoints in section.stores().items()
        }


def _session(section: EtcdSection, endpoints: tuple[str, ...]) -> Session:
    tls = Tls(section.ca_file, section.cert_file, section.key_file) if section.ca_file or section.cert_file else None
    if not section.username:
        return Session(endpoints, tls=tls)
    try:
        password = Path(section.password_file).read_text().strip()
    except OSError as error:
        raise CannotStart(f"etcd.password_file = '{section.password_file}': {error.strerror}") from None
    return Session(endpoints, tls=tls, credentials=Credentials(section.username, password))
