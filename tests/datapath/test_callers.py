"""Which pod a network namespace is: also after inodes were reused, and where the kernel does not give cookies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from datapath_worlds.bpf_world import BACKENDS, World, done, group, plan

from isthmus.datapath import CallersFirst, Datapath, view
from isthmus.datapath.core.namespaces import inside_pod, processes_below
from isthmus.datapath.services import callers

pytestmark = pytest.mark.bpf

POD = "10.9.9.9"
NO_PID = 2**22 + 1
"""Above the largest number that a process can have (proc(5), pid_max)."""
MAKE = f"echo $$ > $0/cgroup.procs; ip addr add {POD}/32 dev lo; ip link set lo up; echo ready; read _"


@contextmanager
def pod(cgroup: Path) -> Iterator[int]:
    """A process of a pod in a namespace of its own; its number."""
    command = ["unshare", "--net", "sh", "-c", MAKE, str(cgroup)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        assert process.stdin is not None
        process.stdin.close()


def inode(pid: int) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def test_a_namespace_with_the_inode_of_one_that_has_gone_is_another_caller(world: World, datapath: Datapath) -> None:
    known = datapath.callers()
    for _ in range(15):  # the inode may be taken by a namespace of a test beside this one: then by way of another
        with pod(world.cgroup) as pid:
            first = inode(pid)
            assert known.renew({POD: None}) == 1
        for _ in range(20):  # it is free once the kernel has cleaned up
            with pod(world.cgroup) as pid:
                if inode(pid) == first:
                    known.renew({POD: None})
                    assert [row["cookie"] for row in view.dump(datapath.maps)["callers"]] == [callers.cookie(pid)]
                    return
    pytest.fail("the kernel did not reuse the inode: this test has shown nothing")


def test_a_namespace_that_is_known_is_not_entered_again(
    world: World, datapath: Datapath, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = datapath.callers()
    with pod(world.cgroup):
        assert known.renew({POD: None}) == 1
        monkeypatch.setattr(callers, "cookie", lambda _: pytest.fail("it was entered"))
        assert known.renew({POD: None}) == 1


def test_a_pod_that_ends_while_pods_are_looked_through_is_left_out_and_the_others_are_found(tmp_path: Path) -> None:
    """Its cgroup is listed, and gone before it is entered: that ended the agent."""
    for name in ("a", "b", "c"):
        group = tmp_path / name
        group.mkdir()
        (group / "cgroup.procs").write_text(f"{NO_PID}\n{os.getpid()}\n")
    found = processes_below(tmp_path)
    seen = [next(found).pid]
    _, gone, _ = tmp_path.iterdir()  # in the order in which they are looked through
    (gone / "cgroup.procs").unlink()
    gone.rmdir()
    seen += [process.pid for process in found]
    assert seen == [os.getpid()] * 2


async def test_without_cookies_redirects_that_leave_pods_out_fail_by_a_sentence_and_the_rest_goes_on(
    world: World, datapath: Datapath, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before 5.14: the kernel refuses the option, as it refuses one that never was."""
    monkeypatch.setattr(callers, "SO_NETNS_COOKIE", 9999)
    known = datapath.callers()
    target = CallersFirst(datapath.target(), known)
    hashing = plan("hash", "10.96.7.8", group(BACKENDS[0]), consistent=True)
    leaving = plan("skip", "10.96.7.7", group(BACKENDS[1]), skip=("10.7.0.1",))
    with pod(world.cgroup):
        known.renew({POD: None})
        failures = await target.update([hashing, leaving])
    assert list(failures) == [leaving.key]
    assert "no SO_NETNS_COOKIE" in failures[leaving.key]
    assert "need Linux 5.14" in repr(known)
    assert world.caller.tcp("10.96.7.8")["answer"].startswith(BACKENDS[0])
    assert done(target.delete([leaving])) == {}


def test_what_is_asked_as_a_pod_passes_its_links_and_its_hooks(world: World) -> None:
    """Where names are redirected, a question from its network namespace alone would be the cluster DNS'."""

    def where() -> tuple[str, int]:
        return Path("/proc/self/cgroup").read_text(), Path("/proc/thread-self/ns/net").stat().st_ino

    before = where()
    with pod(world.cgroup) as pid:
        assert inside_pod(world.cgroup, pid, where) == (Path(f"/proc/{pid}/cgroup").read_text(), inode(pid))
        with pytest.raises(FileNotFoundError):
            inside_pod(world.cgroup, pid, Path("/nowhere").stat)
    assert where() == before
