"""Admin sockets of a cluster that a kubeconfig names: each question goes through ``kubectl exec`` into the pod.

kubectl has the credentials and the transport; in the pod ``isthmus relay`` copies between its standard streams and the
socket. A connection is kept for all questions of a command, since each exec takes as long as a TLS handshake and more.
"""

from __future__ import annotations

import socket
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from isthmus.admin.query import Socket
from isthmus.cli.kubernetes_report import AGENT, LABEL, NAMESPACE

RUN: Final = Path("/run/isthmus")
OPERATOR: Final = "isthmus-operator"
ENDING: Final = 1.0
"""Seconds that a command has to end after its connection has."""
EXIT_CODE: Final = "command terminated with exit code"
"""What kubectl adds to the errors of a command in a pod."""


class Pod(msgspec.Struct, frozen=True):
    """A running pod of ours."""

    name: str
    app: str
    node: str
    containers: frozenset[str]


def find(context: str, *, node: str = "") -> list[Socket]:
    """The sockets of a cluster: the agent and the name servers of a node, and the operator that leads."""
    pods = _pods(context)
    agents = [pod for pod in pods if pod.app == AGENT and node in ("", pod.node)]
    operators = [pod for pod in pods if pod.app == OPERATOR]
    if not agents and not operators:
        where = f" on node {node}" if node else ""
        raise click.ClickException(f"context {context}: no pod of Isthmus runs in namespace {NAMESPACE}{where}")
    on_node = [name for name in ("agent", "dns", "dns-second") if agents and name in agents[0].containers]
    found = [_socket(context, agents[0], name) for name in on_node]
    leading = _leader(context) if len(operators) > 1 else ""
    chosen = [pod for pod in operators if leading.startswith(pod.name)] or operators[:1]
    return found[:1] + [_socket(context, pod, "operator") for pod in chosen] + found[1:]


def agents(context: str, *, node: str = "") -> list[Socket]:
    """The agents of all nodes, or of one: what is known by each node alone is asked of each."""
    found = [pod for pod in _pods(context) if pod.app == AGENT and node in ("", pod.node)]
    if not found:
        where = f" on node {node}" if node else ""
        raise click.ClickException(f"context {context}: no agent runs in namespace {NAMESPACE}{where}")
    return [_socket(context, pod, "agent") for pod in found]


def node_of(context: str, pod: str) -> str:
    """The node that a pod (namespace/name) runs on."""
    namespace, _, name = pod.partition("/")
    body = _kubectl(context, "-n", namespace, "get", "pod", name, "-o", "json")
    node: str = body.get("spec", {}).get("nodeName", "")
    return node


def _pods(context: str) -> list[Pod]:
    body = _kubectl(context, "-n", NAMESPACE, "get", "pods", "-l", f"{LABEL} in ({AGENT},{OPERATOR})", "-o", "json")
    return sorted(
        (
            Pod(
                item["metadata"]["name"],
                item["metadata"]["labels"][LABEL],
                item["spec"].get("nodeName", ""),
                frozenset(each["name"] for each in item["spec"]["containers"]),
            )
            for item in body["items"]
            if item.get("status", {}).get("phase") == "Running"
        ),
        key=lambda pod: pod.name,
    )


def _leader(context: str) -> str:
    """Who holds the operator's Lease: the pod's name and its process id."""
    lease = _kubectl(context, "-n", NAMESPACE, "get", "lease", OPERATOR, "-o", "json")
    holder: str = lease.get("spec", {}).get("holderIdentity") or ""
    return holder


def _kubectl(context: str, *words: str) -> Any:
    return msgspec.json.decode(_output(context, *words))


def _output(context: str, *words: str) -> bytes:
    try:
        done = subprocess.run(["kubectl", "--context", context, *words], capture_output=True, timeout=30, check=False)
    except FileNotFoundError:
        raise click.ClickException("kubectl is not in PATH: --context works through it") from None
    except subprocess.TimeoutExpired:
        raise click.ClickException(f"context {context}: the API server does not answer in 30 s") from None
    if done.returncode:
        raise click.ClickException(f"context {context}: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout


def _socket(context: str, pod: Pod, process: str) -> Socket:
    command = ["kubectl", "--context", context, "-n", NAMESPACE, "exec", "-i", pod.name, "-c", process, "--"]
    path = RUN / f"{process}.sock"
    dial = Exec([*command, "isthmus", "relay", str(path)])
    found = Socket(path, dial=dial, ended=dial.ended)
    click.get_current_context().call_on_close(found.close)
    return found


class Exec:
    """Dials by a command whose standard streams are the connection; it ends when the connection is closed."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = command
        self._errors: Future[str] = Future()
        """Of the last command, when it has ended: what it wrote to standard error."""

    def __call__(self, timeout: float) -> socket.socket:
        """A new connection; ``timeout`` in seconds for each of its operations."""
        own, child = socket.socketpair()
        with child:
            process = subprocess.Popen(
                self._command, stdin=child.fileno(), stdout=child.fileno(), stderr=subprocess.PIPE, text=True
            )
        self._errors = Future()
        threading.Thread(target=_wait, args=(process, self._errors), daemon=True).start()
        own.settimeout(timeout)
        return own

    def ended(self) -> str:
        """Why the last command ended by itself, in its own words; empty while it runs, or where it wrote nothing."""
        try:
            lines = self._errors.result(timeout=ENDING).splitlines()
        except TimeoutError:
            return ""
        return next((line for line in reversed(lines) if line.strip() and EXIT_CODE not in line), "")


def _wait(process: subprocess.Popen[str], errors: Future[str]) -> None:
    """Wait for the end of a command, which comes with that of its connection, so that it leaves no zombie."""
    errors.set_result(process.communicate()[1])
