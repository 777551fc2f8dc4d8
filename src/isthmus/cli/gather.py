"""``isthmus gather``: everything that a bug report needs, in one file.

What is in it: versions, of each process its status and tables, and the maps in the kernel; with ``--context`` or a
lab's ``--cluster`` also what the API server has of the clusterset, and the pods, events and logs of Isthmus' namespace
(``kubernetes_report``); of a lab the logs of the cluster's processes.
What is not: configuration files, certificates, keys and Secrets, none of which a table holds or is asked for.
"""

from __future__ import annotations

import io
import os
import platform
import tarfile
import time
from collections.abc import Iterator
from math import floor
from pathlib import Path
from typing import Any

import click
import msgspec

from isthmus import __version__
from isthmus.admin.query import QueryError, Socket
from isthmus.cli import diagnose, kubernetes_report, local, output, sockets
from isthmus.config import DatapathSection

REASONS = ("/error.txt", "/errors.txt")
"""Ends of the names of files that have why something could not be asked."""


@click.command()
@click.option(
    "-f", "--file", type=click.Path(path_type=Path), help="Where to write it.  [default: isthmus-TIME.tar.gz]"
)
@sockets.options
def gather(file: Path | None, socket: Path | None, cluster: str | None, lab: str | None) -> None:
    """Pack status, tables, maps, logs, a diagnosis of every service and the clusterset's objects for a bug report.

    No secrets are in it.

    Example: isthmus gather --context c1 -f report.tar.gz
    """
    path = file or Path(time.strftime("isthmus-%Y%m%dT%H%M%S.tar.gz"))
    asked = sockets.find(socket=socket, cluster=cluster, lab=lab)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)  # names and addresses are not for all
    except OSError as error:
        raise click.ClickException(f"{path}: {error.strerror}") from None
    names = []
    with os.fdopen(descriptor, "wb") as stream, tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in _parts(asked, socket=socket, cluster=cluster, lab=lab):
            entry = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
            entry.size, entry.mtime = len(data), floor(time.time())
            archive.addfile(entry, io.BytesIO(data))
            names.append(name)
    print(f"{path}: {len(names)} files, {path.stat().st_size // 1024} kB")
    if refused := [name for name in names if name.endswith(REASONS)]:
        output.note(f"not everything could be asked; the reasons are in {', '.join(refused)}")


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
    from isthmus.cli.diagnosis.exporters import cluster_faults

    facts = diagnose.collect(None, pod="", socket=socket, cluster=cluster, lab=lab)
    yield "diagnosis.json", _json({"cluster": cluster_faults(facts), "services": diagnose.all_services(facts)})
    if not sockets.context():
        yield "maps.json", _json(_maps(cluster=cluster, lab=lab))
    if cluster is not None:
        yield from _lab_logs(local.LABS / (lab or local.default_lab()) / "logs", cluster)
    if options := _kubectl_options(cluster=cluster, lab=lab):
        yield from kubernetes_report.report(options)


def _maps(*, cluster: str | None, lab: str | None) -> dict[str, Any]:
    """The maps of this machine, or of a lab's node; the reason where there are none."""
    from isthmus import datapath
    from isthmus.datapath import view

    try:
        maps = datapath.open_maps(local.cluster(cluster, lab=lab).pin if cluster or lab else DatapathSection().pin)
    except datapath.DatapathError as error:
        return {"error": str(error)}
    try:
        return view.dump(maps)
    finally:
        maps.close()


def _lab_logs(folder: Path, cluster: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.glob(f"{cluster}-*.log")):
        yield f"logs/{path.name}", b"".join(path.read_bytes().splitlines(keepends=True)[-kubernetes_report.LOG_LINES :])


def _kubectl_options(*, cluster: str | None, lab: str | None) -> tuple[str, ...]:
    """Return kubectl's options that select the cluster; none if only sockets are named."""
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
    except QueryError as error:
        yield f"{name}/error.txt", f"{error}\n".encode()


def _json(value: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(value), indent=1)
