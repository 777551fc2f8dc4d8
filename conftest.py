"""What this machine lacks decides what is skipped; under ``ISTHMUS_NO_SKIP=1`` (as in CI) every skip is a failure.

Tests see none of the caller's environment that Isthmus or kubectl would read.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from hypothesis import settings

os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"  # else what gRPC does after a fork aborts a child of a test now and then
pytest_plugins = [
    "peers.etcd_server",
    "machine.full_disk",
    "clusters.kube_apiserver",
    "datapath_worlds.uplink_node",
    "labs.own_host",
]

NO_SKIP: Final = os.environ.get("ISTHMUS_NO_SKIP") == "1"
REWRITING: Final = [name for name in ("ISTHMUS_REWRITE", "ISTHMUS_UPDATE_EXPECTED") if os.environ.get(name) == "1"]
OURS: Final = ("ISTHMUS_NO_SKIP", "ISTHMUS_REWRITE", "ISTHMUS_UPDATE_EXPECTED", "ISTHMUS_FLOOD")
OURS_BY_PREFIX: Final = ("ISTHMUS_KILLS", "ISTHMUS_CHAOS_", "ISTHMUS_FUZZ", "ISTHMUS_SOAK_")
"""Variables that steer tests; any other ISTHMUS_ one would be the configuration of a user."""
FOREIGN: Final = ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "TERMINAL", "COLUMNS", "LINES")

SUITES_WITH_GO: Final = {"kube", "cilium", "karmada_programs", "nodes"}
"""Marks of suites that run where Go has built other projects' programs, which `make test` does without."""

LARGEST_LAB: Final = 3 << 29
"""Bytes: one of three clusters is 1.0 GB, and the test process beside it 0.2 GB."""

IMPLIED: Final = {
    "cilium": ("cilium-reader",),
    "karmada_programs": (
        "karmada-controller-manager",
        "karmada-scheduler",
        "karmada-webhook",
        "kube-apiserver",
        "kube-controller-manager",
        "kubectl",
    ),
    "kube": ("kube-apiserver", "kubectl"),
    "kubectl": ("kubectl",),
    "lab": ("curl", "kubectl"),
    "nodes": (
        "buildah",
        "conntrack",
        "containerd",
        "coredns",
        "ctr",
        "debootstrap",
        "etcd",
        "host-local",
        "iptables",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-proxy",
        "kube-scheduler",
        "kubectl",
        "kubelet",
        "musl-gcc",
        "nft",
        "runc",
    ),
    "openssl_authority": ("openssl",),
    "ui": ("chromium",),
    "upgrade": ("previous-release",),
}
"""Programs that all tests of a mark, or with a fixture, of that name start."""

settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("people", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "people")
"""CI looks at the same examples each time, so a failure is about the change; people's machines look for new ones."""


def pytest_configure() -> None:
    """The environment that tests and what they start see, and where log lines go: to stderr, as those of a process.

    On stdout they would come between the lines of a command that a test runs beside what logs.
    """
    from machine.programs import BUILT, CACHE

    from isthmus import logs

    if sys.dont_write_bytecode:  # each process would compile all it imports, and each worker rewrite every assertion
        sys.dont_write_bytecode = False
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(CACHE / "pycache")
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    structlog.configure(processors=logs.processors("text"), logger_factory=lambda *_: structlog.PrintLogger(sys.stderr))
    logs.configure = lambda **_: None  # a command's own in this process would outlast its test
    for name in list(os.environ):
        steers = name in OURS or name.startswith(OURS_BY_PREFIX)
        if (name.startswith("ISTHMUS_") and not steers) or name in FOREIGN or name.lower().endswith("_proxy"):
            del os.environ[name]
    if str(BUILT) not in os.environ["PATH"].split(os.pathsep):
        os.environ["PATH"] += f"{os.pathsep}{BUILT}"


def pytest_xdist_auto_num_workers() -> int:
    """Two for each processor, as far as there is memory for a lab of each.

    More than half of the time a test waits: for a lab to come up, a lease to end, a connect to time out.
    """
    return max(1, min(2 * len(os.sched_getaffinity(0)), _available_memory() // LARGEST_LAB))


def _available_memory() -> int:
    """Bytes that can be had without swapping (proc_meminfo(5), MemAvailable)."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024


def pytest_sessionstart() -> None:
    """A test without a loop has none: else a plugin that asks for it makes one that is never closed."""
    asyncio.set_event_loop(None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a shell, and in what we start there
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A run that writes what it should compare with has shown nothing."""
    if REWRITING and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say why a run without failures failed."""
    if REWRITING:
        terminalreporter.write_line(f"{' and '.join(REWRITING)}: expectations were written, nothing was compared")


@functools.cache
def kernel_lacks() -> list[str]:
    """What this machine lacks for BPF and labs, as sentences."""
    from isthmus.datapath import requirements

    return requirements()


def lacking(item: pytest.Item) -> list[str]:
    """What this machine lacks for a test, as sentences."""
    from machine.programs import missing

    names = {name for mark in item.iter_markers("needs") for name in mark.args}
    for mark in IMPLIED.keys() & {each.name for each in item.iter_markers()}:
        names.update(IMPLIED[mark])
    for fixture in IMPLIED.keys() & set(getattr(item, "fixturenames", ())):
        names.update(IMPLIED[fixture])
    kernel = kernel_lacks() if any(item.get_closest_marker(name) for name in ("bpf", "lab", "nodes")) else []
    return [*kernel, *missing(*sorted(names))]


def unmarked(item: pytest.Item) -> list[str]:
    """Return the programs built by Go that a test needs although the suites without Go select it."""
    from machine.programs import built_by_go

    if SUITES_WITH_GO & {mark.name for mark in item.iter_markers()}:
        return []
    return [name for mark in item.iter_markers("needs") for name in mark.args if built_by_go(name)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if wrong := [f"{item.nodeid}: {', '.join(names)}" for item in items if (names := unmarked(item))]:
        raise pytest.UsageError(
            "\n".join(
                [f"these need programs built by Go, and have none of the marks {sorted(SUITES_WITH_GO)}:", *wrong]
            )
        )
    for item in items:
        if why := lacking(item):
            item.add_marker(pytest.mark.skip(reason="; ".join(why)))
    # Long ones first: workers take modules in this order, and none is left with a lab while the others are done.
    items.sort(key=lambda item: item.get_closest_marker("lab") is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Under ISTHMUS_NO_SKIP a skip, from wherever it comes, is a failure with its reason."""
    report = yield
    if NO_SKIP and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome = "failed"
        report.longrepr = f"ISTHMUS_NO_SKIP is set, and this was skipped: {reason.removeprefix('Skipped: ')}"
    return report
