"""The cases of the upstream conformance suite of the MCS API that call or resolve, in one lab of two clusters.

Both have ``echo`` (one port 80 of two meanings: in c2 it is the older export's) and the headless StatefulSet ``db``;
``plain`` is exported by c1 alone though both have it, ``hidden`` by neither.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from labs.lab_running import Running, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("dig")]

ZONE = "demo.svc.clusterset.local"
EXAMPLE = Path(__file__).parents[2] / "examples" / "headless" / "db.yaml"
SERVER = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: echo, namespace: demo}
spec:
  replicas: 1
  selector: {matchLabels: {app: echo}}
  template:
    metadata: {labels: {app: echo}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
        - name: echo
          image: isthmus/echo
          ports: [{name: http, containerPort: 8080}]
          readinessProbe: {tcpSocket: {port: http}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 1}
"""
SERVICE = """
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: demo}}
spec:
  selector: {{app: echo}}
  ports: {ports}
"""
EXPORT = """
apiVersion: multicluster.x-k8s.io/v1beta1
kind: ServiceExport
metadata: {{name: {name}, namespace: demo}}
"""
HTTP = {"name": "http", "port": 80, "targetPort": 8080}
EXTRA = {"name": "extra", "port": 90, "targetPort": 8080}
ALL = {"strict": {"c2"}, "plain": {"c1"}, "echo": {"c1", "c2"}, "db": {"c1", "c2"}}


def _manifests(cluster: str) -> str:
    """What a cluster has; ``strict`` has a port 90 everywhere, called ``http`` in c1 alone."""
    strict = [{**EXTRA, "name": "http"}, HTTP | {"name": "other"}] if cluster == "c1" else [HTTP, EXTRA]
    ports: dict[str, Any] = {"echo": [HTTP], "plain": [HTTP], "hidden": [HTTP], "strict": strict}
    return SERVER + "".join(SERVICE.format(name=n, ports=json.dumps(p)) for n, p in ports.items())


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("manifests")
    (folder / "db.yaml").write_text(EXAMPLE.read_text())
    for cluster in ("c1", "c2"):
        (folder / cluster).mkdir()
        (folder / cluster / "echo.yaml").write_text(_manifests(cluster))
    running = Running(Lab(lab_name("f"), 2, 1))
    try:
        running.cli("up", "--clusters", "2", "--from", str(folder))
        # c2 exports first: what is in conflict is as c2 has it. Times of creation are whole seconds.
        _export(running, "c2", "strict")
        imported(running, "c1", "strict", "c2")
        _export(running, "c1", "plain", "echo", "db")
        _export(running, "c2", "echo", "db")
        for cluster in ("c1", "c2"):
            until(lambda c=cluster: _imports(running, c) == ALL, what=f"the imports of {cluster}")  # type: ignore[misc]
        yield running
    finally:
        removal.remove(running.lab)


def _export(lab: Running, cluster: str, *names: str) -> None:
    lab.kubectl("apply", "-f", "-", stdin="---".join(EXPORT.format(name=name) for name in names), cluster=cluster)


def _imports(lab: Running, cluster: str) -> dict[str, set[str]]:
    """The clusters that each import names."""
    content = json.loads(lab.kubectl("-n", "demo", "get", "serviceimports", "-o", "json", cluster=cluster))
    return {
        each["metadata"]["name"]: {c["cluster"] for c in each.get("status", {}).get("clusters", ())}
        for each in content["items"]
    }


def imported(lab: Running, cluster: str, name: str, *exporters: str) -> None:
    """Wait until the import names these clusters; none: until it is gone."""
    until(lambda: _imports(lab, cluster).get(name, set()) == set(exporters), what=f"import {name}")


def python(lab: Running, cluster: str, script: str) -> str:
    """What a script prints in the client pod of a cluster."""
    return lab.exec("demo/client", f"python3 -I -S -c {shlex.quote(script)}", cluster=cluster)


def addresses(lab: Running, cluster: str, name: str) -> set[str]:
    """What a name resolves to, in a pod."""
    script = f"""
import socket
try:
    print(*{{each[4][0] for each in socket.getaddrinfo({name!r}, 80, socket.AF_INET)}})
except socket.gaierror:
    pass
"""
    return set(python(lab, cluster, script).split())


def answers(lab: Running, cluster: str, name: str, *, port: int = 80, count: int = 30) -> set[str]:
    """Who answers so many calls; '-' for one that is not answered."""
    script = f"""
import json, urllib.request
content = set()
for _ in range({count}):
    try:
        with urllib.request.urlopen("http://{name}:{port}/", timeout=2) as answer:
            content.add(json.loads(answer.read())["cluster"])
    except OSError:
        content.add("-")
print(*content)
"""
    return set(python(lab, cluster, script).split())


