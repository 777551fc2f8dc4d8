"""A small world for the datapath's tests: two namespaces joined by a wire, a cgroup for the caller, a bpffs.

Everything carries this process's number in its name and goes with ``close``.
"""

from __future__ import annotations

import fcntl
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import pytest
from labs.lab_running import until
from machine.namespaces import ip, switch_on

from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import Datapath, PlanTarget, cgroup_root, remove
from isthmus.datapath.core import attach, libbpf
from isthmus.datapath.core.ring import RingBuffer
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.manifest import MAPS
from isthmus.datapath.names.settings import host_cookie
from isthmus.datapath.services.codecs import CALL_PLACE
from isthmus.datapath.services.restore import restore
from isthmus.model.balancing import Ejection, FrontendKey, Group, Plan, PlanKey, Scope, Target
from isthmus.model.hosts import joined
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Protocol
from isthmus_lab import cgroups

HERE = Path(__file__).parent
POD = "10.7.0.1"
CLUSTER_DNS = "10.96.0.10"
SERVER_DNS = "10.8.0.53"
BACKEND6 = "[fd00:8::1]:8080"
CLUSTER_DNS6, SERVER_DNS6 = "fd00:96::10", "fd00:8::53"
SERVERS_DNS = (SERVER_DNS, SERVER_DNS6)
BACKENDS = tuple(f"10.8.0.{n}:8080" for n in range(1, 9))


needs_cookies = pytest.mark.skipif(not host_cookie(), reason="before Linux 5.14 a process cannot read its cookie")
"""Of tests in which a pod is known by the cookie of its network namespace."""
needs_multipath = pytest.mark.skipif(
    not Path("/proc/sys/net/mptcp").exists(), reason="this kernel has no Multipath TCP"
)


@cache
def refused() -> dict[str, str]:
    """How a caller's call ends that has no backend: before 5.18 a program cannot choose the error."""
    [has_set_retval, _] = attach.CONSTANTS.unpack(attach.constants())
    return {"error": "ECONNREFUSED" if has_set_retval else "EPERM"}


_numbers = itertools.count()


def target(endpoint: str, *, protocol: Protocol = "TCP", cluster: str = "c1") -> Target:
    """A target from ``address:port``."""
    host, port = endpoint.rsplit(":", 1)
    return Target(host.strip("[]"), int(port), protocol, ClusterName(cluster))


def plan(
    name: str,
    vip: str,
    *groups: Group,
    protocol: Protocol = "TCP",
    affinity: int = 0,
    scope: Scope = Scope.EXTERNAL,
    consistent: bool = False,
    skip: tuple[str, ...] = (),
    ejection: Ejection | None = None,
) -> Plan:
    """A plan with one frontend, at port 80."""
    return Plan(
        key=PlanKey(ServiceName(f"demo/{name}"), 80, protocol, "IPv6" if ":" in vip else "IPv4", scope),
        frontends=(FrontendKey(vip, 80, protocol, scope),),
        groups=groups,
        affinity="ClientIP" if affinity else "None",
        affinity_timeout=affinity,
        consistent=consistent,
        skip=skip,
        ejection=ejection,
    )


def group(*endpoints: str, protocol: Protocol = "TCP", tier: int = 0, weight: int = 1, cluster: str = "c1") -> Group:
    """A group of targets."""
    targets = tuple(sorted(target(e, protocol=protocol, cluster=cluster) for e in endpoints))
    return Group(targets, tier, weight)


class Caller:
    """A process in a cgroup and the client's namespace, that calls on command."""

    def __init__(self, namespace: str, cgroup: Path) -> None:
        self._process = started_in(namespace, cgroup, "bpf_caller.py")

    def calls(self, call: str, host: str, port: int, *, times: int = 1, **more: Any) -> list[dict[str, str]]:
        """Make a call a number of times; what became of each."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"call": call, "host": host, "port": port, "times": times, **more}) + "\n")
        process.stdin.flush()
        return [json.loads(process.stdout.readline()) for _ in range(times)]

    def tcp(self, host: str, port: int = 80) -> dict[str, str]:
        """One TCP call."""
        return self.calls("tcp", host, port)[0]

    def udp(self, host: str, port: int = 80, **more: Any) -> dict[str, str]:
        """One question by UDP."""
        return self.calls("udp", host, port, **more)[0]

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class Load:
    """A process in a cgroup and a namespace that makes many calls at a time."""

    def __init__(self, namespace: str, cgroup: Path) -> None:
        self._process = started_in(namespace, cgroup, "bpf_load.py")

    def start(self, host: str, **asked: Any) -> None:
        """Begin; ``calls``, ``at_once``, ``timeout``, ``bytes``, ``pause``."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"host": host, "port": 80, **asked}) + "\n")
        self._process.stdin.flush()

    def result(self) -> Loaded:
        """Wait for the end; what became of the calls."""
        assert self._process.stdout is not None
        return Loaded(**json.loads(self._process.stdout.readline()))

    def run(self, host: str, **asked: Any) -> Loaded:
        """All of it."""
        self.start(host, **asked)
        return self.result()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()


