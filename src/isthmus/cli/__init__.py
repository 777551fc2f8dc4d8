"""The command line: one module per command group, imported when that group is called and not before.

What belongs here: options, where to ask, and how answers look. What never does: anything a process does.
Results go to stdout; what went wrong is one line on stderr. Exit codes: 0 fine, 1 it failed, 2 asked in a wrong way.
"""

from __future__ import annotations

from typing import Final

import click

from isthmus import __version__
from isthmus.cli.lazy import LazyGroup

COMMANDS: Final = {
    "get": ("isthmus.cli.get:get", "Rows of a process's tables: clusters, imports, plans, names, …"),
    "explain": ("isthmus.cli.explain:explain", "Why calls of a service go where they go."),
    "diagnose": ("isthmus.cli.diagnose:diagnose", "Where calls of a service break, and what mends it."),
    "flows": ("isthmus.cli.flows:flows", "Calls of pods one by one: who called what, who answered, what came of it."),
    "status": ("isthmus.cli.status:status", "What the processes have, and what they lack."),
    "verify": ("isthmus.cli.verify:verify", "Test calls between every pair of clusters; cleans up after itself."),
    "gather": ("isthmus.cli.gather:gather", "Pack status, tables, logs and versions for a bug report."),
    "clusters": ("isthmus.cli.clusters:group", "The other clusters: status, certs, invite, join, leave, drain."),
    "nodes": ("isthmus.cli.draining:nodes", "Nodes of the own cluster: drain, undrain."),
    "services": ("isthmus.cli.draining:services", "Services of the own cluster: drain, undrain."),
    "karmada": ("isthmus.cli.karmada:group", "Members of a Karmada control plane as a clusterset: join, status."),
    "bpf": ("isthmus.cli.bpf:group", "What is really in the kernel."),
    "relay": ("isthmus.cli.relay:relay", "Standard streams to an admin socket: what --context runs in a pod."),
    "agent": ("isthmus.cli.run:agent", "Run a node's agent."),
    "dns": ("isthmus.cli.run:dns", "Run a node's name server; dns query: who answers a name."),
    "operator": ("isthmus.cli.run:operator", "Run a cluster's operator."),
    "mirror": ("isthmus.cli.run:mirror", "Run a cluster's mirror of its peers."),
    "gateway": ("isthmus.cli.run:gateway", "Run a gateway of an island: what the cluster exports, for other islands."),
    "envoy": ("isthmus.cli.run:envoy", "Keep a node's Envoy running, where one is wanted."),
}


ENTRY_POINTS: Final = "isthmus.commands"
"""Distributions add commands under this group of entry points, as ``isthmus-lab`` does with ``lab``."""


@click.group(
    cls=LazyGroup, lazy=COMMANDS, entry_points=ENTRY_POINTS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, message="isthmus %(version)s")
@click.option(
    "--context", metavar="NAME", help="Ask the pods of this kubeconfig context's cluster, through kubectl exec."
)
def root(context: str | None) -> None:
    """Isthmus: a Kubernetes Service exported in one cluster, callable by name from every other one."""


def main() -> None:
    """The ``isthmus`` command."""
    root.main(prog_name="isthmus")