def ask(lab: Running, cluster: str, name: str, kind: str) -> list[str]:
    """Records of a name, by dig in the client pod."""
    return sorted(lab.exec("demo/client", f"dig +short +time=2 {name} {kind}", cluster=cluster).split("\n")[:-1])


def ip(lab: Running, cluster: str, kind: str, name: str, path: str) -> str:
    return lab.kubectl("-n", "demo", "get", kind, name, "-o", f"jsonpath={path}", cluster=cluster)


def pods(lab: Running, cluster: str, app: str) -> dict[str, str]:
    """Addresses of ready pods by name."""
    path = "jsonpath={range .items[*]}{.metadata.name}={.status.podIP} {end}"
    content = lab.kubectl("-n", "demo", "get", "pods", "-l", f"app={app}", "-o", path, cluster=cluster)
    return dict(each.split("=") for each in content.split())


@pytest.mark.slow
def test_required_a_service_that_is_not_exported_cannot_be_reached_by_the_clustersets_name(lab: Running) -> None:
    assert addresses(lab, "c2", f"hidden.{ZONE}") == set()
    assert answers(lab, "c2", f"hidden.{ZONE}", count=1) == {"-"}


def test_optional_an_exported_service_is_reached_and_every_exporter_answers(lab: Running) -> None:
    for cluster in ("c1", "c2"):
        until(lambda c=cluster: answers(lab, c, f"echo.{ZONE}") == {"c1", "c2"})  # type: ignore[misc]


def test_optional_only_the_exporting_cluster_answers_where_both_have_the_service(lab: Running) -> None:
    until(lambda: answers(lab, "c2", f"plain.{ZONE}") == {"c1"})
    assert answers(lab, "c1", f"plain.{ZONE}") == {"c1"}


def test_optional_the_clustersets_name_has_the_imports_address(lab: Running) -> None:
    for cluster in ("c1", "c2"):
        address = ip(lab, cluster, "serviceimports", "echo", "{.spec.ips[0]}")
        until(lambda c=cluster, a=address: ask(lab, c, f"echo.{ZONE}", "A") == [a])  # type: ignore[misc]


def test_optional_srv_records_of_the_clustersets_name_tell_the_port(lab: Running) -> None:
    assert ask(lab, "c2", f"_http._tcp.echo.{ZONE}", "SRV") == [f"0 100 80 echo.{ZONE}."]


def test_optional_the_clusters_own_name_stays_the_clusters_own(lab: Running) -> None:
    own = ip(lab, "c2", "services", "echo", "{.spec.clusterIP}")
    assert addresses(lab, "c2", "echo.demo.svc.cluster.local") == {own}
    assert answers(lab, "c2", "echo.demo.svc.cluster.local") == {"c2"}


def test_optional_a_headless_name_has_the_addresses_of_all_pods(lab: Running) -> None:
    def ready() -> set[str]:
        return {ip for cluster in ("c1", "c2") for ip in pods(lab, cluster, "db").values()}

    until(lambda: len(ready()) == 4 and addresses(lab, "c2", f"db.{ZONE}") == ready())


def test_optional_a_pod_of_a_stateful_set_has_a_name_with_its_cluster(lab: Running) -> None:
    for cluster in ("c1", "c2"):
        [address] = [ip for name, ip in pods(lab, cluster, "db").items() if name == "db-0"]
        until(lambda c=cluster, a=address: addresses(lab, "c2", f"db-0.{c}.db.{ZONE}") == {a})  # type: ignore[misc]


def test_optional_srv_records_of_a_headless_name_tell_every_pod_by_name(lab: Running) -> None:
    wanted = sorted(f"db-{n}.{c}.db.{ZONE}." for n in range(2) for c in ("c1", "c2"))
    until(lambda: sorted(each.split()[-1] for each in ask(lab, "c2", f"_tcp._tcp.db.{ZONE}", "SRV")) == wanted)


def test_optional_strict_port_conflict_a_call_reaches_who_means_that_port_and_nobody_else(lab: Running) -> None:
    _export(lab, "c1", "strict")
    for cluster in ("c1", "c2"):
        imported(lab, cluster, "strict", "c1", "c2")
        # Names and numbers are c2's: c1 has no port that agrees.
        until(lambda c=cluster: answers(lab, c, f"strict.{ZONE}", count=10) == {"c2"})  # type: ignore[misc]
        assert answers(lab, cluster, f"strict.{ZONE}", port=90) == {"c2"}


def test_required_unexported_by_everybody_import_and_name_are_gone(lab: Running) -> None:
    lab.kubectl("-n", "demo", "delete", "serviceexport", "plain")
    for cluster in ("c1", "c2"):
        imported(lab, cluster, "plain")
        until(lambda c=cluster: addresses(lab, c, f"plain.{ZONE}") == set())  # type: ignore[misc]
