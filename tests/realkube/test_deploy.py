"""``deploy/`` on real API servers: it applies, its configuration is read, and its rights are those that are used."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dns.exception
import dns.message
import dns.query
import pytest
import yaml
from clusters.exported_echo import EXPORT, SERVICE, SLICE
from clusters.joined import DEPLOY, SYSTEM, Cluster, environment, two, unused
from labs.lab_running import until
from machine import programs
from peers.etcd_server import free_ports

from isthmus import config
from isthmus.admin.query import Socket
from isthmus.cli import COMMANDS
from isthmus.clusterset.keeping import hosts
from isthmus.desired import MANAGED_BY

pytestmark = pytest.mark.kube

NAMESPACE = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}}


def definition(group: str, kind: str, plural: str, version: str, scope: str) -> dict[str, Any]:
    """A kind that a cluster may have."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    approved = {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/2149"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": approved},
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
            ],
        },
    }


OPTIONAL = (
    definition("about.k8s.io", "ClusterProperty", "clusterproperties", "v1beta1", "Cluster"),
    definition("cilium.io", "CiliumLocalRedirectPolicy", "ciliumlocalredirectpolicies", "v2", "Namespaced"),
    definition("flomesh.io", "GlobalTrafficPolicy", "globaltrafficpolicies", "v1alpha1", "Namespaced"),
    definition("multicluster.flomesh.io", "GlobalTrafficPolicy", "globaltrafficpolicies", "v1alpha1", "Namespaced"),
    definition("gateway.networking.k8s.io", "TCPRoute", "tcproutes", "v1", "Namespaced"),
    definition("gateway.networking.k8s.io", "UDPRoute", "udproutes", "v1", "Namespaced"),
    definition("gateway.networking.k8s.io", "ReferenceGrant", "referencegrants", "v1beta1", "Namespaced"),
)
POLICY = {
    "apiVersion": "isthmus.io/v1alpha1",
    "kind": "TrafficPolicy",
    "metadata": {"name": "echo", "namespace": "demo"},
    "spec": {"targetRef": {"kind": "ServiceImport", "name": "echo"}, "tiers": [{"clusters": [{"name": "c1"}]}]},
}
IMPORT = {"group": "multicluster.x-k8s.io", "kind": "ServiceImport", "name": "echo"}
ROUTES = [
    {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": "echo", "namespace": "demo"},
        "spec": {"parentRefs": [IMPORT], "rules": [{"backendRefs": [{**IMPORT, "port": 80}]}]},
    }
    for kind in ("TCPRoute", "UDPRoute")
]
CALLERS = {
    "apiVersion": "isthmus.io/v1alpha1",
    "kind": "ExportPolicy",
    "metadata": {"name": "callers", "namespace": "demo"},
    "spec": {"allow": [{"cluster": "c1"}]},
}
DRAIN = {
    "apiVersion": "isthmus.io/v1alpha1",
    "kind": "Drain",
    "metadata": {"name": "node-none", "namespace": SYSTEM},
    "spec": {"targetRef": {"kind": "Node", "name": "none"}},
}
NUMBER = str((2 << 16) + 300)
"""Of cluster 2."""
UNUSED = {
    "apiVersion": "isthmus.io/v1alpha1",
    "kind": "CallerIdentity",
    "metadata": {"name": NUMBER, "annotations": {MANAGED_BY: "isthmus"}},
    "spec": {"namespace": "demo", "serviceAccount": "gone"},
}
LONG_AGO = {"status": {"unusedSince": "2026-01-01T00:00:00Z"}}
CALLER = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "caller", "namespace": "demo"},
    "spec": {
        "serviceAccountName": "caller",
        "automountServiceAccountToken": False,
        "containers": [{"name": "caller", "image": "none"}],
    },
}
EVENTS = {("", "events", verb) for verb in ("get", "create", "patch")}
"""Rights of the agent that it needs when calls fail: it has no datapath here."""
ABOUT_US = {
    "apiVersion": "about.k8s.io/v1beta1",
    "kind": "ClusterProperty",
    "metadata": {"name": "cluster.clusterset.k8s.io"},
}


@pytest.fixture(scope="module")
def rendered() -> list[dict[str, Any]]:
    return render(DEPLOY)


