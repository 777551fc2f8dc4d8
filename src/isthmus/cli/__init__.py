"""The command line: one module per command group, imported when that group is called and not before.

What belongs here: options, where to ask, and how answers look. What never does: anything a process does.
Results go to stdout; what went wrong is one line on stderr. Exit codes: 0 fine, 1 it failed, 2 asked in a wrong way.
"""

from __future__ import annotations

from typing import Final

import click

from isthmus import __version__
from isthmus.cli.contexts import context_option
from isthmus.cli.lazy import LazyGroup

COMMANDS: Final = {
    "install": (
        "isthmus.cli.install:install",
        "Install Isthmus in a cluster: finds out what it can, shows a plan, waits.",
    ),
    "check": (
        "isthmus.cli.check:check",
        "Check clusters before and after an installation: DNS, packets, rights, …",
    ),
    "upgrade": ("isthmus.cli.upgrade:upgrade", "Go from one release to the next, or back, stage by stage."),
    "uninstall": ("isthmus.cli.uninstall:uninstall", "Remove Isthmus from a cluster, its nodes included; asks first."),
    "get": ("isthmus.cli.get:get", "Rows of a process's tables: clusters, imports, plans, names, …"),
    "explain": ("isthmus.cli.explain:explain", "Why calls of a service go where they go."),
    "diagnose": ("isthmus.cli.diagnose:diagnose", "Where calls of a service break, and what mends it."),
    "flows": ("isthmus.cli.flows:flows", "Calls of pods one by one: who called what, who answered, what came of it."),
    "ui": ("isthmus.cli.ui.command:ui", "A page with a live map: clusters, services, calls, what is wrong."),
    "top": ("isthmus.cli.top:top", "Services by calls per second, failures and time to connect, redrawn."),
    "mcp": (
        "isthmus.cli.assistant.command:mcp",
        "Answer an assistant's questions (Model Context Protocol); read only.",
    ),
    "status": ("isthmus.cli.status:status", "What the processes have, and what they lack."),
    "verify": ("isthmus.cli.verify:verify", "Test calls between every pair of clusters; cleans up after itself."),
    "gather": ("isthmus.cli.gather:gather", "Pack status, tables, logs and versions for a bug report."),
    "clusters": ("isthmus.cli.clusters:group", "The other clusters: status, certs, invite, join, leave, drain."),
    "connect": ("isthmus.cli.connect:connect", "Connect clusters, each with each, by their contexts."),
    "disconnect": ("isthmus.cli.connect:disconnect", "Delete the links between clusters."),
    "nodes": ("isthmus.cli.draining:nodes", "Nodes of the own cluster: drain, undrain."),
    "services": ("isthmus.cli.draining:services", "Services of the own cluster: export, drain, undrain."),
    "karmada": ("isthmus.cli.karmada:group", "Members of a Karmada control plane as a clusterset: join, status."),
    "bpf": ("isthmus.cli.bpf:group", "What is really in the kernel."),
    "relay": ("isthmus.cli.relay:relay", "Standard streams to an admin socket: what --context runs in a pod."),
    "agent": ("isthmus.cli.run:agent", "Run a node's agent."),
    "dns": ("isthmus.cli.run:dns", "Run a node's name server; dns query: who answers a name."),
    "operator": ("isthmus.cli.run:operator", "Run a cluster's operator."),
    "mirror": ("isthmus.cli.run:mirror", "Run a cluster's mirror of its peers."),
    "keys": ("isthmus.cli.run:keys", "Keep a cluster's authority, certificates and the users of its etcd."),
    "gateway": ("isthmus.cli.run:gateway", "Run a gateway of an island: what the cluster exports, for other islands."),
    "envoy": ("isthmus.cli.run:envoy", "Keep a node's Envoy running, where one is wanted."),
}


ENTRY_POINTS: Final = "isthmus.commands"
"""Distributions add commands under this group of entry points, as ``isthmus-lab`` does with ``lab``."""


@click.group(
    cls=LazyGroup, lazy=COMMANDS, entry_points=ENTRY_POINTS, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, message="isthmus %(version)s")
@context_option
def root() -> None:
    """Isthmus: a Kubernetes Service exported in one cluster, callable by name from every other one."""


def main() -> None:
    """The ``isthmus`` command."""
    root.main(prog_name="isthmus")
