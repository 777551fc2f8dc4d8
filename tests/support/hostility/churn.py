"""Hostile objects and records beside calls of other namespaces: none may fail (``make churn``).

A lab of two flat clusters and an island with its gateway. The tenant ``mallory`` creates, changes and deletes objects
in its namespace of each, and the etcd of c2 gets records of that namespace as an operator that lies would write them.
Meanwhile c1's client in ``demo`` calls an import by name, another one by a route through its node's Envoy, and a
service of the island. Every failed call is printed with the writes around it. Exit code 0 if no call failed, no process
restarted and no fault is a bug.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

from hostility.hostile_tenant import TENANT, Target, Tenant, Write, line
from labs.lab_running import Running, lab_name, until

from isthmus.admin.query import QueryError, Socket
from isthmus.config import KubernetesSection
from isthmus.kube.access import access
from isthmus.kube.errors import Conflict, KubeError, NotFound
from isthmus.kube.transport import Transport
from isthmus.reflector import Transient
from isthmus_lab import cgroups, pod_exec, removal
from isthmus_lab.layout import Lab
from isthmus_lab.own_programs import IN_CONTAINER
from isthmus_lab.supervisor import etcd_access

HERE: Final = Path(__file__).parent
MANIFESTS: Final = HERE.parents[2] / "lab" / "tests" / "manifests" / "churn"
DOMAIN: Final = "demo.svc.clusterset.local"
WAYS: Final = (f"name=echo.{DOMAIN}:80=c1,c2", f"route=routed.{DOMAIN}.:80=c1,c2", f"island=away.{DOMAIN}.:80=c3")
LIAR: Final = "c2"
RECORDS: Final = 0.25
"""Part of the writes that are records of the lying cluster."""
BEFORE: Final = 15.0
"""Seconds before a failed call whose writes are printed with it: a change takes effect later on a busy machine."""
PREFERENCE: Final = "-10"
"""Nice value of the lab's sessions."""
REPORT_EVERY: Final = 60.0
NODE: Final = "172.30.1.11"
"""The caller that a pod sees of a call by c1's Envoy."""


def log(text: str) -> None:
    """Print a line with the time."""
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextmanager
def clusterset() -> Iterator[Running]:
    """The lab, once all three ways answer."""
    running = Running(Lab(lab_name("y"), 3, 1, ("flat", "flat", "island")))
    try:
        running.cli("up", "--clusters", "3", "--network", "c3=island", f"--from={MANIFESTS}")
        for name in ("echo", "routed", "away"):
            until(partial(answer, running, name), what=f"{name} answers")
        until(lambda: answer(running, "routed")["caller"] == NODE, what="the route is in effect")
        yield running
    finally:
        removal.remove(running.lab)


def answer(running: Running, name: str) -> dict[str, Any]:
    """Answer of a pod to a call by c1's client."""
    answered: dict[str, Any] = json.loads(running.exec("demo/client", f"curl -sSf --max-time 30 {name}.{DOMAIN}"))
    return answered


def favour(running: Running) -> None:
    """Prefer the lab to other work of this machine.

    Linux gives each session an equal part of a busy machine (sched(7), autogroups), so one with forty processes starves
    beside twenty sessions of one, and an Envoy that does not run for seconds is left by its agent as one that hangs.
    """
    for directory, _, _ in os.walk(cgroups.root() / running.lab.prefix):
        for pid in cgroups.processes(Path(directory)):
            with suppress(OSError):
                Path(f"/proc/{pid}/autogroup").write_text(PREFERENCE)


