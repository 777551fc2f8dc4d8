"""What people do to a running pod by kubectl, on whichever API server: the same must hold on both."""

from __future__ import annotations

import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from labs.lab_running import PATIENCE, Running

SERVED = """\
apiVersion: v1
kind: Pod
metadata: {name: served}
spec:
  containers:
  - name: web
    image: python
    command: [sh, -c, 'head -c 3000000 /dev/zero > /tmp/big; exec python3 -m http.server 80 --directory /tmp']
    readinessProbe: {httpGet: {port: 80}, periodSeconds: 1}
  - name: ask
    image: busybox
    stdin: true
    command: [sh, -c, 'while read line; do echo heard $line; done; sleep 9']
"""


def prepare(running: Running) -> None:
    """The pod that is talked to."""
    running.kubectl("apply", "-f", "-", stdin=SERVED)
    running.kubectl("wait", "--for=condition=Ready", "pod/served", "--timeout=180s")


def exec_has_input_output_and_code(running: Running) -> None:
    done = run(running, "exec", "-i", "served", "-c", "web", "--", "sh", "-c", "cat; echo no >&2; exit 3", typed="yes")
    assert (done.returncode, done.stdout) == (3, "yes")
    assert done.stderr.startswith("no\n")


def a_port_is_forwarded(running: Running) -> None:
    with forwarded(running, "served", 80) as port:
        for _ in range(3):
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/big", timeout=60) as answer:
                assert len(answer.read()) == 3_000_000


def a_port_where_nobody_listens_is_an_error(running: Running) -> None:
    with forwarded(running, "served", 81) as port, pytest.raises(OSError, match=r"reset|closed|without response"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60)


def what_is_said_is_heard(running: Running) -> None:
    command = [*running.kubectl_command(), "attach", "-i", "served", "-c", "ask"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as attached:
        assert attached.stdin is not None
        assert attached.stdout is not None
        attached.stdin.write("me\n")
        attached.stdin.flush()
        received = attached.stdout.readline()
        attached.kill()
    assert received == "heard me\n"


def a_pod_for_a_moment_gives_its_code(running: Running) -> None:
    words = ("run", "moment", "-i", "--rm", "--restart=Never", "--image=busybox", "--", "sh")
    done = run(running, *words, typed="sleep 0.5; echo $((6*7)); exit 5\n")
    assert done.returncode == 5, done.stderr
    assert "42\n" in done.stdout


ALL = (
    exec_has_input_output_and_code,
    a_port_is_forwarded,
    a_port_where_nobody_listens_is_an_error,
    what_is_said_is_heard,
    a_pod_for_a_moment_gives_its_code,
)


def run(running: Running, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    command = [*running.kubectl_command(), *words]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=PATIENCE, check=False)


@contextmanager
def forwarded(running: Running, pod: str, port: int) -> Iterator[int]:
    """The port on this machine."""
    command = [*running.kubectl_command(), "port-forward", pod, f":{port}", "--address=127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as kubectl:
        assert kubectl.stdout is not None
        try:
            line = kubectl.stdout.readline()  # Forwarding from 127.0.0.1:35271 -> 80
            yield int(line.split()[2].rpartition(":")[2])
        finally:
            kubectl.kill()
