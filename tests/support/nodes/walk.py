"""The walk of docs/install.md on two real clusters by hand, as people type it: all its files are in one folder."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from typing import Final

import yaml
from nodes.cluster import PATIENCE, Cluster, copied, shell, shell_environment, until
from nodes.world import NETWORK, WIRE

from nodes import images, page

SYSTEM: Final = "isthmus-system"
PAGE: Final = "install.md"
REGISTRY: Final = "registry.example/isthmus"
INSTALLED, NEXT = f"{REGISTRY}:0.1.0", f"{REGISTRY}:0.1.1"
"""Images of the pages; the nodes have the same one by each name, and pull none."""
PYTHON: Final = "python:3-alpine"
"""Image of checks; ours has a Python, too, but its entry point is isthmus: a pod has to name its command."""

EXAMPLE: Final = "10.96.113.7"
"""Address of the page's Service isthmus-etcd."""


class Member:
    """A cluster on which Isthmus is installed, with the files of whoever installs it."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.folder = cluster.world.folder / "typed"
        (self.folder / cluster.name).mkdir(parents=True)
        self._config, self._mirrored = map(self._renamed, page.files(PAGE, "c1/operator.toml"))
        (self.folder / cluster.name / "operator.toml").write_text(self._config)
        self.deploy = self.folder / f"deploy-{cluster.name}"
        shutil.copytree(images.ROOT / "deploy", self.deploy)
        self._edit()
        chart = self.folder / "deploy"  # of the release, beside the copies that are edited
        if not chart.exists():
            chart.symlink_to(images.ROOT / "deploy")
        for name in (INSTALLED, NEXT, PYTHON):
            cluster.node.tag(images.IMAGE, name)

    def _edit(self) -> None:
        """Section 2, and the component that makes keys."""
        cluster = self.cluster
        given = {
            "CLUSTER_NAME": cluster.name,
            "CLUSTER_ID": str(cluster.number),
            "DNS_CLUSTER_DNS": cluster.dns,
            "CLUSTER_POD_RANGES": cluster.pods,
            "CLUSTER_SERVICE_RANGES": cluster.services,
            "CLUSTER_NODE_RANGES": f"{cluster.address}/32",
        }
        file = self.deploy / "cluster.env"
        lines = dict(line.split("=", 1) for line in file.read_text().splitlines() if not line.startswith("#"))
        lines |= {f"ISTHMUS_{name}": value for name, value in given.items()}
        file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        text = (self.deploy / "kustomization.yaml").read_text().replace("  - keys\n", "")  # they are made by hand
        (self.deploy / "kustomization.yaml").write_text(text)

    def _renamed(self, text: str) -> str:
        """Return a text of the page, which is about c1, for this cluster."""
        number = self.cluster.number
        given = {"c1": self.cluster.name, "id = 1": f"id = {number}", "cluster.id=1": f"cluster.id={number}"}
        given |= {"{10.96.0.10}": f"{{{self.cluster.dns}}}", "{10.244.0.0/16}": f"{{{self.cluster.pods}}}"}
        for old, new in given.items():
            text = text.replace(old, new)
        return with_addresses(text)

    def run(self, line: str, *, check: bool = True, stdin: str | None = None) -> str:
        """Run a command of the page, which is about c1, for this cluster."""
        return copied(self.cluster.world, self._renamed(line), folder=self.folder, check=check, stdin=stdin)

    def until(self, line: str) -> None:
        """Run a command of the page until it succeeds."""
        until(lambda: self.run(line) or True, what=self._renamed(line))

    def install(self) -> None:
        """Keys and Secrets, apply, users and roles."""
        certs, *secrets = page.commands(PAGE)["Keys by hand"]
        *pairs, _ = page.commands(PAGE)["Islands"]  # where members are islands; here nobody reads them
        apply, pods, users = page.commands(PAGE)["4. Apply"]
        self.run(certs, check=False)  # no etcd answers yet
        for line in (*secrets, *pairs, apply):
            self.run(line)
        self.cluster.balance()
        self.run(pods)
        self.until(users)

    def read_through_mirror(self) -> str:
        """Section "The mirror": files for agents, and the setting. Returns the address of the etcd that they read."""
        show, *lines = page.commands(PAGE)["The mirror"]
        assert "isthmus-etcd" in self.run(show)
        [address] = self.cluster.get("-n", SYSTEM, "service", "isthmus-etcd")["spec"]["clusterIPs"]
        config = self._config.partition("[clusterset]")[0] + self._mirrored.replace(EXAMPLE, address)
        (self.folder / self.cluster.name / "operator.toml").write_text(config)
        for line in lines:
            self.run(line.replace(EXAMPLE, address))
        with (self.deploy / "cluster.env").open("a") as file:
            file.write("ISTHMUS_CLUSTERSET_THROUGH_MIRROR=true\n")
        [apply, *_] = page.commands(PAGE)["4. Apply"]
        self.run(apply)
        return str(address)

    def image(self, tag: str) -> None:
        """Choose the image's tag in the copy of ``deploy/``."""
        file = self.deploy / "kustomization.yaml"
        found = yaml.safe_load(file.read_text())
        for each in found["images"]:
            each["newTag"] = tag
        file.write_text(yaml.safe_dump(found))

    def rolled_out(self) -> None:
        """Wait until every workload runs what was applied last."""
        kinds = "daemonset,deployment,statefulset"
        for each in self.cluster.get("-n", SYSTEM, kinds)["items"]:
            name = f"{each['kind'].lower()}/{each['metadata']['name']}"
            self.cluster.kubectl("-n", SYSTEM, "rollout", "status", name, "--timeout=200s")

    def all_ready(self) -> None:
        """Wait until every pod of Isthmus is ready, and none is left of an earlier rollout."""
        until(partial(self.cluster.pods_ready, SYSTEM), what=f"ready pods in {self.cluster.name}")


def join(members: Sequence[Member]) -> None:
    """Invite in the first cluster, join in the second, give the files to the processes."""
    invite, accept, *secrets = map(with_addresses, page.commands(PAGE)["Links by hand"])
    world, folder = members[0].cluster.world, members[0].folder
    command = [*world.inside(WIRE), *shell(invite, folder)]
    environ = os.environ | shell_environment(world)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ) as inviting:
        assert inviting.stdout is not None
        copied(world, accept, folder=folder, stdin=inviting.stdout.readline())
        assert inviting.wait(PATIENCE) == 0
    for line in secrets:
        copied(world, line, folder=folder)


def with_addresses(text: str) -> str:
    """Return a text with addresses in place of the page's hosts, which no name server here knows."""
    return re.sub(r"c(\d)-etcd\.example", lambda match: f"{NETWORK}.{10 + int(match[1])}", text)