def targets(running: Running) -> dict[str, list[Target]]:
    """Services that the tenant aims at, in each cluster, with every address that it could name."""
    aimed: dict[str, list[Target]] = {}
    for cluster in running.lab.clusters:
        text = running.kubectl(
            "get", "services,serviceimports,endpointslices,nodes", "-A", "-o", "json", cluster=cluster.name
        )
        addresses = sorted({*re.findall(r'"((?:\d+\.){3}\d+)"', text), cluster.address, "127.0.0.1", "169.254.7.1"})
        aimed[cluster.name] = [
            Target(name, namespace, tuple(addresses))
            for name, namespace in (
                *((name, "demo") for name in ("echo", "routed", "away")),
                ("kubernetes", "default"),
                ("kube-dns", "kube-system"),
                ("echo", TENANT),
            )
        ]
    return aimed


class Calls:
    """The calls of c1's client: what its program prints."""

    def __init__(self, running: Running, rate: float) -> None:
        program = (HERE / "churn_calls.py").read_text()
        command = [*IN_CONTAINER.command("")[:-1], "-c", program, str(rate), *WAYS]
        pod = pod_exec.find(running.lab.clusters[0], "demo/client")
        self._process = pod_exec.run(pod, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.totals: dict[str, Any] = {}
        self.failed = 0
        self.slow = 0

    async def follow(self, writes: deque[tuple[float, Write, str]]) -> None:
        """Print each failed call, until the program ends."""
        assert self._process.stdout is not None
        while text := await asyncio.to_thread(self._process.stdout.readline):
            event = json.loads(text)
            if "totals" in event:
                self.totals = event
                continue
            moment_of_call = event["at"]
            clock = time.strftime("%H:%M:%S", time.localtime(moment_of_call))
            if "slow" in event:
                self.slow += 1
                log(f"SLOW {event['slow']}: a call at {clock} took {event['took']} s")
                continue
            self.failed += 1
            log(f"FAILED {event['failed']}: a call at {clock}, {event['phase']}: {event['error']}, {event['took']} s")
            for moment, write, outcome in [*writes]:
                if moment_of_call - BEFORE <= moment <= moment_of_call + event["took"]:
                    log(f"    {moment - moment_of_call:+.1f} s {outcome}: {write}")

    def end(self) -> None:
        """Make no more calls."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()


class Mallory:
    """Writes of the tenant, at a rate, and what came of them."""

    def __init__(self, running: Running, seed: int, rate: float) -> None:
        self._tenant = Tenant(seed, targets(running), LIAR)
        self._random = random.Random(seed)
        self._lab, self._rate = running.lab, rate
        self._existing: dict[tuple[str, str, str], None] = {}
        self.outcomes: dict[str, Counter[str]] = {}
        self.reasons: Counter[str] = Counter()
        self.writes: deque[tuple[float, Write, str]] = deque(maxlen=1000)

    async def run(self, until_then: float) -> None:
        """Write until a moment of the monotonic clock."""
        etcd = await self._etcd()
        clusters = [cluster.name for cluster in self._lab.clusters]
        sections = {name: KubernetesSection(kubeconfig=str(self._lab.kubeconfig), context=name) for name in clusters}
        transports = {name: Transport(access(section)) for name, section in sections.items()}
        try:
            while (now := time.monotonic()) < until_then:
                if self._random.random() < RECORDS:
                    write = self._tenant.record()
                    outcome = await self._record(etcd, write)
                else:
                    write = self._tenant.write(self._existing)
                    outcome = await self._object(transports[write.cluster], write)
                self.writes.append((time.time(), write, outcome))
                self.outcomes.setdefault(write.kind, Counter())[outcome.partition(":")[0]] += 1
                if ":" in outcome:
                    self.reasons[outcome[:160]] += 1
                pause = self._random.expovariate(self._rate)
                await asyncio.sleep(max(0.0, now + pause - time.monotonic()))
        finally:
            for transport in transports.values():
                await transport.close()
            etcd.kill()
            await etcd.wait()

    async def _etcd(self) -> asyncio.subprocess.Process:
        """A client of the lying cluster's etcd, with the rights of its operator."""
        cluster = self._lab.cluster(LIAR)
        assert cluster is not None
        section = etcd_access.section(cluster)
        asked = {
            "endpoint": section.endpoints[0],
            "tls": [section.ca_file, section.cert_file, section.key_file],
            "user": [section.username, Path(section.password_file).read_text().strip()],
        }
        script = [sys.executable, str(HERE / "churn_etcd.py"), json.dumps(asked)]
        return await asyncio.create_subprocess_exec(
            *("ip", "netns", "exec", cluster.control_plane, *script), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    async def _record(self, etcd: asyncio.subprocess.Process, write: Write) -> str:
        assert etcd.stdin is not None
        assert etcd.stdout is not None
        etcd.stdin.write(json.dumps(line(write)).encode() + b"\n")
        return (await etcd.stdout.readline()).decode().strip() or "ended: no answer"

    async def _object(self, transport: Transport, write: Write) -> str:
        """Create, replace or delete an object; a refusal is an outcome."""
        key = write.cluster, write.kind, write.name
        collection = write.path.rpartition("/")[0]
        try:
            if write.body is None:
                self._existing.pop(key, None)
                await transport.request("DELETE", write.path)
                return "deleted"
            try:
                await transport.request("POST", collection, body=write.body)
            except Conflict:
                await transport.request("PUT", write.path, body=write.body)
        except NotFound as error:
            return "gone" if write.body is None else f"refused: {error}"
        except (KubeError, Transient) as error:
            return f"refused: {error}"
        self._existing[key] = None
        return "written"


class Processes:
    """The lab's programs: those that restarted, their memory, and the bugs that they report."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._first = self._programs()
        self.memory_before = self.memory()
        self.began, self._busy = time.monotonic(), self.busy()
        self.bugs: dict[tuple[str, str, str, str], str] = {}
        sockets = json.loads((running.lab.directory / "clusters.json").read_text())
        self._sockets = {
            f"{cluster}/{name}": Socket(Path(path))
            for cluster, each in sockets.items()
            for name, path in each["sockets"].items()
        }

    def _programs(self) -> dict[str, dict[str, Any]]:
        return {each["name"]: each for each in self._running.status()["programs"]}

    def restarted(self) -> dict[str, str]:
        """Programs with another process than at the start, and why."""
        programs = self._programs()
        return {
            name: str(programs[name]["failure"] or f"pid {before['pid']} became {programs[name]['pid']}")
            for name, before in self._first.items()
            if (programs[name]["pid"], programs[name]["restarts"]) != (before["pid"], before["restarts"])
        }

    def memory(self) -> dict[str, int]:
        """Resident megabytes of Isthmus' processes."""
        megabytes = {}
        for name, program in self._programs().items():
            with suppress(OSError, TypeError):
                status = Path(f"/proc/{program['pid']}/status").read_text()
                megabytes[name] = int(status.partition("VmRSS:")[2].split()[0]) // 1024
        return megabytes

    def collect_bugs(self) -> None:
        """Print each bug that is new in the faults of a process."""
        for process, socket in self._sockets.items():
            try:
                rows = socket.table("faults").rows
            except QueryError as error:
                log(f"UNASKED {process}: {error}")
                continue
            for row in rows:
                key = process, row["part"], row["kind"], row["name"]
                if row["cause"] == "bug" and key not in self.bugs:
                    self.bugs[key] = row["error"]
                    log(f"BUG {process}: {json.dumps(row)}")

    def tracebacks(self) -> list[str]:
        """Lines of logs after which a traceback was printed."""
        return [
            f"{path.stem}: {text.strip()[:300]}"
            for path in sorted(self._running.lab.logs.glob("*.log"))
            for text in path.read_text(errors="replace").splitlines()
            if "Traceback" in text
        ]

    def faults(self) -> Counter[str]:
        """Rows of faults by process, cause and part."""
        counts: Counter[str] = Counter()
        for process, socket in self._sockets.items():
            with suppress(QueryError):
                for row in socket.table("faults").rows:
                    counts[f"{process} {row['cause']} {row['part']} {row['kind']}"] += row["count"]
        return counts

    def load(self) -> float:
        """Percent of a core that all of it has taken since the start."""
        return 100 * (self.busy() - self._busy) / (time.monotonic() - self.began)

    def busy(self) -> float:
        """Seconds of CPU time that the lab and this process have taken."""
        used = (cgroups.root() / self._running.lab.prefix / "cpu.stat").read_text()
        return int(used.partition("usage_usec ")[2].split()[0]) / 1e6 + sum(os.times()[:4])


def report(calls: Calls, mallory: Mallory, processes: Processes) -> None:
    """A line about now."""
    totals = calls.totals.get("totals", {})
    made, slowest = sum(totals.get("made", {}).values()), max([0.0, *totals.get("slowest", {}).values()])
    results = sum(mallory.outcomes.values(), Counter())
    memory = {name: size for name, size in processes.memory().items() if name.endswith(("agent", "operator"))}
    log(
        f"{made} calls, {calls.failed} failed, the slowest {slowest} s; {dict(results)}; "
        f"{len(processes.restarted())} restarted, {len(processes.bugs)} bugs; "
        f"{processes.load():.0f} % of a core; MB {memory}"
    )


async def churn(calls: Calls, mallory: Mallory, processes: Processes, minutes: float) -> int:
    """Write and call for so long; the exit code."""
    following = asyncio.create_task(calls.follow(mallory.writes))
    writing = asyncio.create_task(mallory.run(time.monotonic() + 60 * minutes))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, writing.cancel)
    while not writing.done():
        await asyncio.wait([writing], timeout=REPORT_EVERY)
        await asyncio.to_thread(processes.collect_bugs)
        await asyncio.to_thread(report, calls, mallory, processes)
    calls.end()
    await following
    broken = not writing.cancelled() and writing.exception()
    restarted = await asyncio.to_thread(processes.restarted)
    after, before = await asyncio.to_thread(processes.memory), processes.memory_before
    totals = calls.totals["totals"]
    print(json.dumps({"totals": totals, "late": calls.totals["late"]}, indent=2))
    print("writes:", json.dumps(mallory.outcomes, indent=2))
    print("refusals:", *(f"  {count} {refusal}" for refusal, count in mallory.reasons.most_common(25)), sep="\n")
    print("memory, MB:", *(f"  {name}: {before[name]} → {after.get(name)}" for name in sorted(before)), sep="\n")
    print("logs with tracebacks:", *processes.tracebacks()[:50], sep="\n  ")
    faults = await asyncio.to_thread(processes.faults)
    print("faults:", *(f"  {count} {what}" for what, count in sorted(faults.items())), sep="\n")
    print("restarted:", restarted or "none")
    print("bugs:", processes.bugs or "none")
    around = totals["answered"]["route"]
    past = sum(count for peer, count in around.items() if not peer.endswith(f" by {NODE}"))
    print(f"calls of the route that passed Envoy by: {past}")
    print(f"slowest call: {max(totals['slowest'].values())} s; calls above 2 s: {calls.slow}; failed: {calls.failed}")
    if broken:
        print(f"ended by {broken!r}")
    return int(bool(calls.failed or restarted or processes.bugs or broken or not sum(totals["made"].values())))


def main() -> int:
    """1 unless no call failed, nothing restarted and no fault is a bug."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=50.0, help="calls per second")
    parser.add_argument("--writes", type=float, default=6.0, help="hostile writes per second, on average")
    options = parser.parse_args()
    log(f"pid {os.getpid()}, seed {options.seed}, {options.minutes:g} minutes")
    with clusterset() as running:
        favour(running)
        parts = Calls(running, options.rate), Mallory(running, options.seed, options.writes), Processes(running)
        favour(running)  # the caller, too
        return asyncio.run(churn(*parts, options.minutes))


if __name__ == "__main__":
    sys.exit(main())
