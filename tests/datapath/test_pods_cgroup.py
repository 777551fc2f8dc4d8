"""The cgroup of all pods of a node is found by a process of one of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from isthmus.datapath.core import pods_cgroup
from isthmus.datapath.core.errors import DatapathError

UID = "0f1e2d3c_1111_2222_3333_444455556666"
PID = 4711
V2 = "/sys/fs/cgroup"
LAYOUTS = {
    "containerd, systemd driver": (
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID}.slice/cri-containerd-ab12.scope",
        "kubepods.slice",
    ),
    "containerd, cgroupfs driver": (f"kubepods/besteffort/pod{UID}/ab12", "kubepods"),
    "CRI-O, systemd driver": (f"kubepods.slice/kubepods-pod{UID}.slice/crio-ab12.scope/container", "kubepods.slice"),
    "CRI-O, cgroupfs driver": (f"kubepods/burstable/pod{UID}/crio-ab12", "kubepods"),
    "kind, systemd driver": (
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID}.slice/cri-containerd-ab12.scope",
        "kubelet.slice/kubelet-kubepods.slice",
    ),
    "kind, cgroupfs driver": (f"kubelet/kubepods/burstable/pod{UID}/ab12", "kubelet/kubepods"),
    "containerd, cgroupsPerQOS: false": (f"k8s.io/{'ab12' * 16}", "k8s.io"),
    "hybrid, all containers stay in the runtime's own": ("system.slice/containerd.service", None),
}


class Node:
    """A hierarchy of cgroups and the files of /proc of a process in it."""

    def __init__(self, folder: Path, group: str, *, mount: str = "cgroup") -> None:
        self.mount = folder / mount
        for other in ("init.scope", "system.slice/sshd.service", group):
            (self.mount / other).mkdir(parents=True)
            (self.mount / other / "cgroup.procs").write_text("1\n2\n")
        (self.mount / "cgroup.procs").write_text("")
        (self.mount / group / "cgroup.procs").write_text(f"99\n{PID}\n")
        self.proc = folder / "proc"
        self.proc.mkdir()
        self.own(f"/{group}")
        self.mounts(f"30 20 0:26 / {self.mount} rw,nosuid - cgroup2 cgroup2 rw")

    def own(self, path: str) -> None:
        (self.proc / "cgroup").write_text(f"12:pids:/elsewhere\n0::{path}\n")

    def mounts(self, *lines: str) -> None:
        (self.proc / "mountinfo").write_text("\n".join(("20 1 8:1 / / rw - ext4 /dev/sda1 rw", *lines, "")))

    def find(self) -> str:
        return str(pods_cgroup.find(proc=self.proc, pid=PID).relative_to(self.mount))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_cgroup_of_all_pods_is_found_from_the_own_pod(layout: str, tmp_path: Path) -> None:
    group, pods = LAYOUTS[layout]
    assert Node(tmp_path, group).find() == (pods or group)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_is_found_from_a_cgroup_namespace_in_which_the_own_path_is_hidden(layout: str, tmp_path: Path) -> None:
    group, pods = LAYOUTS[layout]
    node = Node(tmp_path, group)
    node.own("/")
    node.mounts(
        "29 20 0:26 / /sys/fs/cgroup ro - cgroup2 cgroup rw",  # the container's own, which shows only itself
        f"30 20 0:26 /../../../.. {node.mount} ro - cgroup2 cgroup2 rw",
    )
    assert node.find() == (pods or group)


def test_on_a_hybrid_node_the_v2_hierarchy_counts(tmp_path: Path) -> None:
    node = Node(tmp_path, f"kubepods.slice/kubepods-pod{UID}.slice/cri-containerd-ab12.scope", mount="unified")
    node.mounts(
        f"28 20 0:24 / {tmp_path}/memory rw - cgroup cgroup rw,memory",
        f"30 20 0:26 / {node.mount} rw - cgroup2 cgroup2 rw",
    )
    assert node.find() == "kubepods.slice"


def test_an_agent_outside_any_pod_finds_it_by_its_name(tmp_path: Path) -> None:
    node = Node(tmp_path, "system.slice/isthmus-agent.service")
    (node.mount / "kubepods.slice").mkdir()
    assert node.find() == "kubepods.slice"


def test_a_process_in_the_root_cgroup_gets_an_error_that_names_the_setting(tmp_path: Path) -> None:
    node = Node(tmp_path, "somewhere")
    (node.mount / "somewhere" / "cgroup.procs").write_text("")
    (node.mount / "cgroup.procs").write_text(f"{PID}\n")
    with pytest.raises(DatapathError, match="to the cgroup of this node's pods"):
        node.find()


def test_without_cgroup_v2_the_error_says_so(tmp_path: Path) -> None:
    node = Node(tmp_path, "somewhere")
    node.mounts()
    with pytest.raises(DatapathError, match="cgroup v2 is not mounted"):
        node.find()