def render(folder: Path) -> list[dict[str, Any]]:
    command = [programs.path("kubectl"), "kustomize", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def with_components(folder: Path, *names: str) -> Path:
    """A copy of ``deploy/`` with these components, as whoever wants them edits it."""
    shutil.copytree(DEPLOY, folder)
    file = folder / "kustomization.yaml"
    wanted = "".join(f"  - {name}\n" for name in ("keys", "mirror", *names))
    file.write_text(file.read_text().replace("components:\n  - keys\n  - mirror\n", f"components:\n{wanted}"))
    return folder


@pytest.fixture(scope="module")
def with_routes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_components(tmp_path_factory.mktemp("routes") / "deploy", "routes")


@pytest.fixture(scope="module")
def with_islands(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_components(tmp_path_factory.mktemp("islands") / "deploy", "routes", "islands")


@pytest.fixture(scope="module")
def with_three_etcds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_components(tmp_path_factory.mktemp("replicated") / "deploy", "replicated")


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, Cluster]]:
    """Two clusters, with everything of ``deploy/`` applied, not joined and with nothing of it running."""
    with two(tmp_path_factory.mktemp("joined"), Path(programs.path("kube-apiserver"))) as made:
        for cluster in made:
            asyncio.run(cluster.server.ready())
            cluster.kubectl("apply", "-k", str(DEPLOY))
            for each in OPTIONAL:
                cluster.kubectl("apply", "-f", "-", stdin=json.dumps(each))
                cluster.kubectl("wait", "--for=condition=Established", f"crd/{each['metadata']['name']}")
            named: dict[str, Any] = {**ABOUT_US, "spec": {"value": cluster.name}}
            cluster.kubectl("apply", "-f", "-", stdin=json.dumps(named))
        yield made


