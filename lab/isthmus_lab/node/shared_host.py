"""Pods without namespaces, on loopback addresses: what their environment has, and which of them cannot run.

They share the host's network and files. So what listens has to be a program of the lab, which listens on the pod's own
address, and name servers are asked by those programs, as there is no resolv.conf of a pod.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from isthmus.model.hosts import joined
from isthmus_lab.layout import PRIVILEGED, Node
from isthmus_lab.node.config_data import Missing
from isthmus_lab.node.objects import Container
from isthmus_lab.own_programs import ON_HOST

GETENT = """\
#!/bin/sh
# In a lab on loopback addresses: names by the pod's own name server; what else getent does, by getent.
[ "$1" = hosts ] && exec {caller} "$2" 0 --resolve
exec /usr/bin/getent "$@"
"""


def variables(node: Node, address: str, *, path: str) -> dict[str, str]:
    """Additional environment variables of a pod with an address; ``path`` is its PATH."""
    [scheme], lab = node.cluster.schemes, node.cluster.lab
    return {
        "PATH": f"{_programs(node)}:{path}",
        "KUBERNETES_SERVICE_HOST": node.cluster.address,
        "KUBERNETES_SERVICE_PORT": "6443",
        "LAB_ADDRESS": address,
        "LAB_NAMES": joined(scheme.node_local, lab.port(53)),
    }


def refuse(container: Container, *, own_program: bool) -> None:
    """Missing where a container cannot run without namespaces; ``own_program``: it runs one of the lab."""
    ports = [each.container_port for each in container.ports or ()]
    where = f"container {container.name}: without user namespaces"
    if container.volume_mounts:
        raise Missing(f"{where} it has no file system of its own, so no volumes")
    if low := [port for port in ports if port < PRIVILEGED]:
        raise Missing(f"{where} port {low[0]} is root's: use one from {PRIVILEGED}")
    if ports and not own_program:
        raise Missing(f"{where} only programs of the lab can listen on the pod's address, not {container.image}")


def begin(node: Node) -> None:
    """Write the programs that pods have in place of the host's."""
    _programs(node).mkdir(parents=True, exist_ok=True)
    file = _programs(node) / "getent"
    file.write_text(GETENT.format(caller=shlex.join(ON_HOST.command("caller.py"))))
    file.chmod(0o700)


def _programs(node: Node) -> Path:
    return node.directory / "bin"
