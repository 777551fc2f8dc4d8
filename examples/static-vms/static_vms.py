"""A node's load balancing from a list of machines: the ordinary parts, and one more source.

    python examples/static-vms/static_vms.py examples/static-vms/node.toml examples/static-vms/vms.txt
    isthmus get plans -A --socket /tmp/static-vms.sock

A line of the list is a service, the address and port it is called at, and the machines that answer.
"""

import asyncio
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from isthmus import loadbalancer
from isthmus.admin import Server
from isthmus.config import Config, load
from isthmus.model import tables
from isthmus.model.names import LOCAL, ClusterName, ServiceName
from isthmus.model.services import Endpoint, EndpointSet, Port, Service
from isthmus.processes.programming import TABLES, Programming
from isthmus.processes.start import start, tables_of
from isthmus.statedb import Database, Derivations


def rows(lines: list[str]) -> Iterator[tuple[Service, EndpointSet]]:
    """The rows of the list, of a source named 'vms'."""
    for name, called, *machines in (line.split() for line in lines if line.strip() and line[0] != "#"):
        service, (address, port) = ServiceName(name), called.rsplit(":", 1)
        answering = [machine.rsplit(":", 1) for machine in machines]
        endpoints = tuple(Endpoint(host, (Port("", int(number)),)) for host, number in sorted(answering))
        yield (
            Service(name=service, source="vms", cluster_ips=(address,), ports=(Port("", int(port)),)),
            EndpointSet(service=service, cluster=LOCAL, source="vms", part="list", endpoints=endpoints),
        )


async def main(config: Config, *, vms: Path) -> None:
    """Wire the parts and keep them going."""
    derived = loadbalancer.derived(ClusterName(config.cluster.name), config.node.name, services="all")
    db = Database(*tables_of(derived, *TABLES))
    with db.write() as txn:
        for service, endpoints in rows(vms.read_text().splitlines()):
            txn.put(tables.SERVICES, service)
            txn.put(tables.ENDPOINT_SETS, endpoints)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(Derivations(db, *derived).run())
        tasks.create_task(Server(db, config.admin.socket).run())
        if config.datapath.cgroup:
            tasks.create_task(Programming(db, config).run())


if __name__ == "__main__":
    configuration = load(Path(sys.argv[1]), environment=os.environ)
    sys.exit(start("static-vms", partial(main, vms=Path(sys.argv[2])), configuration))
