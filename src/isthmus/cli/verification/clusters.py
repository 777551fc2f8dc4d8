"""The clusters of a verification, asked and changed through kubectl, which has the credentials and the transport."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

import click
import msgspec

from isthmus.cli.verification import objects
from isthmus.cli.verification.objects import Call, Found, Result
from isthmus.installation import progress
from isthmus.installation.facts import ApiObject

PATIENCE: Final = 30
"""Seconds for a request of kubectl that waits for nothing but the API server."""

T = TypeVar("T")


class Cluster:
    """A cluster by the options that select it for kubectl."""

    def __init__(self, name: str, options: tuple[str, ...]) -> None:
        self.name = name
        self._options = options

    def __repr__(self) -> str:
        return f"<{self.name}: kubectl {' '.join(self._options)}>"

    def apply(self, manifests: list[dict[str, Any]]) -> None:
        """Make the objects."""
        body = {"apiVersion": "v1", "kind": "List", "items": manifests}
        self._kubectl("apply", "-f", "-", stdin=msgspec.json.encode(body))

    def wait(self, namespace: str, number: int, *, seconds: int) -> Found:
        """Once its pod is ready: what has become of the objects."""
        addresses = self.pod_addresses(namespace, seconds=seconds)
        service = self._get("-n", namespace, "get", "service", objects.service(number))
        return Found(addresses, tuple(service["spec"]["ipFamilies"]))

    def pod_addresses(self, namespace: str, *, seconds: int) -> tuple[str, ...]:
        """Addresses of its pod, once that is ready."""
        ready = ("wait", "--for=condition=Ready", f"pod/{objects.POD}", f"--timeout={seconds}s")
        try:
            self._kubectl("-n", namespace, *ready, seconds=seconds + PATIENCE)
        except click.ClickException as error:
            raise click.ClickException(f"{error.message}{self._lack(namespace)}") from None
        pod = self._get("-n", namespace, "get", "pod", objects.POD)
        return tuple(each["ip"] for each in pod["status"]["podIPs"])

    def _lack(self, namespace: str) -> str:
        """Reason why its pod is not ready, for the end of a message; empty if the pod cannot be read."""
        try:
            pod = self._get("-n", namespace, "get", "pod", objects.POD)
        except click.ClickException:
            return ""
        return "".join(f": {lack.reason}" for lack in progress.lacks((), [msgspec.convert(pod, ApiObject)], ()))

    def resolv_conf(self, namespace: str) -> str:
        """Text of its pod's /etc/resolv.conf."""
        return self._kubectl("-n", namespace, "exec", objects.POD, "--", "cat", "/etc/resolv.conf").decode()

    def multipath_pause(self, namespace: str) -> str:
        """Value of net.mptcp.blackhole_timeout in its pod; empty if the kernel lacks it."""
        read = "cat /proc/sys/net/mptcp/blackhole_timeout 2>/dev/null || true"
        return self._kubectl("-n", namespace, "exec", objects.POD, "--", "sh", "-c", read).decode().strip()

    def call(self, namespace: str, targets: list[dict[str, Any]], *, seconds: int) -> list[dict[str, str]]:
        """Results of its pod's calls, in the order of the targets, as programs/call.py prints them."""
        words = ["python3", "-c", objects.program("call"), msgspec.json.encode(targets).decode(), str(seconds)]
        output = self._kubectl("-n", namespace, "exec", objects.POD, "--", *words, seconds=seconds + PATIENCE)
        return msgspec.json.decode(output, type=list[dict[str, str]])

    def delete(self, namespace: str, *, seconds: int) -> None:
        """Remove the namespace and wait until it is gone."""
        words = ("delete", "namespace", namespace, "--ignore-not-found", f"--timeout={seconds}s")
        self._kubectl(*words, seconds=seconds + PATIENCE)

    def _get(self, *words: str) -> Any:
        return msgspec.json.decode(self._kubectl(*words, "-o", "json"))

    def _kubectl(self, *words: str, stdin: bytes | None = None, seconds: int = PATIENCE) -> bytes:
        command = ["kubectl", *self._options, *words]
        try:
            done = subprocess.run(command, input=stdin, capture_output=True, timeout=seconds, check=False)
        except FileNotFoundError:
            raise click.ClickException("kubectl is not in PATH: verify works through it") from None
        except subprocess.TimeoutExpired:
            raise click.ClickException(f"{self.name}: kubectl {words[0]}: no end after {seconds} s") from None
        if done.returncode:
            lines = done.stderr.decode(errors="replace").strip().splitlines() or [f"exit code {done.returncode}"]
            raise click.ClickException(f"{self.name}: {lines[-1]}")
        return done.stdout


def each(clusters: Iterable[Cluster], do: Callable[[Cluster], T]) -> dict[str, T]:
    """Run a function for all clusters at once. Once all have ended, the first failure is raised."""
    listed = list(clusters)
    with ThreadPoolExecutor(len(listed)) as pool:
        return dict(zip([one.name for one in listed], pool.map(do, listed), strict=True))


def verify(
    clusters: list[Cluster], namespace: str, observed: Mapping[str, Found], *, seconds: int
) -> dict[Call, Result]:
    """Make every call."""
    calls = objects.calls(observed)

    def ask(cluster: Cluster) -> list[tuple[Call, dict[str, str]]]:
        mine = [call for call in calls if call.source == cluster.name]
        targets = objects.targets(namespace, observed, mine)
        return list(zip(mine, cluster.call(namespace, targets, seconds=seconds), strict=True)) if mine else []

    return {call: _result(call, got) for rows in each(clusters, ask).values() for call, got in rows}


def _result(call: Call, got: Mapping[str, str]) -> Result:
    path = "local" if call.source == call.target else got["path"]
    return msgspec.convert({"checks": {check: got[check] for check in objects.CHECKS}, "path": path}, Result)
