"""Admin sockets of a cluster that a kubeconfig names: each query runs ``kubectl exec`` in the pod.

kubectl has the credentials and the transport; in the pod ``isthmus relay`` copies between its standard streams and the
socket. A connection is kept for all questions of a command, since each exec takes as long as a TLS handshake and more.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from isthmus.admin.query import Socket
from isthmus.cli.kubernetes_report import AGENT, DNS, LABEL
from isthmus.cli.sockets import NAME_SERVERS
from isthmus.installation import SYSTEM

RUN: Final = Path("/run/isthmus")
OPERATOR: Final = "isthmus-operator"
KEYS: Final = "isthmus-keys"
ENDING: Final = 1.0
"""Seconds that a command has to end after its connection has."""
SEARCH: Final = 10.0
"""Least seconds between two searches for replaced pods of a cluster, for all connections of a command together."""
EXIT_CODE: Final = "command terminated with exit code"
"""Text that kubectl adds to the errors of a command in a pod."""


class Pod(msgspec.Struct, frozen=True):
    """A running pod of ours."""

    name: str
    app: str
    node: str
    containers: frozenset[str]


def find(context: str, *, node: str = "", keepers: bool = False) -> list[Socket]:
    """The sockets of a cluster: the agent and the name servers of a node, and the operator that leads.

    ``keepers``: also that of the process that keeps the cluster's keys, which has no rows; none where keys are made by
    hand.
    """
    search = Search(context)
    pods = search.pods
    on_nodes = [pod for pod in pods if pod.app in (AGENT, DNS) and node in ("", pod.node)]
    operators = [pod for pod in pods if pod.app == OPERATOR]
    if not on_nodes and not operators:
        where = f" on node {node}" if node else ""
        raise click.ClickException(f"context {context}: no pod of Isthmus runs in namespace {SYSTEM}{where}")
    by_process = {
        name: pod
        for pod in reversed(on_nodes)
        if pod.node == on_nodes[0].node
        for name in pod.containers & {"agent", *NAME_SERVERS}
    }
    sockets = [_socket(search, by_process[name], name) for name in sorted(by_process)]
    sockets[1:1] = [_socket(search, pod, "operator") for pod in _leading(context, operators)]
    return [*sockets, *(_socket(search, pod, "keys") for pod in pods if keepers and pod.app == KEYS)]


def agents(context: str, *, node: str = "") -> list[Socket]:
    """The agents of all nodes, or of one: what is known by each node alone is asked of each."""
    search = Search(context)
    pods = [pod for pod in search.pods if pod.app == AGENT and node in ("", pod.node)]
    if not pods:
        where = f" on node {node}" if node else ""
        raise click.ClickException(f"context {context}: no agent runs in namespace {SYSTEM}{where}")
    return [_socket(search, pod, "agent") for pod in pods]


def agents_by_node(context: str) -> dict[str, Socket]:
    """The agent of each node."""
    search = Search(context)
    return {pod.node: _socket(search, pod, "agent") for pod in search.pods if pod.app == AGENT}


def node_of(context: str, pod: str) -> str:
    """The node that a pod (namespace/name) runs on."""
    namespace, _, name = pod.partition("/")
    body = _kubectl(context, "-n", namespace, "get", "pod", name, "-o", "json")
    node: str = body.get("spec", {}).get("nodeName", "")
    return node


def _pods(context: str) -> list[Pod]:
    selector = f"{LABEL} in ({AGENT},{DNS},{OPERATOR},{KEYS})"
    body = _kubectl(context, "-n", SYSTEM, "get", "pods", "-l", selector, "-o", "json")
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


class Search:
    """Running pods of a cluster, listed again where one was replaced: at most once in ``SEARCH`` seconds."""

    def __init__(self, context: str) -> None:
        self.context = context
        self.pods = _pods(context)
        self._lock = threading.Lock()
        self._searched = -SEARCH
        self._operators: list[Pod] = []

    def successor(self, pod: Pod) -> Pod:
        """Return the pod that now does the work of one: of a node the same node's, of operators the one that leads.

        The pod itself while there is no other, or the API server does not answer.
        """
        with self._lock:  # what one connection finds serves all: each of them fails when a pod ends
            if time.monotonic() - self._searched >= SEARCH:
                try:
                    self.pods = _pods(self.context)
                    operators = [each for each in self.pods if each.app == OPERATOR]
                    self._operators = _leading(self.context, operators)
                except click.ClickException:
                    pass  # the caller's own attempt has the reason
                self._searched = time.monotonic()
        if pod.app == OPERATOR:
            return next(iter(self._operators), pod)
        others = [each for each in self.pods if each.app == pod.app and (pod.app == KEYS or each.node == pod.node)]
        return pod if pod in others else next(iter(others), pod)


def _leading(context: str, operators: Sequence[Pod]) -> list[Pod]:
    """Return the operator that leads, or none where there is no operator."""
    leading = _leader(context) if len(operators) > 1 else ""
    return [pod for pod in operators if leading.startswith(pod.name)] or [*operators[:1]]


def _leader(context: str) -> str:
    """Holder of the operator's Lease: the pod's name and its process id."""
    lease = _kubectl(context, "-n", SYSTEM, "get", "lease", OPERATOR, "-o", "json")
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


def _socket(search: Search, pod: Pod, process: str) -> Socket:
    path = RUN / f"{process}.sock"

    def command(pod: Pod) -> list[str]:
        words = ["kubectl", "--context", search.context, "-n", SYSTEM, "exec", "-i", pod.name, "-c", process, "--"]
        return [*words, "isthmus", "relay", str(path)]

    dial = Exec(command(pod), again=lambda: command(search.successor(pod)))
    socket = Socket(path, dial=dial, ended=dial.ended, name=pod.node or pod.name)
    click.get_current_context().call_on_close(socket.close)
    return socket


class Exec:
    """Dials by a command whose standard streams are the connection; it ends when the connection is closed."""

    def __init__(self, command: Sequence[str], *, again: Callable[[], Sequence[str]] | None = None) -> None:
        """``again``: the command after one that failed, such as for the pod that replaced another."""
        self._command = command
        self._again = again
        self._errors: Future[str] = Future()
        """Standard error of the last command, once it has ended."""

    def __call__(self, timeout: float) -> socket.socket:
        """A new connection; ``timeout`` in seconds for each of its operations."""
        if self._again is not None and self._errors.done() and self._errors.result():
            self._command = self._again()
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
        """Message of the last command that ended by itself; empty while it runs, or if it wrote nothing."""
        try:
            lines = self._errors.result(timeout=ENDING).splitlines()
        except TimeoutError:
            return ""
        return next((line for line in reversed(lines) if line.strip() and EXIT_CODE not in line), "")


def _wait(process: subprocess.Popen[str], errors: Future[str]) -> None:
    """Wait for a command, which ends with its connection, so that it leaves no zombie."""
    errors.set_result(process.communicate()[1])
