"""A node runs pods as processes: what they see, how they live, how they are called."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from labs.host_packets import Watched
from labs.lab_running import Running, until

from isthmus_lab import cgroups, pod_exec

pytestmark = pytest.mark.lab

ECHO = {
    "image": "isthmus/echo",
    "ports": [{"name": "http", "containerPort": 8080}],
    "env": [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "readinessProbe": {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1, "timeoutSeconds": 30},
}
CLIENT = {"image": "isthmus/client"}


def pod(name: str, container: dict[str, Any], **spec: Any) -> dict[str, Any]:
    meta = {"name": name, "labels": {"app": name.partition("-")[0]}}
    spec = {"containers": [{"name": "main", **container}], "terminationGracePeriodSeconds": 5, **spec}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def service(name: str) -> dict[str, Any]:
    ports = [{"name": "http", "port": 80, "targetPort": "http"}]
    body = {"selector": {"app": name}, "ports": ports}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": body}


def apply(clusters: Running, *objects: dict[str, Any]) -> None:
    clusters.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump_all(objects))


def get(clusters: Running, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(clusters.kubectl("get", "pod", name, "-o", "json"))
    return found


def ready(clusters: Running, name: str) -> dict[str, Any] | None:
    found = get(clusters, name)
    conditions = {each["type"]: each["status"] for each in found.get("status", {}).get("conditions", ())}
    return found if conditions.get("Ready") == "True" else None


@pytest.fixture(scope="module")
def echo(clusters: Running) -> Running:
    """An echo server on the first node, a client on the second, a Service."""
    apply(clusters, pod("echo-1", ECHO, nodeName="c1-n1"), pod("client", CLIENT, nodeName="c1-n2"), service("echo"))
    until(lambda: ready(clusters, "echo-1") and ready(clusters, "client"), what="both are ready")
    clusters.exec("default/client", "until curl -sm5 echo; do sleep 0.1; done")
    return clusters


def test_a_pod_calls_a_service_of_another_node_by_name_and_is_seen_with_its_own_address(echo: Running) -> None:
    output = json.loads(echo.exec("default/client", "curl -sm30 http://echo/x"))
    assert output["pod"] == "echo-1"
    assert output["caller"] == get(echo, "client")["status"]["podIP"]
    assert output["caller"].startswith("10.1.2.")


def test_a_pod_reaches_itself_through_its_service(echo: Running) -> None:
    assert json.loads(echo.exec("default/echo-1", "curl -sm30 http://echo"))["pod"] == "echo-1"


def test_a_service_address_without_endpoints_refuses_at_once(echo: Running) -> None:
    apply(echo, service("nobody"))
    until(lambda: echo.exec("default/client", "getent hosts nobody"), what="its name")
    output = echo.exec("default/client", "curl -sm30 -w '%{exitcode} %{errormsg}' http://nobody; true")
    assert output.split()[0] == "7", output  # could not connect; 28 were no answer in that time


def test_a_pod_sees_no_process_but_its_own_and_nothing_of_the_lab(echo: Running) -> None:
    seen = echo.exec(
        "default/client", "ls /proc | grep -c '^[0-9]'; ls -A /run /tmp; cat /proc/1/cmdline | tr '\\0' ' '"
    )
    assert int(seen.split()[0]) < 8
    assert "isthmus" not in seen
    assert "trap" in seen


def test_a_pod_cannot_mount_and_leaves_nothing_on_the_host(echo: Running) -> None:
    mark = f"/var/tmp/isthmus-{echo.lab.name}"
    assert echo.exec(
        "default/client", f"mount -t tmpfs x /mnt 2>/dev/null || echo no; echo hi > {mark}; cat {mark}"
    ) == ("no\nhi\n")
    assert echo.exec("default/echo-1", f"cat {mark} 2>/dev/null || echo nothing") == "nothing\n"
    with pytest.raises(FileNotFoundError):
        open(mark)  # noqa: PTH123, SIM115


def test_exec_passes_the_exit_code_and_input_on(echo: Running) -> None:
    echo.exec("default/client", "exit 7", code=7)
    echo.cli("exec", "c1", "default/client", "--", "no-such-program", code=127)
    assert echo.cli("exec", "c1", "default/client", "--", "tr", "a-z", "A-Z", stdin="shout").stdout == "SHOUT"


def test_exec_names_what_is_not_there(echo: Running) -> None:
    assert "c1: no pod default/nope is running; running: default/client" in echo.exec_fails("c1", "default/nope")
    assert "has no cluster c7" in echo.exec_fails("c7", "default/client")


def test_an_unknown_image_is_reported_and_everything_else_goes_on(echo: Running, until: Callable[..., Any]) -> None:
    apply(echo, pod("shop", {"image": "acme/shop:2"}), pod("other", CLIENT))
    until(lambda: ready(echo, "other"))
    output = until(lambda: [line for line in echo.cli("status").stdout.splitlines() if "ErrImagePull" in line])
    assert "image 'acme/shop:2' has no stand-in: isthmus lab image add acme/shop=COMMAND" in output[0]


def test_a_pod_starts_when_a_stand_in_for_its_image_is_added(echo: Running, until: Callable[..., Any]) -> None:
    ports = [{"containerPort": 8080}, {"containerPort": 9000}]
    probe = {"grpc": {"port": 9000}, "periodSeconds": 1}
    apply(echo, pod("late", {"image": "acme/late:2", "ports": ports, "readinessProbe": probe}))
    until(lambda: [line for line in echo.cli("status").stdout.splitlines() if "acme/late" in line])
    assert echo.cli("image", "add", "--stand-in", "acme/late").stdout.endswith("has a stand-in for acme/late\n")
    until(lambda: ready(echo, "late"))
    assert echo.cli("image", "list").stdout.splitlines()[1].split() == ["acme/late", "listens", "and", "answers", "lab"]


def test_status_has_why_a_pod_is_not_ready(echo: Running, until: Callable[..., Any]) -> None:
    probe = {"httpGet": {"path": "/", "port": 81}, "periodSeconds": 1, "failureThreshold": 1}
    apply(echo, pod("unready", {**CLIENT, "readinessProbe": probe}))
    shown = until(lambda: [line for line in echo.cli("status").stdout.splitlines() if "readiness probe" in line])
    assert "default/unready" in shown[0]
    assert "main: readiness probe: " in shown[0]


def test_the_log_of_a_process_of_the_lab_is_printed(echo: Running) -> None:
    assert "pod starts" in echo.cli("logs", "c1/node").stdout
    assert len(echo.cli("logs", "--tail", "1", "c1/n2/node").stdout.splitlines()) == 1
    assert "has no log of it; there are: " in echo.cli("logs", "c1/nothing", code=1).stderr


def test_a_container_that_ends_is_started_again_with_growing_pauses(echo: Running, until: Callable[..., Any]) -> None:
    apply(echo, pod("crash", {"image": "busybox", "command": ["sh", "-c", "echo bye; exit 3"]}))
    until(lambda: _container(echo, "crash")["restartCount"] >= 2)
    status = until(lambda: found if "waiting" in (found := _container(echo, "crash"))["state"] else None)
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert status["lastState"]["terminated"]["exitCode"] == 3
    for more in ((), ("--previous",)):  # a container that has just been started again has printed nothing yet
        until(lambda m=more: echo.kubectl("logs", "crash", *m) == "bye\n", what=f"its log {more}")


def test_a_pod_that_is_deleted_while_its_program_starts_ends_without_its_whole_grace(
    echo: Running, until: Callable[..., Any]
) -> None:
    slow = "import signal, sys, time; time.sleep(3); signal.signal(15, lambda *_: sys.exit()); time.sleep(900)"
    apply(
        echo, pod("hasty", {"image": "python", "command": ["python3", "-c", slow]}, terminationGracePeriodSeconds=600)
    )
    until(lambda: get(echo, "hasty")["status"]["phase"] == "Running")
    echo.kubectl("delete", "pod", "hasty", "--timeout=180s")


def test_a_pod_that_is_to_end_ends(echo: Running, until: Callable[..., Any]) -> None:
    task = {"image": "busybox", "command": ["sh", "-c", "exit 0"]}
    apply(
        echo,
        pod("task", task, restartPolicy="Never"),
        pod("broken", {**task, "command": ["false"]}, restartPolicy="Never"),
    )
    until(lambda: get(echo, "task")["status"].get("phase") == "Succeeded")
    until(lambda: get(echo, "broken")["status"].get("phase") == "Failed")


def test_an_unready_pod_leaves_the_service_and_comes_back(echo: Running, until: Callable[..., Any]) -> None:
    command = {"command": ["test", "-e", "/tmp/ok"]}
    probe = {"exec": command, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30}
    apply(echo, pod("gate-1", {**ECHO, "readinessProbe": probe}), service("gate"))
    until(lambda: get(echo, "gate-1")["status"].get("phase") == "Running")
    assert ready(echo, "gate-1") is None
    echo.exec("default/gate-1", "touch /tmp/ok")
    until(lambda: ready(echo, "gate-1"))
    echo.exec("default/client", "until curl -sm5 gate; do sleep 0.1; done")
    echo.exec("default/gate-1", "rm /tmp/ok")
    echo.exec("default/client", "while curl -sm30 gate; do sleep 0.1; done")


def test_a_liveness_probe_has_a_container_started_again(echo: Running, until: Callable[..., Any]) -> None:
    command = {"command": ["test", "!", "-e", "/tmp/dead"]}
    probe = {"exec": command, "periodSeconds": 1, "failureThreshold": 1, "timeoutSeconds": 30}
    apply(echo, pod("mortal", {**CLIENT, "livenessProbe": probe}))
    until(lambda: ready(echo, "mortal"))
    echo.exec("default/mortal", "touch /tmp/dead")
    until(lambda: _container(echo, "mortal")["restartCount"] == 1)
    assert until(lambda: ready(echo, "mortal"))


def test_a_node_port_answers_on_every_node(echo: Running) -> None:
    body = service("outside")
    body["spec"] |= {"type": "NodePort", "selector": {"app": "echo"}}
    body["spec"]["ports"][0]["nodePort"] = 30080
    apply(echo, body)
    for node in echo.lab.clusters[0].nodes:
        output = echo.exec("default/client", f"until curl -sm5 {node.address}:30080; do sleep 0.1; done")
        assert json.loads(output)["pod"] == "echo-1"


def test_a_pod_has_what_config_maps_and_secrets_say(echo: Running, until: Callable[..., Any]) -> None:
    shell = {
        "image": "isthmus/client",
        "env": [{"name": "C", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "c"}}}],
    }
    mounts = [{"name": "keys", "mountPath": "/keys"}, {"name": "both", "mountPath": "/both"}]
    volumes = [{"name": "keys", "secret": {"secretName": "k"}}, {"name": "both", "emptyDir": {}}]
    made = pod("bag", {**shell, "volumeMounts": mounts}, volumes=volumes)
    made["spec"]["containers"].append({"name": "second", "image": "isthmus/client", "volumeMounts": mounts[1:]})
    apply(echo, made)
    until(lambda: "configmap default/s is not there" in echo.cli("status").stdout)
    echo.kubectl("create", "configmap", "s", "--from-literal=c=blue")
    echo.kubectl("create", "secret", "generic", "k", "--from-literal=password=hunter2")
    until(lambda: ready(echo, "bag"))
    output = echo.exec("default/bag", "echo $C; cat /keys/password; stat -c ' %a' /keys/password; echo hi > /both/x")
    assert output == "blue\nhunter2 600\n"
    assert echo.cli("exec", "-c", "second", "c1", "default/bag", "--", "cat", "/both/x").stdout == "hi\n"
    echo.kubectl("patch", "secret", "k", "-p", '{"stringData": {"password": "hunter3"}}')
    until(lambda: echo.exec("default/bag", "cat /keys/password; cat /both/x") == "hunter3hi\n", what="the new password")


def test_a_pod_of_the_hosts_network_has_its_nodes_address_and_leaves_the_node_whole(
    echo: Running, until: Callable[..., Any]
) -> None:
    apply(echo, pod("hostly", {"image": "isthmus/client"}, hostNetwork=True, nodeName="c1-n2"))
    until(lambda: ready(echo, "hostly"))
    assert echo.exec("default/hostly", "hostname; ip -o -4 addr show scope global").count("172.30.1.12/") == 1
    assert echo.exec("default/hostly", "hostname; getent hosts kubernetes").split()[:2] == ["c1-n2", "10.96.0.1"]
    assert echo.kubectl("get", "pod", "hostly", "-o", "jsonpath={.status.podIP}") == "172.30.1.12"
    echo.kubectl("delete", "pod", "hostly", "--grace-period=1")
    apply(echo, pod("hostly", {"image": "isthmus/client"}, nodeName="c1-n2"))
    until(lambda: ready(echo, "hostly"), what="the node still has its network")
    assert "172.30.1.12" not in echo.exec("default/hostly", "ip -o -4 addr")


def test_a_deleted_pod_is_gone_with_its_processes_and_network(echo: Running, until: Callable[..., Any]) -> None:
    apply(echo, pod("short", CLIENT, terminationGracePeriodSeconds=600))
    until(lambda: ready(echo, "short"))
    held = pod_exec.find(echo.lab.clusters[0], "default/short")
    echo.kubectl("delete", "pod", "short", "--wait=true", "--timeout=180s")  # long before its grace is over
    until(lambda: not held.cgroup.exists())


def test_pods_outlive_their_nodes_process(echo: Running, until: Callable[..., Any]) -> None:
    before = {each.pod: each.pid for each in pod_exec.containers(echo.lab.clusters[0])}
    status = get(echo, "echo-1")["status"]
    for node in ("n1", "n2"):
        for pid in cgroups.processes(cgroups.root() / echo.lab.prefix / "c1" / node / "node"):
            cgroups.send(pid, signal.SIGKILL)
    echo.kubectl("delete", "pod", "other", "--wait=false")
    assert json.loads(echo.exec("default/client", "curl -sm30 http://echo"))["pod"] == "echo-1"
    until(lambda: all("other" not in each.pod for each in pod_exec.containers(echo.lab.clusters[0])))
    until(lambda: all(each["state"] == "ready" for each in echo.status()["programs"]), what="both nodes are back")
    after = {each.pod: each.pid for each in pod_exec.containers(echo.lab.clusters[0])}
    assert after["default/echo-1"] == before["default/echo-1"]
    until(lambda: ready(echo, "echo-1"), what="the pod is ready as before")
    assert get(echo, "echo-1")["status"]["podIP"] == status["podIP"]
    assert _container(echo, "echo-1")["restartCount"] == 0
    cgroups.send(after["default/echo-1"], signal.SIGKILL)
    until(lambda: _container(echo, "echo-1")["restartCount"] == 1, what="an adopted container is watched, too")


def _container(clusters: Running, name: str) -> dict[str, Any]:
    found = get(clusters, name).get("status", {}).get("containerStatuses")
    return found[0] if found else {"restartCount": -1, "state": {}, "lastState": {}}


def test_no_packet_of_the_lab_appears_on_the_hosts_interfaces(echo: Running) -> None:
    with Watched() as watched:
        echo.exec("default/client", "curl -sm1 8.8.8.8; curl -sm1 192.0.2.1; getent hosts example.com", code=None)
        echo.exec("default/client", "curl -sm30 http://echo; curl -sm1 http://10.96.77.7; true")
    assert watched.found == []


def test_a_packet_of_the_labs_addresses_on_the_host_would_be_seen(until: Callable[..., Any]) -> None:
    with Watched() as watched, socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW) as raw:
        ends = bytes([10, 1, 1, 2, 127, 0, 0, 1])
        raw.sendto(struct.pack("!BBHHHBBH8s", 0x45, 0, 20, 0, 0, 64, 253, 0, ends), ("127.0.0.1", 0))
        until(lambda: "lo: 10.1.1.2 → 127.0.0.1" in watched.found)


def test_kubectl_reads_logs_runs_commands_and_copies_files(echo: Running, tmp_path: Path) -> None:
    assert echo.kubectl("logs", "echo-1") == "echo: listening on port 8080\n"
    assert echo.kubectl("exec", "-i", "client", "--", "cat", stdin="hello") == "hello"
    command = ["kubectl", "--kubeconfig", str(echo.lab.kubeconfig), "exec", "client", "--", "sh", "-c", "exit 5"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 5
    echo.kubectl("cp", "client:/etc/hostname", str(tmp_path / "name"))
    assert (tmp_path / "name").read_text() == "client\n"