def pods(rendered: list[dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    return [
        (each["metadata"]["name"], each["spec"]["template"]["spec"])
        for each in rendered
        if "template" in each.get("spec", {})
    ]


def test_each_process_reads_its_deployed_configuration(
    rendered: list[dict[str, Any]], with_routes: Path, with_islands: Path
) -> None:
    assert configured(rendered) == {"operator", "agent", "dns", "keys", "mirror"}
    assert configured(render(with_routes)) == {"operator", "agent", "dns", "keys", "mirror", "envoy"}
    assert configured(render(with_islands)) == {"operator", "agent", "dns", "keys", "mirror", "envoy", "gateway"}


def configured(rendered: list[dict[str, Any]]) -> set[str]:
    """The processes that run, each looked at."""
    ran = set()
    for _, pod in pods(rendered):
        for container in pod["containers"]:
            if not container["image"].startswith(("isthmus:", "isthmus-envoy:")):
                continue
            [process, flag, path, *settings] = container["args"]
            assert (process in COMMANDS, flag) == (True, "--config")
            assert settings[::2] == ["--set"] * len(settings[1::2])
            ran.add(process)
            file = DEPLOY / "config" / path.rpartition("/")[2]
            read = config.load(file, environment=environment("c1", 1), flags=settings[1::2])
            assert (read.cluster.name, read.cluster.id) == ("c1", 1)
            ports = [each["containerPort"] for each in container.get("ports", ())]
            assert [str(port) for port in ports] == [read.monitor.listen.rpartition(":")[2]] * len(ports)
            mounts = [each["mountPath"] for each in container["volumeMounts"]]
            files = [*paths(tomllib.loads(file.read_text())), *(each.partition("=")[2] for each in settings[1::2])]
            for wanted in (each for each in files if each.startswith("/")):
                assert any(wanted.startswith(mount) for mount in mounts), f"{process}: {wanted} is not mounted"
    return ran


def test_each_process_that_serves_its_health_is_probed_where_it_listens(with_islands: Path) -> None:
    found = render(with_islands)
    probed = set()
    for name, pod in pods(found):
        for container in pod["containers"]:
            process, _, path, *settings = container.get("args") or [""] * 3
            if process not in COMMANDS:
                continue
            file = DEPLOY / "config" / path.rpartition("/")[2]
            listen = config.load(file, environment={}, flags=settings[1::2]).monitor.listen
            ports = {each["name"]: each["containerPort"] for each in container.get("ports", ())}
            for kind in ("livenessProbe", "readinessProbe") if listen else ():
                probe = container[kind]["httpGet"]
                assert f"{probe.get('host', '')}:{ports[probe['port']]}" == listen
                probed.add((name, container["name"]))
    assert {("isthmus-agent", "agent"), ("isthmus-dns", "dns"), ("isthmus-dns", "dns-second")} < probed


def test_no_process_of_a_node_is_replaced_with_the_other(rendered: list[dict[str, Any]]) -> None:
    found = {name: pod for name, pod in pods(rendered) if name in {"isthmus-agent", "isthmus-dns"}}
    processes = {name: [each["name"] for each in pod["containers"]] for name, pod in found.items()}
    assert processes == {"isthmus-agent": ["agent"], "isthmus-dns": ["dns", "dns-second"]}
    assert not found["isthmus-dns"]["automountServiceAccountToken"]
    shared = [{each["hostPath"]["path"] for each in pod["volumes"] if "hostPath" in each} for pod in found.values()]
    assert "/run/isthmus" in shared[0] & shared[1], "by which names and addresses reach the name servers"


def test_with_routes_all_processes_that_follow_them_share_a_folder(with_routes: Path) -> None:
    found = {}
    for name, pod in pods(render(with_routes)):
        for container in pod["containers"]:
            variables = {each["name"]: each.get("value") for each in container.get("env", ())}
            if (folder := variables.get("ISTHMUS_PROXY_DIRECTORY")) is not None:
                found[name] = folder
    envoy = config.load(DEPLOY / "config" / "envoy.toml", environment={})
    assert found == dict.fromkeys(("isthmus-agent", "isthmus-operator"), envoy.proxy.directory)


def test_with_routes_it_is_taken_by_a_server(clusters: tuple[Cluster, Cluster], with_routes: Path) -> None:
    assert "daemonset.apps/isthmus-envoy created" in clusters[0].kubectl(
        "apply", "-k", str(with_routes), "--dry-run=server"
    )


def test_with_islands_it_is_taken_by_a_server(clusters: tuple[Cluster, Cluster], with_islands: Path) -> None:
    taken = clusters[0].kubectl("apply", "-k", str(with_islands), "--dry-run=server")
    for each in ("deployment.apps/isthmus-gateway", "service/isthmus-gateway", "daemonset.apps/isthmus-envoy"):
        assert f"{each} created" in taken
    assert "isthmus-etcd-peers" not in taken, "the gateway's port alone is open to other clusters"


def test_with_islands_a_gateway_and_its_envoy_share_a_folder_that_agents_have_no_part_in(with_islands: Path) -> None:
    [gateway] = [pod for name, pod in pods(render(with_islands)) if name == "isthmus-gateway"]
    read = config.load(DEPLOY / "config" / "gateway.toml", environment={})
    beside = config.load(DEPLOY / "config" / "gateway-envoy.toml", environment={})
    assert (beside.proxy.directory, beside.proxy.uplinks) == (read.proxy.directory, ())
    for container in gateway["containers"]:
        mounts = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
        [mounted] = [name for path, name in mounts.items() if read.proxy.directory.startswith(path)]
        [volume] = [each for each in gateway["volumes"] if each["name"] == mounted]
        assert "emptyDir" in volume
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    [port] = {each.rpartition(":")[2] for each in read.gateway.listen}
    found = [each for each in render(with_islands) if each["metadata"]["name"] == "isthmus-gateway"]
    [service] = [each for each in found if each["kind"] == "Service"]
    [policy] = [each for each in found if each["kind"] == "NetworkPolicy"]
    assert [str(each["targetPort"]) for each in service["spec"]["ports"]] == [port]
    assert port in [str(each["port"]) for rule in policy["spec"]["ingress"] for each in rule["ports"]]


def test_with_islands_all_know_the_network(with_islands: Path) -> None:
    [cluster] = [each for each in render(with_islands) if each["metadata"]["name"].startswith("isthmus-cluster-")]
    assert {"ISTHMUS_CLUSTER_NETWORK", "ISTHMUS_CLUSTER_GATEWAYS"} <= set(cluster["data"])


def test_with_islands_each_envoy_can_read_the_certificate_that_its_configuration_names(with_islands: Path) -> None:
    """It has its path only, and reads it by itself: where the gateway has it, and where the agent has it."""
    found = dict(pods(render(with_islands)))
    identity = config.load(DEPLOY / "config" / "gateway.toml", environment={}).gateway.identity
    assert secret_at(found["isthmus-gateway"], "gateway", identity) == ("isthmus-gateway", True)
    assert secret_at(found["isthmus-gateway"], "envoy", identity) == ("isthmus-gateway", True)
    variables = {each["name"]: each.get("value") for each in found["isthmus-agent"]["containers"][0]["env"]}
    identity = variables["ISTHMUS_GATEWAY_IDENTITY"] or ""
    assert secret_at(found["isthmus-agent"], "agent", identity) == ("isthmus-node", True)
    assert secret_at(found["isthmus-envoy"], "envoy", identity) == ("isthmus-node", True)


def secret_at(pod: dict[str, Any], container: str, path: str) -> tuple[str, bool] | None:
    """The Secret mounted there, and whether that container's user can read it; None: there is none.

    A kubelet writes the files as root, with the mode that is asked for, and where the pod has an fsGroup as that group,
    which can read them.
    """
    [running] = [each for each in pod["containers"] if each["name"] == container]
    [volume] = [each["name"] for each in running["volumeMounts"] if each["mountPath"] == path] or [""]
    [secret] = [each["secret"] for each in pod["volumes"] if each["name"] == volume and "secret" in each] or [None]
    if secret is None:
        return None
    context = {**pod.get("securityContext", {}), **running["securityContext"]}
    others = bool(secret.get("defaultMode", 0o644) & 0o004)
    return secret["secretName"], others or context["runAsUser"] == 0 or "fsGroup" in context


def paths(told: dict[str, Any]) -> list[str]:
    return [value for section in told.values() for value in section.values() if isinstance(value, str)]


def test_variables_of_services_never_read_as_settings(rendered: list[dict[str, Any]]) -> None:
    assert [name for name, pod in pods(rendered) if pod.get("enableServiceLinks") is not False] == []


def test_what_it_applies_is_what_the_server_then_has(clusters: tuple[Cluster, Cluster]) -> None:
    assert clusters[0].kubectl("diff", "-k", str(DEPLOY)) == ""


def test_three_etcds_are_taken_by_a_server_in_place_of_one_and_processes_write_to_each(
    clusters: tuple[Cluster, Cluster], with_three_etcds: Path
) -> None:
    cluster, deletion = clusters[0], ("-n", SYSTEM, "delete", "statefulset", "isthmus-etcd")
    cluster.kubectl(*deletion)
    try:
        cluster.kubectl("apply", "-k", str(with_three_etcds))
        assert cluster.kubectl("diff", "-k", str(with_three_etcds)) == ""
        etcd = cluster.get("-n", SYSTEM, "statefulset", "isthmus-etcd")["spec"]
        assert (etcd["replicas"], etcd["podManagementPolicy"]) == (3, "Parallel")
        found = [cluster.get("-n", SYSTEM, "service", f"isthmus-etcd-{number}") for number in range(3)]
        labels = [each["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] for each in found]
        assert labels == ["isthmus-etcd-0", "isthmus-etcd-1", "isthmus-etcd-2"]
        urls = tuple(f"https://{name}.{SYSTEM}.svc:2379" for name in labels)
        assert {urlsplit(each).hostname for each in urls} <= {
            host for name in hosts.REPLICAS for host in hosts.names(name, SYSTEM)
        }, "certificates are valid for them"
        for process in ("operator", "keys", "mirror"):
            pod = cluster.get("-n", SYSTEM, "deployment", f"isthmus-{process}")["spec"]["template"]["spec"]
            [variable] = pod["containers"][0]["env"]
            file = with_three_etcds / "config" / f"{process}.toml"
            given = {**environment("c1", 1), variable["name"]: variable["value"]}
            assert config.load(file, environment=given).etcd.replicas == urls
    finally:
        cluster.kubectl(*deletion)
        for number in range(3):
            cluster.kubectl("-n", SYSTEM, "delete", "service", f"isthmus-etcd-{number}")
        cluster.kubectl("apply", "-k", str(DEPLOY))


def leads(port: int) -> bool:
    return "isthmus_operator_leader 1.0" in body(port, "/metrics")


@pytest.fixture(scope="module")
def joined(clusters: tuple[Cluster, Cluster]) -> tuple[Cluster, Cluster]:
    """The walk is taken, and in each cluster an operator leads."""
    c1, c2 = clusters
    for cluster in clusters:
        assert "users root, operator, mirror and local are there" in cluster.clusters("certs")
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(NAMESPACE))
    c1.join(c2)
    for cluster in clusters:
        cluster.secrets()
    for port in [cluster.operator() for cluster in clusters]:
        until(partial(answers, port, "/readyz"), seconds=120, what="an operator that is ready")
        until(partial(leads, port), seconds=120, what="an operator that leads")
    return clusters


def test_two_clusters_are_joined_and_the_operators_have_the_rights_they_use_and_no_other(
    joined: tuple[Cluster, Cluster],
) -> None:
    c1, c2 = joined
    exported(c1)
    imported = until(lambda: with_address(c2), what="the import in c2")
    assert [each["cluster"] for each in imported["status"]["clusters"]] == ["c1"]
    until(lambda: "10.1.1.5" in addresses(c2), what="the endpoint of c1 in c2")
    until(lambda: conditions(c1) == {"Valid": "True", "Ready": "True", "Conflict": "False"}, what="c1's conditions")

    c2.kubectl("-n", "demo", "patch", "svcim", "echo", "--type=merge", "-p", '{"spec":{"ports":[{"port":81}]}}')
    until(lambda: c2.get("-n", "demo", "svcim", "echo")["spec"]["ports"][0]["port"] == 80, what="the edit undone")

    c2.kubectl("apply", "-f", "-", stdin=json.dumps(POLICY))
    until(lambda: is_accepted(c2), what="the policy's status")
    c2.kubectl("apply", "-f", "-", stdin=json.dumps(CALLERS))
    until(lambda: is_accepted(c2, "exportpolicy", "callers"), what="the status of the policy of callers")

    for route in ROUTES:
        c2.kubectl("apply", "-f", "-", stdin=json.dumps(route))
    for kind in ("tcproute", "udproute"):
        until(
            lambda: c2.get("-n", "demo", kind, "echo").get("status", {}).get("parents"),  # noqa: B023
            what=f"the status of a {kind}",
        )

    c2.kubectl("apply", "-f", "-", stdin=json.dumps(DRAIN))
    until(lambda: is_drained(c2), what="the drain's status")
    c2.kubectl("-n", SYSTEM, "delete", "drain", "node-none")

    c2.kubectl("-n", "demo", "create", "serviceaccount", "caller")
    c2.kubectl("apply", "-f", "-", stdin=json.dumps(CALLER))
    until(lambda: c2.get("calleridentities")["items"], what="the number of the pod's account")

    edited_while_nobody_leads(c2)

    headless = {**SERVICE, "spec": {**SERVICE["spec"], "clusterIP": "None"}}
    c1.kubectl("-n", "demo", "replace", "--force", "-f", "-", stdin=json.dumps(headless))
    until(lambda: c2.get("-n", "demo", "svcim", "echo").get("spec", {}).get("type") == "Headless", what="the flip")

    for _ in range(2):  # an event that is said again is counted, with rights of its own
        before = warnings(c1)
        c1.kubectl("-n", "demo", "delete", "service", "echo")
        until(lambda: warnings(c1) > before, what="the event of an export without Service")  # noqa: B023
        c1.kubectl("apply", "-f", "-", stdin=json.dumps(headless))
        until(lambda: conditions(c1).get("Valid") == "True")

    c1.kubectl("-n", "demo", "delete", "svcex", "echo")
    until(lambda: not c2.get("-n", "demo", "svcim", "echo"), what="the import is gone")
    until(lambda: [each["metadata"]["name"] for each in c1.get("-n", "demo", "svc")["items"]] == ["echo"])
    c1.kubectl("-n", "demo", "delete", "service", "echo")

    used = [each for cluster in joined for each in cluster.audited("isthmus-operator")]
    assert [each for each in used if each[3] == 403] == []
    assert unused("isthmus-operator", used) == set()


def edited_while_nobody_leads(cluster: Cluster) -> None:
    """A new leader looks at what it finds changed before it sets it right."""
    cluster.end()
    name = cluster.get("-n", "demo", "svcim", "echo")["metadata"]["annotations"][
        "multicluster.kubernetes.io/derived-service"
    ]
    for kind in ("svcim", "service"):
        port = cluster.get("-n", "demo", kind, "echo" if kind == "svcim" else name)["spec"]["ports"][0]
        patch = json.dumps({"spec": {"ports": [{**port, "port": 81}]}})
        cluster.kubectl("-n", "demo", "patch", kind, "echo" if kind == "svcim" else name, "--type=merge", "-p", patch)
    cluster.kubectl("-n", "demo", "delete", "pod", "caller", "--grace-period=0", "--force")
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(UNUSED))
    status = json.dumps(LONG_AGO)
    cluster.kubectl("patch", "calleridentity", NUMBER, "--subresource=status", "--type=merge", "-p", status)
    cluster.operator()
    until(lambda: not cluster.get("calleridentity", NUMBER), seconds=120, what="the number of no pod deleted")
    [number] = cluster.get("calleridentities")["items"]
    until(
        lambda: cluster.get("calleridentity", number["metadata"]["name"]).get("status", {}).get("unusedSince"),
        what="the number unused whose pod has gone",
    )
    for kind, each in (("svcim", "echo"), ("service", name)):
        until(
            lambda: cluster.get("-n", "demo", kind, each)["spec"]["ports"][0]["port"] == 80,  # noqa: B023
            seconds=120,
            what=f"the edit of a {kind} undone",
        )


def test_an_agent_has_the_rights_it_uses_and_no_other_and_the_name_server_needs_none(
    joined: tuple[Cluster, Cluster],
) -> None:
    c1, c2 = joined
    exported(c1)
    [address] = until(lambda: with_address(c2), what="the import in c2")["spec"]["ips"]
    monitor, listen = free_ports(2)
    settings = ["datapath.cgroup=", "node.name=n1", f"monitor.listen=127.0.0.1:{monitor}", "identity.enabled=true"]
    c2.run("agent", *settings, f"clusterset.state={c2.folder / 'state'}", account="isthmus-agent")
    until(lambda: answers(monitor, "/readyz"), what="an agent that is ready")
    agent = f"dns.agent={c2.folder / 'agent.sock'}"
    c2.run("dns", "datapath.cgroup=", f"dns.listen=127.0.0.1:{listen}", agent)
    until(lambda: asked("echo.demo.svc.clusterset.local", listen) == {address}, what="the name in c2")

    until(lambda: unused("isthmus-agent", c2.audited("isthmus-agent")) == EVENTS, what="every right of the agent used")
    assert [each for each in c2.audited("isthmus-agent") if each[3] == 403] == []


def test_a_mirror_and_agents_behind_it_have_the_rights_they_need_in_the_own_etcd(
    joined: tuple[Cluster, Cluster],
) -> None:
    c1, c2 = joined
    exported(c1)
    until(lambda: with_address(c2), what="the import in c2")
    mirror, agent = free_ports(2)
    c2.run("mirror", f"monitor.listen=127.0.0.1:{mirror}", account="isthmus-mirror")
    until(lambda: answers(mirror, "/livez"), what="a mirror that lives")
    until(lambda: "isthmus_mirror_leader 1.0" in body(mirror, "/metrics"), what="a mirror at work")
    until(lambda: answers(mirror, "/readyz"), what="a mirror that is ready")
    mirrored = [f"clusterset.directory={c2.mirrored('c1')}", "clusterset.secret="]
    behind = [*mirrored, f"admin.socket={c2.folder / 'behind.sock'}"]
    settings = ["datapath.cgroup=", "node.name=n2", f"monitor.listen=127.0.0.1:{agent}", "clusterset.state="]
    c2.run("agent", *settings, *behind, account="isthmus-agent")
    until(lambda: answers(agent, "/readyz"), what="an agent that is ready")

    def told() -> list[Any]:
        rows = Socket(c2.folder / "behind.sock").table("endpoint_sets").rows
        return [each for each in rows if each["cluster"] == "c1" and each["source"] == "clusterset"]

    until(told, what="the endpoints of c1, behind the mirror")
    logs = [(c2.folder / f"{each}.log").read_text() for each in ("mirror", "agent")]
    assert not any("permission denied" in each for each in logs)
    assert unused("isthmus-mirror", c2.audited("isthmus-mirror")) == set()
    assert [each for each in c2.audited("isthmus-mirror") if each[3] == 403] == []


def test_a_gateway_has_the_rights_it_uses_and_no_other(joined: tuple[Cluster, Cluster]) -> None:
    c1, _ = joined
    exported(c1)
    c1.kubectl("-n", SYSTEM, "create", "serviceaccount", "isthmus-gateway")
    made = yaml.safe_load_all((DEPLOY / "islands" / "gateway.yaml").read_text())
    bindings = [json.dumps(each) for each in made if each["kind"].endswith("Binding")]
    for each in ((DEPLOY / "islands" / "rbac.yaml").read_text(), *bindings):
        c1.kubectl("-n", SYSTEM, "apply", "-f", "-", stdin=each)
    monitor, listen = free_ports(2)
    settings = [f"monitor.listen=127.0.0.1:{monitor}", f"gateway.listen=127.0.0.1:{listen}"]
    folders = [f"proxy.directory={c1.folder / 'envoy'}", f"gateway.identity={c1.keys}", "identity.enabled=true"]
    c1.run("gateway", *settings, *folders, account="isthmus-gateway")
    until(lambda: answers(monitor, "/readyz"), what="a gateway that is ready")
    until(lambda: "isthmus_gateway_exports 1.0" in body(monitor, "/metrics"), what="the export")
    gateway = Socket(c1.folder / "gateway.sock")
    assert gateway.status()["members"] == ["c2"]
    c1.kubectl("apply", "-f", "-", stdin=json.dumps(CALLERS))  # of c1 alone
    until(
        lambda: any(each["name"].endswith(" restricted") for each in gateway.table("xds").rows),
        what="the export is for the clusters that the policy allows",
    )
    c1.kubectl("-n", "demo", "delete", "exportpolicy", "callers")
    until(lambda: unused("isthmus-gateway", c1.audited("isthmus-gateway")) == set(), what="every right used")
    assert [each for each in c1.audited("isthmus-gateway") if each[3] == 403] == []
    c1.kubectl("-n", "demo", "delete", "svcex,service,endpointslice", "--all")


def exported(cluster: Cluster) -> None:
    for each in (SERVICE, SLICE, EXPORT):
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(each))


def with_address(cluster: Cluster) -> dict[str, Any]:
    found = cluster.get("-n", "demo", "svcim", "echo")
    return found if found.get("spec", {}).get("ips") and found.get("status", {}).get("clusters") else {}


def addresses(cluster: Cluster) -> set[str]:
    slices = cluster.get("-n", "demo", "endpointslices", "-l", "multicluster.kubernetes.io/service-name=echo")["items"]
    return {address for each in slices for end in each.get("endpoints") or () for address in end["addresses"]}


def conditions(cluster: Cluster) -> dict[str, str]:
    found = cluster.get("-n", "demo", "svcex", "echo").get("status", {}).get("conditions", ())
    return {each["type"]: each["status"] for each in found}


def is_accepted(cluster: Cluster, kind: str = "trafficpolicy", name: str = "echo") -> bool:
    found = cluster.get("-n", "demo", f"{kind}.isthmus.io", name).get("status", {}).get("conditions", ())
    return any(each["type"] == "Accepted" and each["status"] == "True" for each in found)


def is_drained(cluster: Cluster) -> bool:
    found = cluster.get("-n", SYSTEM, "drain", "node-none").get("status", {}).get("conditions", ())
    return any(each["type"] == "Drained" and each["status"] == "True" for each in found)


def warnings(cluster: Cluster) -> int:
    """How often exports were said to be wrong."""
    events = cluster.get("-n", "demo", "events")["items"]
    exports = [each for each in events if each["involvedObject"]["kind"] == "ServiceExport"]  # others have no count
    return sum(int(each["count"]) for each in exports if each["type"] == "Warning")


def asked(name: str, port: int) -> set[str]:
    """The addresses a name server has for a name."""
    try:
        answer = dns.query.udp(dns.message.make_query(name, "A"), "127.0.0.1", port=port, timeout=5)
    except (OSError, dns.exception.DNSException):
        return set()
    return {str(each) for found in answer.answer for each in found}


def answers(port: int, path: str) -> bool:
    try:
        return bool(body(port, path)) or True
    except (OSError, urllib.error.HTTPError):
        return False


def body(port: int, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as answer:
        return str(answer.read().decode())


def test_everything_namespaced_is_in_one_namespace(rendered: list[dict[str, Any]]) -> None:
    namespaces = {each["metadata"].get("namespace") for each in rendered}
    assert namespaces == {SYSTEM, None}
