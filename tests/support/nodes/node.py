"""One real node: containerd, kubelet and kube-proxy in namespaces and a control group of the node's own.

containerd, containers and what they make see the node's control group as the root of each hierarchy, version 1 or 2.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

import yaml
from labs import lab_running
from machine import programs
from nodes.world import World

from nodes import images

CONTAINERD: Final = """\
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
address = "/run/containerd/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
restrict_oom_score_adj = true
disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
BinaryName = "{folder}/runc"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "{folder}/cni"
"""
"""Without CAP_SYS_RESOURCE no process lowers its oom_score_adj, and runc ends where it is to."""
RUNC: Final = """\
#!/bin/sh
for each; do
	case $last in
	--bundle) file=$each/config.json ;;
	--process) file=$each ;;
	esac
	last=$each
done
[ -z "$file" ] || sed -i 's/,"CAP_SYS_RESOURCE"//g; s/"CAP_SYS_RESOURCE",//g' "$file"
exec runc "$@"
"""
"""runc refuses to give a container a capability that is not there to give: leave CAP_SYS_RESOURCE out."""
KUBELET: Final[dict[str, Any]] = {
    "apiVersion": "kubelet.config.k8s.io/v1beta1",
    "kind": "KubeletConfiguration",
    "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": True}},
    "authorization": {"mode": "Webhook"},
    "cgroupDriver": "cgroupfs",
    "cgroupsPerQOS": False,
    "enforceNodeAllocatable": [],
    "failCgroupV1": False,
    "failSwapOn": False,
    "localStorageCapacityIsolation": False,
    "syncFrequency": "10s",
    "evictionHard": {"memory.available": "100Mi"},
    "imageGCHighThresholdPercent": 100,
    "imageMinimumGCAge": "24h",
    "clusterDomain": "cluster.local",
    "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
    "oomScoreAdj": 0,
}


class Node:
    """A node, whose process 1 runs; ``start`` lets it join a cluster.

    ``masquerades``: its pods call other networks by the node's address.
    """

    def __init__(self, world: World, name: str, address: str, pods: str, *, masquerades: bool = False) -> None:
        self.world = world
        self.name = name
        self.address = address
        self.pods = pods
        self.folder = world.folder / name
        world.attach(name, address)
        self.init = world.init(name)
        self._configure(masquerades=masquerades)

    def _configure(self, *, masquerades: bool) -> None:
        (self.folder / "resolv.conf").write_text("nameserver 192.0.2.53\n")  # RFC 5737: there is none outside
        (self.folder / "containerd.toml").write_text(CONTAINERD.format(pause=images.PAUSE, folder=self.folder))
        (self.folder / "runc").write_text(RUNC)
        (self.folder / "runc").chmod(0o755)
        (self.folder / "cni").mkdir()
        addresses = {"type": "host-local", "ranges": [[{"subnet": self.pods}]], "routes": [{"dst": "0.0.0.0/0"}]}
        bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "hairpinMode": True, "ipam": addresses}
        bridge["ipMasq"] = masquerades
        plugins = [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}]
        network = {"cniVersion": "0.4.0", "name": "pods", "plugins": plugins}
        (self.folder / "cni" / "pods.conflist").write_text(json.dumps(network))

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command on the node, as root with a shell there would; its output."""
        entered = [*self.world.inside(self.name, init=self.init), *command]
        done = subprocess.run(entered, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0 or not check, f"{command} on {self.name}: {done.stdout}{done.stderr}"
        return done.stdout

    def start_containerd(self, archives: list[Path]) -> None:
        """Start it, and give it images."""
        config = str(self.folder / "containerd.toml")
        self._start("containerd", programs.path("containerd"), "--config", config)
        lab_running.until(lambda: self._ctr("version", check=False), seconds=60, what=f"containerd of {self.name}")
        for archive in archives:
            self.load(archive)

    def load(self, archive: Path) -> None:
        """Import the images of an archive."""
        self._ctr("images", "import", str(archive))

    def tag(self, image: str, other: str) -> None:
        """Give an image a second name, of a registry or, as the first one's, without."""
        name = other if "/" in other else f"docker.io/library/{other}"
        self._ctr("images", "tag", f"docker.io/library/{image}", name)

    def _ctr(self, *words: str, check: bool = True) -> str:
        socket = self.folder / "run" / "containerd" / "containerd.sock"
        command = [programs.path("ctr"), "-a", str(socket), "-n", "k8s.io", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0 or not check, f"ctr {words}: {done.stderr}"
        return done.stdout

    def join(self, kubeconfigs: dict[str, Path], *, authority: Path, dns: str, proxy_mode: str) -> None:
        """Start kubelet and kube-proxy, each with its own access to the API server."""
        settings = KUBELET | {"clusterDNS": [dns], "resolvConf": str(self.folder / "resolv.conf")}
        settings["authentication"] = {**KUBELET["authentication"], "x509": {"clientCAFile": str(authority)}}
        config = self.folder / "kubelet.yaml"
        config.write_text(yaml.safe_dump(settings))
        kubelet = {
            "config": config,
            "kubeconfig": kubeconfigs["kubelet"],
            "hostname-override": self.name,
            "node-ip": self.address,
        }
        self._start("kubelet", programs.path("kubelet"), *flags(kubelet))
        proxy = {
            "kubeconfig": kubeconfigs["proxy"],
            "hostname-override": self.name,
            "proxy-mode": proxy_mode,
            "cluster-cidr": self.pods,
            "conntrack-max-per-core": 0,
            "conntrack-tcp-timeout-established": "0s",
            "conntrack-tcp-timeout-close-wait": "0s",
            "oom-score-adj": 0,
        }
        self._start("kube-proxy", programs.path("kube-proxy"), *flags(proxy))

    def _start(self, program: str, *command: str) -> None:
        entered = [*self.world.inside(self.name, init=self.init), *command]
        self.world.start(entered, group=self.name, log=f"{self.name}-{program}.log")


def flags(options: dict[str, Any]) -> list[str]:
    """Options as Kubernetes' programs take them."""
    return [f"--{name}={value}" for name, value in options.items()]
