"""One command connects clusters, with rights that reach no Secret: real API servers, etcds, keepers and operators."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.exported_echo import EXPORT, SERVICE, SLICE
from clusters.joined import SYSTEM, unused
from clusters.linked import Laptop, LinkedCluster, linked
from cryptography import x509
from labs.lab_running import until
from machine import programs
from peers.etcd_server import free_ports

from isthmus.admin.query import NoTable, Socket, Unreachable
from isthmus.clusterset import certificates
from isthmus.clusterset.links import requests
from isthmus.clusterset.peers import Directory, Peer
from isthmus.clusterset.records import keys
from isthmus.etcd import Credentials, Denied, Session, Tls, access
from isthmus.identity import pairs
from isthmus.model.names import ClusterName
from isthmus.reflector import Transient
from isthmus.sources import secret_files

pytestmark = pytest.mark.kube

SHORT = 40.0
"""Seconds of a certificate that the test outlives."""

World = tuple[LinkedCluster, LinkedCluster, Laptop]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("linked")
    with linked(folder, Path(programs.path("kube-apiserver"))) as (c1, c2):
        for cluster in (c1, c2):
            asyncio.run(cluster.server.ready())
            cluster.install()
        for cluster in (c1, c2):
            until(lambda: cluster.get("-n", SYSTEM, "configmap", "isthmus-cluster-info"), what="the cluster's own info")  # noqa: B023
        yield c1, c2, Laptop(folder, c1, c2)


@pytest.fixture
def connected(world: World) -> World:
    code, _, errors = world[2].isthmus("connect", "c1", "c2")
    assert code == 0, errors
    return world


def versions(*clusters: LinkedCluster) -> list[str]:
    found = [cluster.get("clusterlink")["items"] for cluster in clusters]
    return [each["metadata"]["resourceVersion"] for items in found for each in items]


def test_one_command_with_rights_to_no_secret_connects_two_clusters(world: World) -> None:
    c1, c2, laptop = world
    for context in ("c1", "c2"):
        for verb in ("get", "list", "watch"):
            assert not laptop.can(context, verb, "secrets", "-n", SYSTEM)
    code, output, _ = laptop.isthmus("connect", "c1", "c2", "--dry-run")
    assert (code, output.count("would be created")) == (0, 2)
    assert not c1.get("clusterlink", "c2")
    code, _, errors = laptop.isthmus("connect", "c1", "c2")
    assert code == 0, errors
    assert "c1: ClusterLink c2: Ready" in errors
    assert c1.ready("c2")
    assert c2.ready("c1")
    for each in (SERVICE, SLICE, EXPORT):
        c1.kubectl("apply", "-f", "-", stdin=json.dumps(each))
    until(lambda: c2.imported() == ["10.1.1.5"], what="the endpoint of c1 in c2")


def test_to_connect_again_changes_nothing(connected: World) -> None:
    c1, c2, laptop = connected
    until(lambda: c1.ready("c2") and c2.ready("c1"), what="ready links")
    before = versions(c1, c2)
    code, output, _ = laptop.isthmus("connect", "c1", "c2", "--dry-run")
    assert (code, output.count("is up to date")) == (0, 2)
    code, _, errors = laptop.isthmus("connect", "c1", "c2")
    assert code == 0, errors
    assert versions(c1, c2) == before


def test_nothing_of_a_link_and_of_what_connect_reads_is_secret(connected: World) -> None:
    c1, c2, _ = connected
    for cluster in (c1, c2):
        shown = cluster.kubectl("get", "clusterlink", "-o", "yaml")
        shown += cluster.kubectl("-n", SYSTEM, "get", "configmap", "isthmus-cluster-info", "-o", "yaml")
        assert "PRIVATE" not in shown
        hidden = [text for name in ("isthmus-keys", "isthmus-links") for text in cluster.secret(name).values()]
        for text in (each.decode() for each in hidden if b"CERTIFICATE" not in each and len(each) > 16):
            lines = [line for line in text.splitlines() if line and not line.startswith("-")]
            digests = all(each in "0123456789abcdef" for each in text)
            assert digests or not any(line in shown for line in lines)


def test_connected_clusters_share_secrets_of_signatures_by_what_their_operators_publish(connected: World) -> None:
    c1, c2, _ = connected
    ours, theirs = (
        pairs.decode(until(lambda: one.secret("isthmus-pair-keys").get(other.name), what="the pair's secrets"))  # noqa: B023
        for one, other in ((c1, c2), (c2, c1))
    )
    assert (ours.send, ours.receive) == (theirs.receive, theirs.send)
    assert ours.send != ours.receive


def test_the_links_of_both_sides_are_printed_for_gitops_as_they_are(connected: World) -> None:
    c1, c2, laptop = connected
    code, output, errors = laptop.isthmus("connect", "c1", "c2", "-o", "yaml")
    assert (code, errors) == (0, "")
    printed = [each for each in yaml.safe_load_all(output) if each]
    assert [each["metadata"]["name"] for each in printed] == ["c2", "c1"]
    for cluster, each in ((c1, printed[0]), (c2, printed[1])):
        assert cluster.link(each["metadata"]["name"])["spec"] == each["spec"]


def test_a_request_that_changed_is_not_signed_without_the_administrators_word(connected: World) -> None:
    c1, c2, laptop = connected
    c2.kubectl("-n", SYSTEM, "delete", "secret", "isthmus-links")
    request = c1.link("c2")["spec"]["request"]
    until(lambda: c2.link("c1")["status"]["request"] != request, what="a new key of c2")
    code, _, errors = laptop.isthmus("connect", "c1", "c2")
    assert code == 1
    assert "cluster c2 has another key" in errors
    assert c1.link("c2")["spec"]["request"] == request
    code, _, errors = laptop.isthmus("connect", "c1", "c2", "--accept-new-keys")
    assert code == 0, errors


def test_an_unreadable_key_costs_its_link_alone_and_none_that_the_peers_files_still_have(connected: World) -> None:
    c1, _, _ = connected
    bundle, key = c1.link("c2")["spec"]["caBundle"], c1.secret("isthmus-links")["c2.key"]
    c1.kubectl("apply", "-f", "-", stdin=_link("c9", spec(caBundle=bundle)))
    request = until(lambda: c1.link("c9").get("status", {}).get("request"), what="a request for c9")
    damage = json.dumps({"data": {"c9.key": "eA==", "c2.key": "eA=="}})
    c1.kubectl("-n", SYSTEM, "patch", "secret", "isthmus-links", "--type=merge", "-p", damage)
    c1.kubectl("patch", "clusterlink", "c2", "--type=merge", "-p", json.dumps({"spec": {"namespaces": ["demo"]}}))
    until(lambda: "UnreadableKey" in json.dumps(c1.link("c9")["status"]), what="the reason at the link")
    generation = c1.link("c2")["metadata"]["generation"]

    def ready(name: str) -> dict[str, Any]:
        [found] = [each for each in c1.link(name)["status"]["conditions"] if each["type"] == "Ready"]
        return dict(found)

    until(lambda: ready("c2")["observedGeneration"] == generation, what="the other link, served")
    assert ready("c2")["status"] == "True"
    assert c1.secret("isthmus-links")["c2.key"] == key
    assert "isthmus connect --accept-new-keys" in ready("c9")["message"]
    assert c1.link("c9")["status"]["request"] == request
    remove = json.dumps([{"op": "remove", "path": "/data/c9.key"}])
    c1.kubectl("-n", SYSTEM, "patch", "secret", "isthmus-links", "--type=json", "-p", remove)
    until(lambda: c1.link("c9")["status"]["request"] not in ("", request), what="a request for a new key")
    c1.kubectl("delete", "clusterlink", "c9")
    c1.kubectl("patch", "clusterlink", "c2", "--type=json", "-p", '[{"op": "remove", "path": "/spec/namespaces"}]')


def test_links_with_the_worst_values_that_a_server_admits_cost_no_other_link(connected: World) -> None:
    c1, _, _ = connected
    bundle, request = c1.link("c2")["spec"]["caBundle"], c1.link("c2")["spec"]["request"]
    bad = {
        "c" * 32: spec(id=255, caBundle="\N{SNOWMAN}" * 5_000),
        "b1": spec(id=11, caBundle=bundle, request="-----BEGIN CERTIFICATE REQUEST-----" * 100),
        "b2": spec(id=12, caBundle=bundle, certificate=request),
        "b3": spec(id=13, caBundle=request * 10),
        "b4": spec(id=14, endpoints=None, gateways=[f"{'a' * 250}:99999"] * 16),
        "b0": spec(id=511, caBundle=bundle),
        "b5": spec(id=15, endpoints=["https://[::1:2379"], podRanges=["::::/999"] * 64),
        "b6": spec(id=2, caBundle=bundle, namespaces=["*" * 63] * 64),
        "c1": spec(id=17),
    }
    for name, each in bad.items():
        c1.kubectl("apply", "-f", "-", stdin=_link(name, each))
    c1.kubectl("patch", "clusterlink", "c2", "--type=merge", "-p", json.dumps({"spec": {"namespaces": ["demo"]}}))
    until(lambda: "demo" in c1.secret("isthmus-peers")["c2"].decode(), what="the change of the good link, used")
    assert c1.ready("c2")
    assert {file.partition(".")[0] for file in c1.secret("isthmus-peers")} == {"c2"}
    reasons = {
        name: until(lambda: c1.link(name)["status"]["conditions"], what=f"a verdict on {name}")[0]["reason"]  # noqa: B023
        for name in bad
    }
    assert reasons == {
        "c" * 32: "InvalidCertificate", "b1": "InvalidRequest", "b2": "InvalidCertificate", "b3": "InvalidCertificate",
        "b0": "IdTaken", "b4": "Invalid", "b5": "Invalid", "b6": "IdTaken", "c1": "NameTaken",
    }  # fmt: skip
    c1.kubectl("delete", "clusterlink", *bad)
    c1.kubectl("patch", "clusterlink", "c2", "--type=json", "-p", '[{"op": "remove", "path": "/spec/namespaces"}]')


def test_a_peers_etcd_that_never_answers_delays_no_other_link(connected: World) -> None:
    c1, _, _ = connected
    authority = certificates.authority("c9")
    with Silent(authority) as silent:
        fields = {"id": 9, "endpoints": [silent.url], "caBundle": authority.certificate.decode()}
        c1.kubectl("apply", "-f", "-", stdin=_link("c9", fields))
        request = until(lambda: c1.link("c9").get("status", {}).get("request"), what="a request for c9")
        fields["certificate"] = requests.sign(authority, request, "remote-c1", days=1)
        c1.kubectl("apply", "-f", "-", stdin=_link("c9", fields))
        silent.called.wait(60)
        ended = silent.ended
        c1.kubectl("patch", "clusterlink", "c2", "--type=merge", "-p", json.dumps({"spec": {"namespaces": ["demo"]}}))
        until(lambda: "demo" in c1.secret("isthmus-peers")["c2"].decode(), what="the change of the good link, used")
        assert silent.ended == ended, "while the look into the silent etcd goes on"
    c1.kubectl("delete", "clusterlink", "c9")
    c1.kubectl("patch", "clusterlink", "c2", "--type=json", "-p", '[{"op": "remove", "path": "/spec/namespaces"}]')


class Silent:
    """An etcd with a valid certificate that begins HTTP/2 and answers no call."""

    SETTINGS = bytes.fromhex("000000040000000000")

    def __init__(self, authority: certificates.Pair) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.set_alpn_protocols(["h2"])
        self._context.load_verify_locations(cadata=authority.certificate.decode())
        pair = certificates.issue(authority, "etcd", hosts=("etcd.c9.clusterset.local",))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "pair"
            path.write_bytes(pair.certificate + pair.key)
            self._context.load_cert_chain(path)
        self.called = threading.Event()
        self.ended = 0
        """Calls that the client has given up."""

    def __enter__(self) -> Silent:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"https://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                accepted, _ = self._socket.accept()
                threading.Thread(target=self._hold, args=(accepted,), daemon=True).start()

    def _hold(self, accepted: socket.socket) -> None:
        with suppress(OSError), self._context.wrap_socket(accepted, server_side=True) as connection:
            connection.sendall(self.SETTINGS)
            self.called.set()
            while connection.recv(65_536):
                pass
            self.ended += 1


def test_what_one_cluster_signs_opens_the_others_records_and_nothing_else(connected: World) -> None:
    _, c2, _ = connected
    files = c2.secret("isthmus-peers")
    certificate = x509.load_pem_x509_certificate(files["c1.crt"])
    assert certificate.subject.rfc4514_string() == "CN=remote-c2"
    assert "password" not in yaml.safe_load(files["c1"])
    asyncio.run(_reads_what_it_may(_peer_of(c2)))


def _peer_of(c2: LinkedCluster) -> Peer:
    """The cluster c1 as the processes of c2 reach it."""
    folder = c2.folder / "as-a-peer"
    secret_files.write(folder, c2.secret("isthmus-peers"))
    return Directory(str(folder), own=ClusterName("c2")).read()[ClusterName("c1")]


async def _certificate(peer: Peer) -> bytes:
    try:
        async with peer.session() as session:
            found = await session.get(keys.certificate(ClusterName("c1"), ClusterName("c2")))
    except Transient:
        return b""
    return found.value if found is not None else b""


async def _reads_what_it_may(peer: Peer) -> None:
    async with peer.session() as session:
        assert (await session.list("cilium/state/serviceexports/v1/c1/")).revision
        for key in ("isthmus/join/x", "/registry/x", "cilium/cache/x"):
            with pytest.raises(Denied):
                await session.get(key)
        with pytest.raises(Denied):
            await session.put("cilium/state/services/v1/c1/demo/echo", b"{}")


def test_an_etcd_that_lost_its_data_has_the_peers_user_again(connected: World) -> None:
    c1, c2, _ = connected
    before = c2.secret("isthmus-peers")["c1.crt"]
    c1.etcd.stop()
    c1.etcd.wipe()
    c1.etcd.start()
    until(lambda: "remote-c2" in asyncio.run(_users(c1)), what="the user of c2")
    peer = _peer_of(c2)
    until(lambda: asyncio.run(_certificate(peer)), what="its certificate, readable by it")
    assert c2.secret("isthmus-peers")["c1.crt"] == before, "and nothing was exchanged anew"


def test_the_keeper_gives_agents_the_access_to_a_mirrors_copies_and_to_nothing_else(connected: World) -> None:
    c1, c2, _ = connected
    for each in (SERVICE, SLICE, EXPORT):
        c1.kubectl("apply", "-f", "-", stdin=json.dumps(each))
    c2.mount("isthmus-etcd-mirror")
    mirror, agent = free_ports(2)
    c2.run("mirror", f"monitor.listen=127.0.0.1:{mirror}", account="isthmus-mirror")
    folders = [f"clusterset.directory={c2.folder / 'mirrored'}", "clusterset.state="]
    settings = ["datapath.cgroup=", "node.name=n1", "clusterset.through_mirror=true", *folders]
    c2.run("agent", *settings, f"monitor.listen=127.0.0.1:{agent}", account="isthmus-agent")

    def followed() -> list[Any]:
        try:
            rows = Socket(c2.folder / "agent.sock").table("endpoint_sets").rows
        except (NoTable, Unreachable):  # it has just begun
            return []
        return [each for each in rows if each["cluster"] == "c1" and each["source"] == "clusterset"]

    until(followed, what="the endpoints of c1, behind the mirror")
    files = c2.secret("isthmus-mirrored")
    assert yaml.safe_load(files["c1"])["endpoints"] == [c2.etcd.endpoint]
    assert files["c1.ca.crt"] == c2.secret("isthmus-peers")["c1.ca.crt"], "gateways of c1 are judged by its authority"
    assert sorted(files) == ["c1", "c1.ca.crt", "etcd.crt", "local.crt", "local.key"]


def test_a_certificate_of_short_life_is_renewed_without_a_laptop(world: World) -> None:
    c1, c2, laptop = world
    assert laptop.isthmus("disconnect", "c1", "c2")[0] == 0
    for cluster in (c1, c2):
        _restart_keeper(cluster, lifetime=SHORT)
        until(lambda: not cluster.secret("isthmus-links"), what="the keys of the link gone")  # noqa: B023
    code, _, errors = laptop.isthmus("connect", "c1", "c2")
    assert code == 0, errors

    def ends() -> datetime:
        return x509.load_pem_x509_certificate(c2.secret("isthmus-peers")["c1.crt"]).not_valid_after_utc

    specs = [cluster.get("clusterlink")["items"][0]["spec"] for cluster in (c1, c2)]
    first = ends()
    until(lambda: ends() > first, seconds=180, what="a certificate that ends later")
    second = ends()
    until(lambda: ends() > second, seconds=180, what="and one more")
    assert [cluster.get("clusterlink")["items"][0]["spec"] for cluster in (c1, c2)] == specs


def _restart_keeper(cluster: LinkedCluster, *, lifetime: float) -> None:
    cluster.keeper.terminate()
    cluster.keeper.wait(60)
    cluster.processes.remove(cluster.keeper)
    cluster.lifetime = lifetime
    cluster.run_keys()


def test_a_keeper_and_whoever_connects_have_the_rights_they_use_and_no_other(connected: World) -> None:
    c1, _, _ = connected
    assert [each for each in c1.audited("isthmus-keys") if each[3] == 403] == []
    # A cluster without the kind, and none of whose authorities is rotated.
    elsewhere = {("about.k8s.io", "clusterproperties", "get"), ("apps", "statefulsets", "patch")}
    assert unused("isthmus-keys", c1.audited("isthmus-keys")) == elsewhere
    assert [each for each in c1.audited("connector") if each[3] == 403] == []
    asked = {resource for _, resource, _, _ in c1.audited("connector")} - {"selfsubjectaccessreviews"}
    assert asked == {"clusterlinks", "configmaps"}


def test_to_disconnect_withdraws_everything_on_both_sides(connected: World) -> None:
    c1, c2, laptop = connected
    code, _, errors = laptop.isthmus("disconnect", "c1", "c2")
    assert code == 0, errors
    until(lambda: c2.imported() == [], what="the endpoints of c1 gone from c2")
    for cluster in (c1, c2):
        until(lambda: not cluster.secret("isthmus-peers"), what="the peer's files gone")  # noqa: B023
        until(lambda: not cluster.secret("isthmus-links"), what="the keys of the link gone")  # noqa: B023
        until(lambda: "c1" not in c2.secret("isthmus-mirrored"), what="no access to copies of c1")
    assert unused("isthmus-connect", c1.audited("connector")) == set()
    users = asyncio.run(_users(c1))
    assert ("root" in users, "remote-c2" in users) == (True, False)
    code, _, errors = laptop.isthmus("disconnect", "c1", "c2")
    assert (code, errors.count("does not exist")) == (0, 2)


async def _users(cluster: LinkedCluster) -> set[str]:
    folder = cluster.folder / "run" / "keys"
    tls = Tls(str(folder / "ca.crt"), str(folder / "admin.crt"), str(folder / "admin.key"))
    root = Credentials("root", (folder / "root.password").read_text())
    try:
        async with Session([cluster.etcd.endpoint], tls=tls, credentials=root) as session:
            return await access.users(session)
    except Transient:
        return set()


def spec(**fields: Any) -> dict[str, Any]:
    known = {"id": 9, "endpoints": ["https://192.0.2.9:2379"], "caBundle": "x", **fields}
    return {field: value for field, value in known.items() if value is not None}


def test_connect_waits_for_the_address_of_a_load_balancer(world: World) -> None:
    _, c2, laptop = world
    info = ("-n", SYSTEM, "configmap", "isthmus-cluster-info")
    address = c2.get(*info)["data"]["endpoints"]
    c2.keeper.send_signal(signal.SIGSTOP)
    try:
        c2.kubectl("patch", *info[2:], *info[:2], "--patch", json.dumps({"data": {"endpoints": "[]"}}))
        code, _, errors = laptop.isthmus("connect", "c1", "c2", "--no-wait")
        assert (code, "Name one: --endpoint c2=https://HOST:PORT" in errors) == (1, True)
        code, _, errors = laptop.isthmus("connect", "c1", "c2", "--timeout=1")
        assert (code, "c2: waiting for an address" in errors) == (1, True)
        assert not c2.get("clusterlink", "c1")
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(laptop.isthmus, "connect", "c1", "c2")
            c2.keeper.send_signal(signal.SIGCONT)
            code, _, errors = waiting.result()
        assert code == 0, errors
    finally:
        c2.keeper.send_signal(signal.SIGCONT)
    assert c2.get(*info)["data"]["endpoints"] == address


def test_the_api_server_refuses_what_no_link_can_have(world: World) -> None:
    c1, _, _ = world
    bad = {
        "default": spec(),
        "under-dash-": spec(),
        "a" * 33: spec(),
        "both": spec(gateways=["192.0.2.9:15443"]),
        "neither": spec(endpoints=None),
        "no-id": spec(id=None),
        "large-id": spec(id=512),
        "no-bundle": spec(caBundle=None),
        "large-bundle": spec(caBundle="x" * 16_385),
        "http": spec(endpoints=["http://192.0.2.9:2379"]),
        "path": spec(endpoints=["https://192.0.2.9:2379/x"]),
        "many": spec(endpoints=["https://192.0.2.9:2379"] * 17),
        "many-ranges": spec(podRanges=["10.0.0.0/8"] * 65),
        "no-range": spec(podRanges=["10.0.0.0"]),
        "namespace": spec(namespaces=["Demo"]),
        "large-request": spec(request="x" * 4_097),
        "large-certificate": spec(certificate="x" * 8_193),
    }
    accepted = []
    for name, each in bad.items():
        try:
            c1.kubectl("apply", "--dry-run=server", "-f", "-", stdin=_link(name, each))
        except AssertionError:
            continue
        accepted.append(name)
    assert accepted == []
    c1.kubectl("apply", "-f", "-", stdin=_link("c9", spec()))
    with pytest.raises(AssertionError, match="the id of a peer never changes"):
        c1.kubectl("apply", "-f", "-", stdin=_link("c9", spec(id=8)))
    c1.kubectl("delete", "clusterlink", "c9")


def _link(name: str, fields: dict[str, Any]) -> str:
    body = {"apiVersion": "isthmus.io/v1alpha1", "kind": "ClusterLink", "metadata": {"name": name}, "spec": fields}
    return json.dumps(body)