class Loaded(NamedTuple):
    """How calls ended, by outcome; who answered; ms until each was connected, sorted; outcome and ms of those that
    failed, in order."""

    ended: dict[str, int]
    answered: dict[str, int]
    times: list[float]
    failures: list[tuple[str, float]]

    @property
    def failed(self) -> int:
        """How many did not end well."""
        return sum(count for how, count in self.ended.items() if how != "ok")


def started_in(namespace: str, cgroup: Path, program: str) -> subprocess.Popen[str]:
    """Start a program, and wait until `ip netns exec` has entered the network namespace. It is in the cgroup, too."""
    process = subprocess.Popen(
        ["ip", "netns", "exec", namespace, sys.executable, str(HERE / program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: _join(cgroup),
    )
    wanted = Path("/run/netns", namespace).stat().st_ino
    until(lambda: Path(f"/proc/{process.pid}/ns/net").stat().st_ino == wanted, what=f"{program} is in {namespace}")
    return process


def _join(cgroup: Path) -> None:
    (cgroup / "cgroup.procs").write_text(str(os.getpid()))


PREFIX: Final = "isthmus-test-"


def leftovers() -> dict[str, set[str]]:
    """Cgroups, mounts and namespaces of worlds, by the world's name."""
    root = cgroup_root()
    assert root is not None
    found: dict[str, set[str]] = {}
    for group in root.glob(f"{PREFIX}*"):
        found.setdefault(group.name, set()).add(str(group))
    for line in Path("/proc/mounts").read_text().splitlines():
        source, where, *_ = line.split()
        if source.startswith(PREFIX):
            found.setdefault(source, set()).add(where)
    namespaces = Path("/run/netns")
    for namespace in namespaces.glob(f"{PREFIX}*") if namespaces.exists() else ():
        found.setdefault(namespace.name[:-2], set()).add(str(namespace))
    return found


def sweep() -> None:
    """Take away the worlds of test processes that were killed; one process at a time does so."""
    with Path(tempfile.gettempdir(), f"{PREFIX}sweep.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for name in leftovers():
            if not Path(f"/proc/{name.removeprefix(PREFIX).partition('-')[0]}").exists():
                _take_away(name)


def processes(namespace: str) -> list[int]:
    """Which processes run in a network namespace, by its name."""
    listed = subprocess.run(["ip", "netns", "pids", namespace], check=True, capture_output=True, text=True)
    return [int(each) for each in listed.stdout.split()]


def _take_away(name: str) -> None:
    for where in sorted(leftovers().get(name, ()), reverse=True):
        path = Path(where)
        if path.parent == Path("/run/netns"):
            for pid in processes(path.name):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            ip("netns", "del", path.name)
        elif path.parent == cgroup_root():
            cgroups.kill(path)
            until(partial(cgroups.remove, path), what=f"{path} is removed")
        else:
            subprocess.run(["umount", where], check=True)


class World:
    """Namespaces, servers, cgroups and a bpffs; a datapath is opened on it as often as a test likes."""

    dns = DnsSection(cluster_dns=(CLUSTER_DNS, CLUSTER_DNS6), listen=tuple(joined(each, 53) for each in SERVERS_DNS))

    def __init__(self, directory: Path) -> None:
        self.name = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self.client, self.server, self.far = (f"{self.name}-{which}" for which in "abc")
        root = cgroup_root()
        assert root is not None
        self.cgroup = root / self.name
        self.bpffs = directory / "bpf"
        self.pin = str(self.bpffs / "pin")
        self._shared: Datapath | None = None
        self._shared_in_use = False
        self._callers: list[Caller | Load] = []
        self._servers: list[subprocess.Popen[str]] = []
        self._wire()
        self.cgroup.mkdir()
        self.bpffs.mkdir()
        subprocess.run(["mount", "-t", "bpf", self.name, str(self.bpffs)], check=True)
        servers = [f"{CLUSTER_DNS}:80", *(joined(each, 53) for each in (*SERVERS_DNS, CLUSTER_DNS, CLUSTER_DNS6))]
        self._echo = self._serve([*BACKENDS, BACKEND6, *servers])
        self.caller = self.call_from(self.cgroup)

    def _wire(self) -> None:
        ip("netns", "add", self.client)
        ip("netns", "add", self.server)
        wires = ("name", "eth0", "netns", self.client, "type", "veth", "peer", "name", "eth0", "netns", self.server)
        ip("link", "add", *wires)
        ends = ((self.client, f"{POD}/24", "fd00:7::1/64"), (self.server, "10.7.0.2/24", "fd00:7::2/64"))
        for namespace, address, address6 in ends:
            ip("-n", namespace, "link", "set", "lo", "up")
            ip("-n", namespace, "addr", "add", address, "dev", "eth0")
            ip("-n", namespace, "link", "set", "eth0", "up")
            ip("-n", namespace, "addr", "add", address6, "dev", "eth0", "nodad")
        ip("-n", self.client, "route", "add", "10.0.0.0/8", "via", "10.7.0.2")
        ip("-n", self.client, "route", "add", "fd00::/16", "via", "fd00:7::2")
        for address in ("fd00:8::1", CLUSTER_DNS6, SERVER_DNS6):
            ip("-n", self.server, "addr", "add", f"{address}/128", "dev", "lo", "nodad")
        ip("-n", self.server, "addr", "add", "10.8.0.0/24", "dev", "lo")
        ip("-n", self.server, "route", "add", "blackhole", "10.9.0.0/24")
        ip("-n", self.server, "route", "add", "blackhole", "fd00:9::/64")
        for address in (*(e.split(":")[0] for e in BACKENDS), SERVER_DNS, CLUSTER_DNS):
            ip("-n", self.server, "addr", "add", f"{address}/32", "dev", "lo")

    def pod(self, number: int) -> str:
        """The network namespace of one more pod of the node, on a link of its own (``p1``, …)."""
        pod, link = f"{self.name}-{chr(ord('d') + number)}", f"p{number}"
        ip("netns", "add", pod)
        ip("link", "add", "name", "eth0", "netns", pod, "type", "veth", "peer", "name", link, "netns", self.server)
        ends = (
            (pod, "eth0", f"10.7.{number}.1/24", f"fd00:7:{number}::1/64"),
            (self.server, link, f"10.7.{number}.2/24", f"fd00:7:{number}::2/64"),
        )
        ip("-n", pod, "link", "set", "lo", "up")
        for namespace, device, address, address6 in ends:
            ip("-n", namespace, "addr", "add", address, "dev", device)
            ip("-n", namespace, "link", "set", device, "up")
            ip("-n", namespace, "addr", "add", address6, "dev", device, "nodad")
        ip("-n", pod, "route", "add", "default", "via", f"10.7.{number}.2")
        ip("-n", pod, "route", "add", "default", "via", f"fd00:7:{number}::2")
        return pod

    def _serve(self, endpoints: list[str]) -> subprocess.Popen[str]:
        command = ["ip", "netns", "exec", self.server, sys.executable, str(HERE / "bpf_echo.py"), *endpoints]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    def call_from(self, cgroup: Path, *, namespace: str = "") -> Caller:
        """A caller in a cgroup, which is made where it is missing, and a namespace; it ends with the world."""
        cgroup.mkdir(parents=True, exist_ok=True)
        made = Caller(namespace or self.client, cgroup)
        self._callers.append(made)
        return made

    def load_from(self, cgroup: Path, *, namespace: str = "") -> Load:
        """A process that makes many calls; it ends with the world."""
        cgroup.mkdir(parents=True, exist_ok=True)
        made = Load(namespace or self.client, cgroup)
        self._callers.append(made)
        return made

    def address(self, verb: str, *hosts: str, namespace: str = "") -> None:
        """``add`` or ``del`` addresses of the server: one it has not got answers nothing."""
        for host in hosts:
            dad = ["nodad"] if ":" in host and verb == "add" else []
            ip("-n", namespace or self.server, "addr", verb, f"{host}/{128 if ':' in host else 32}", "dev", "lo", *dad)

    def slow_servers(self, seconds: float, *endpoints: str) -> None:
        """Servers behind a wire that holds each packet back; they end with the world."""
        far = self.far
        ip("netns", "add", far)
        ip("-n", far, "link", "set", "lo", "up")
        command = [sys.executable, str(HERE / "bpf_delay.py"), self.server, far, str(seconds)]
        self._started(command)
        for namespace in (self.server, far):
            ip("-n", namespace, "link", "set", "slow", "up")
        hosts = [endpoint.rpartition(":")[0].strip("[]") for endpoint in endpoints]
        for host in hosts:
            self.address("add", host, namespace=far)
            ip("-n", self.server, "route", "add", host, "dev", "slow")
        for net in ("10.7.0.0/16", "fd00:7::/32"):
            ip("-n", far, "route", "add", net, "dev", "slow")
        switch_on(self.server, "net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding")
        self._started(["ip", "netns", "exec", far, sys.executable, str(HERE / "bpf_serve.py"), *endpoints])

    def _started(self, command: list[str]) -> subprocess.Popen[str]:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        self._servers.append(process)
        return process

    def listen_anywhere(self) -> None:
        """Let servers listen on IPv4 addresses that the server has not got yet."""
        switch_on(self.server, "net/ipv4/ip_nonlocal_bind")

    def serve(self, *endpoints: str, namespace: str = "") -> subprocess.Popen[str]:
        """A server for load on these endpoints, whose addresses are there; it ends with the world."""
        where = ["ip", "netns", "exec", namespace or self.server]
        command = [*where, sys.executable, str(HERE / "bpf_serve.py"), *endpoints]
        return self._started(command)

    def echo(self, *endpoints: str, namespace: str = "") -> None:
        """More servers of TCP and UDP that answer with their names; they end with the world."""
        where = ["ip", "netns", "exec", namespace or self.server]
        self._started([*where, sys.executable, str(HERE / "bpf_echo.py"), *endpoints])

    def interface(self, device: str) -> int:
        """Index of an interface of the node."""
        [link] = json.loads(self._node("ip", "-j", "link", "show", device))
        index: int = link["ifindex"]
        return index

    @contextmanager
    def on_link(self, datapath: Datapath, device: str = "eth0") -> Iterator[None]:
        """Programs on the node's end of a pod's link, by clsact; the node is the server's namespace."""
        [link] = json.loads(self._node("ip", "-j", "link", "show", device))
        numbers = link["ifindex"], link["link_netnsid"]
        datapath.maps.put("pod_links", [(ID.pack(numbers[0]), ID.pack(numbers[1]))])
        self._node("tc", "qdisc", "add", "dev", device, "clsact")
        for name, direction in (("from_pod", "ingress"), ("to_pod", "egress")):
            pin = self.bpffs / name
            libbpf.pin(datapath.program_fd(name), pin)
            self._node("tc", "filter", "add", "dev", device, direction, "bpf", "da", "pinned", str(pin))
            pin.unlink()
        try:
            yield
        finally:
            self._node("tc", "qdisc", "del", "dev", device, "clsact")

    @contextmanager
    def nothing_leaves_the_pod(self) -> Iterator[None]:
        """A queue on the pod's interface that has room for no packet."""
        tc = ["ip", "netns", "exec", self.client, "tc", "qdisc"]
        full = ["tbf", "rate", "1kbit", "burst", "10", "limit", "1"]
        subprocess.run([*tc, "add", "dev", "eth0", "root", *full], check=True, capture_output=True)
        try:
            yield
        finally:
            subprocess.run([*tc, "del", "dev", "eth0", "root"], check=True, capture_output=True)

    @contextmanager
    def forging(self, kind: str, backend: str, port: int) -> Iterator[None]:
        """Packets to this port of the pod that look like a backend's, as forge.py makes them."""
        host, backend_port = backend.split(":")
        command = [sys.executable, str(HERE / "forge.py"), kind, host, backend_port, POD, str(port)]
        forger = subprocess.Popen(["ip", "netns", "exec", self.server, *command], stdout=subprocess.PIPE, text=True)
        try:
            assert forger.stdout is not None
            assert forger.stdout.readline() == "ready\n"
            yield
        finally:
            forger.kill()
            forger.communicate(timeout=60)

    def sockets(self, *arguments: str, namespace: str = "") -> list[str]:
        """The server's TCP sockets as ss prints them, a line each."""
        command = ["ip", "netns", "exec", namespace or self.server, "ss", "-Htn", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()

    def _node(self, *command: str) -> str:
        return subprocess.run(
            ["ip", "netns", "exec", self.server, *command], check=True, capture_output=True, text=True
        ).stdout

    @contextmanager
    def shared(self) -> Iterator[Datapath]:
        """The datapath that tests of a module share, over empty maps: the verifier takes longer than most tests do."""
        if self._shared is None:
            self._shared = self.open()
        else:
            _empty(self._shared)
        self._shared_in_use = True
        try:
            yield self._shared
        finally:
            self._shared_in_use = False

    def _close_shared(self) -> None:
        if self._shared:
            self._shared.close()
            remove(self.pin)
            self._shared = None

    def open(self, **more: Any) -> Datapath:
        """The datapath of a process that starts now."""
        assert not self._shared_in_use, "a test that opens another datapath wants the marker own_datapath"
        self._close_shared()
        section: dict[str, Any] = {"cgroup": str(self.cgroup), "pin": self.pin, "max_entries": 1024, "grace": 0.0}
        return Datapath.open(DatapathSection(**(section | more)), self.dns)

    def close(self) -> None:
        """Away with all of it."""
        for caller in self._callers:
            caller.close()
        for server in (self._echo, *self._servers):
            server.kill()
            server.wait(60)
            assert server.stdout is not None
            server.stdout.close()
        self._close_shared()
        remove(self.pin)
        _take_away(self.name)


def places(datapath: Datapath) -> set[int]:
    """Cookies of the sockets that have a place in ``call_places``."""
    return {CALL_PLACE.unpack(value)[0] for _, value in datapath.maps.items("call_places")} - {0}


@contextmanager
def no_place_is_free(datapath: Datapath) -> Iterator[None]:
    """All that are free are taken by a socket that there is not."""
    found = list(datapath.maps.items("call_places"))
    free = [(key, bytes(len(value))) for key, value in found if not CALL_PLACE.unpack(value)[0]]
    taken = CALL_PLACE.pack(NO_SOCKET, NO_SOCKET, bytes(CALL_PLACE.size - 16))
    assert datapath.maps.put("call_places", [(key, taken) for key, _ in free]) == {}
    try:
        yield
    finally:
        assert datapath.maps.put("call_places", free) == {}


NO_SOCKET: Final = 1 << 62
"""A cookie that counting up does not come to."""
HASHES, ARRAY, RING_BUFFER = (1, 9, 11), 2, 27
"""Types of maps in linux/bpf.h. What a map of another type holds counts, or ends with its socket."""


def _empty(datapath: Datapath) -> None:
    """Delete every entry and event, and the state that stands for them; ``config`` and what is of sockets stay."""
    for name in MAPS.keys() - {"config", "call_places"}:
        fd = datapath.maps.fd(name)
        kind = map_type(fd)
        if kind in HASHES:
            assert datapath.maps.drop(name, [key for key, _ in libbpf.items(fd)]) == {}
        elif kind == ARRAY:
            none = bytes(libbpf.value_size(fd))
            assert datapath.maps.put(name, [(key, none) for key, _ in libbpf.items(fd, empty=none)]) == {}
        elif kind == RING_BUFFER:
            events = RingBuffer(fd, lambda _: None)
            events.consume()
            events.close()
    ejection = datapath.state.ejection
    datapath.state = restore(datapath.maps)
    datapath.state.ejection = ejection


def map_type(fd: int) -> int:
    """The number of a map's type in linux/bpf.h."""
    lines = Path(f"/proc/self/fdinfo/{fd}").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("map_type:"))


T = TypeVar("T")


def done(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine that never waits gives."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    raise AssertionError("it waited")


def programmed(to: PlanTarget, *rows: Plan) -> None:
    """Make the maps hold exactly these rows; any failure fails the test."""
    assert done(to.update(rows)) == {}
    done(to.prune(rows))
    to.sweep_due()
    to.sweep_due()
