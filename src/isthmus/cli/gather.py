"""``isthmus gather``: everything that a bug report needs, in one file.

What is in it: versions, and of each process its status and tables; with ``--context`` or a lab's ``--cluster`` also
what the API server has of the clusterset, and the pods, events and logs of Isthmus' namespace (``kubernetes_report``).
What is not: configuration files, certificates, keys and Secrets, none of which a table holds or is asked for.
"""

from __future__ import annotations

import io
import os
import platform
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from isthmus import __version__
from isthmus.admin.query import QueryError, Socket
from isthmus.cli import diagnose, local, sockets


@click.command()
@click.option(
    "-f", "--file", type=click.Path(path_type=Path), help="Where to write it.  [default: isthmus-TIME.tar.gz]"
)
@sockets.options
def gather(file: Path | None, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """Pack versions, status, tables, a diagnosis of every service and the clusterset's objects for a bug report.

    No secrets are in it.
    """
    path = file or Path(time.strftime("isthmus-%Y%m%dT%H%M%S.tar.gz"))
    asked = sockets.find(socket=socket, cluster=cluster, lab=lab)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # names and addresses are not for all
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    count = 0
    with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in _parts(asked, socket=socket, cluster=cluster, lab=lab):
            entry = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
            entry.size, entry.mtime = len(data), int(time.time())
            archive.addfile(entry, io.BytesIO(data))
            count += 1
    print(f"{path}: {count} files, {path.stat().st_size // 1024} kB")


def _parts(
    asked: list[Socket], *, socket: Path | None, cluster: str | None, lab: str | None
) -> Iterator[tuple[str, bytes]]:
    """Names and contents, one after the other: a large table need not be in memory with the next one."""
    yield (
        "versions.json",
        _json({"isthmus": __version__, "python": platform.python_version(), "kernel": " ".join(platform.uname())}),
    )
    for each in asked:
        yield from _process(each)
    facts = diagnose.collect(None, pod="", socket=socket, cluster=cluster, lab=lab)
    yield "diagnosis.json", _json(diagnose.all_services(facts))
    if options := _kubectl_options(cluster=cluster, lab=lab):
        from isthmus.cli import kubernetes_report

        yield from kubernetes_report.report(options)


def _kubectl_options(*, cluster: str | None, lab: str | None) -> tuple[str, ...]:
    """What selects the cluster for kubectl; nothing where only sockets are named."""
    if context := sockets.context():
        return ("--context", context)
    if cluster is not None:
        return ("--kubeconfig", str(local.LABS / (lab or local.default_lab()) / "kubeconfig"), "--context", cluster)
    return ()


def _process(asked: Socket) -> Iterator[tuple[str, bytes]]:
    name = asked.path.stem
    try:
        status = asked.status()
        yield f"{name}/status.json", _json(status)
        for table in status["tables"]:
            yield f"{name}/tables/{table}.json", _json(asked.table(table))
    except QueryError as why:
        yield f"{name}/error.txt", f"{why}\n".encode()


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)
