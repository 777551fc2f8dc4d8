"""What a gateway's tables come to, without Envoy: resources, secrets, what Envoy found and refused."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from meshes.route_world import C2
from msgspec.structs import replace

from isthmus.clusterset import certificates
from isthmus.gateway import checks, exports, tls
from isthmus.gateway.exports import GatewaySettings
from isthmus.gateway.naming import service_sni, services_suffix
from isthmus.gateway.refusals import REASONS, FailedConnection, Refusals
from isthmus.gateway.secrets import KEEP, Identity, Secrets, read_bundles
from isthmus.mcs.words import IMPORTERS
from isthmus.model.clusters import Cluster
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.hosts import Endpoint as Address
from isthmus.model.islands import TrustBundle
from isthmus.model.mcs import OwnExport
from isthmus.model.names import ClusterName, ServiceName, pod_id
from isthmus.model.services import Condition, Endpoint, EndpointSet, Export, Port
from isthmus.model.tables import (
    CLUSTERS,
    EXPORT_POLICIES,
    GATEWAY_CHECKS,
    OWN_EXPORTS,
    PEER_POLICIES,
    TRUST_BUNDLES,
    XDS,
)
from isthmus.netlink import sock_diag
from isthmus.processes.start import tables_of
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import message
from isthmus.proxy.process import Host, HostHealth
from isthmus.proxy.protocols import http_version
from isthmus.proxy.rules import problem
from isthmus.statedb import Database, Derivations

DOMAIN = "clusterset.local"
OF = GatewaySettings(C2, DOMAIN, (Address("127.0.0.1", 15443),), Path("/run/isthmus/gateway"))
ECHO = ServiceName("demo/echo")


def export(*, importers: str | None = None, **fields: Any) -> Export:
    notes = ((IMPORTERS, importers),) if importers is not None else ()
    defaults: dict[str, Any] = {"ports": (Port("", 80),), "annotations": notes}
    return Export(cluster=C2, name=ECHO, created="", **(defaults | fields))


def pods(*conditions: Condition) -> EndpointSet:
    each = tuple(Endpoint(f"10.1.0.{n}", (Port("", 8080),), kind) for n, kind in enumerate(conditions, 1))
    return EndpointSet(service=ECHO, cluster=C2, source="kubernetes", part="slice", endpoints=each)


def addresses(*rows: Any) -> list[str]:
    [found] = [row for row in rows if row.type == "endpoints"]
    body = message(MESSAGES["endpoints"]).FromString(found.body)
    return [host.endpoint.address.socket_address.address for part in body.endpoints for host in part.lb_endpoints]


def chains(
    *exported: OwnExport, members: tuple[str, ...] = ("c1", "c3"), sets: Iterable[EndpointSet] = ()
) -> dict[str, set[str]]:
    """Chain → who comes to it, as member/SNI."""
    rows = [each.export for each in exported if each.export is not None]
    apart = [(each, exports.call_targets(each, sets, DOMAIN)) for each in rows]
    row = exports.listener(OF, apart, [ClusterName(each) for each in members])
    assert problem(MESSAGES["listener"], row.body) == ""
    found = message(MESSAGES["listener"]).FromString(row.body)
    chosen: dict[str, set[str]] = {chain.name: set() for chain in found.filter_chains}
    top = found.filter_chain_matcher
    for alpn, on_match in top.matcher_tree.prefix_match_map.map.items() if members else ():
        of_member(on_match.matcher, alpn.strip("'").partition(".")[0], chosen)
    of_member(top.on_no_match.matcher if members else top, "?", chosen)
    return chosen


def of_member(matcher: Any, member: str, chosen: dict[str, set[str]]) -> None:
    """Add what a member's matcher chooses; a chain that the listener has not is a KeyError."""
    for sni, on_match in matcher.matcher_tree.exact_match_map.map.items():
        chosen[on_match.action.name].add(f"{member}/{sni}")
    [last] = matcher.on_no_match.matcher.matcher_list.matchers
    chosen[last.on_match.action.name].add(f"{member}/*{last.predicate.single_predicate.value_match.suffix}")


HEALTH = f"health.c2.{DOMAIN}"
PLAIN = {
    "services c1": {f"c1/*.tcp.{DOMAIN}"},
    "services c3": {f"c3/*.tcp.{DOMAIN}"},
    "health c1": {f"c1/{HEALTH}"},
    "health c3": {f"c3/{HEALTH}"},
    "refused": {f"?/*.tcp.{DOMAIN}", f"?/{HEALTH}"},
}
"""Who comes where while nothing is exported to some clusters alone, or by HTTP."""


@pytest.mark.parametrize(
    ("conditions", "want"),
    [
        ([Condition.READY, Condition.NOT_READY, Condition.TERMINATING], ["10.1.0.1"]),
        ([Condition.TERMINATING, Condition.GONE], ["10.1.0.1"]),
        ([Condition.NOT_READY, Condition.GONE], []),
        ([], []),
    ],
)
def test_ready_pods_are_called_and_ending_ones_where_there_is_none(
    conditions: list[Condition], want: list[str]
) -> None:
    rows = list(exports.of_export(export(), [pods(*conditions)], OF))
    assert addresses(*rows) == want
    assert [problem(MESSAGES[row.type], row.body) for row in rows] == ["", ""]


def test_a_port_of_udp_shares_a_chain_with_others_and_has_a_cluster_that_no_sni_can_name() -> None:
    row = OwnExport(name=ECHO, export=export(ports=(Port("", 53, "UDP"),)))
    sni = service_sni(ECHO, 53, DOMAIN, protocol="UDP")
    assert chains(row) == PLAIN | {"udp c1": {f"c1/{sni}"}, "udp c3": {f"c3/{sni}"}}
    assert row.export is not None
    [cluster] = {each.name for each in exports.of_export(row.export, [], OF)}
    assert cluster == f"{sni} udp"
    assert not cluster.endswith(services_suffix(DOMAIN, "UDP"))


def test_ports_of_sctp_have_no_cluster() -> None:
    sctp = export(ports=(Port("", 53, "SCTP"),))
    assert list(exports.of_export(sctp, [pods(Condition.READY)], OF)) == []


def replicas(*ready: tuple[str, str]) -> EndpointSet:
    """Pods by hostname and address, on port 8080."""
    each = tuple(Endpoint(address, (Port("", 8080),), hostname=hostname) for hostname, address in ready)
    return EndpointSet(service=ECHO, cluster=C2, source="kubernetes", part="slice", endpoints=each)


def test_each_pod_of_a_headless_export_is_called_by_an_sni_that_a_pod_in_its_place_has_too() -> None:
    rows = list(exports.of_export(export(type="Headless"), [replicas(("web-0", "10.1.0.1"), ("", "10.1.0.2"))], OF))
    first = service_sni(ECHO, 8080, DOMAIN, pod=pod_id(ECHO, "web-0", "10.1.0.1"))
    other = service_sni(ECHO, 8080, DOMAIN, pod=pod_id(ECHO, "", "10.1.0.2"))
    assert {row.name for row in rows} == {first, other}
    assert [problem(MESSAGES[row.type], row.body) for row in rows] == [""] * 4
    assert addresses(*(row for row in rows if row.name == first)) == ["10.1.0.1"]
    again = exports.of_export(export(type="Headless"), [replicas(("WEB-0", "10.1.0.9"))], OF)
    assert addresses(*(row for row in again if row.name == first)) == ["10.1.0.9"]
    assert all(name.endswith(services_suffix(DOMAIN)) for name in (first, other)), "the services' chain takes it"


def test_pods_of_a_headless_export_for_some_clusters_have_a_chain_each() -> None:
    row, there = OwnExport(name=ECHO, export=export(type="Headless", importers="c3")), [replicas(("web-0", "10.1.0.1"))]
    sni = service_sni(ECHO, 8080, DOMAIN, pod=pod_id(ECHO, "web-0", ""))
    assert row.export is not None
    assert chains(row, sets=there) == PLAIN | {
        f"{sni} restricted c3": {f"c3/{sni}"},
        "refused": PLAIN["refused"] | {f"c1/{sni}"},
    }
    assert {each.name for each in exports.of_export(row.export, there, OF)} == {f"{sni} restricted"}


def test_a_port_that_a_headless_export_has_not_is_not_called() -> None:
    other = EndpointSet(
        service=ECHO,
        cluster=C2,
        source="kubernetes",
        part="slice",
        endpoints=(Endpoint("10.1.0.1", (Port("admin", 9000),), hostname="web-0"),),
    )
    assert list(exports.of_export(export(type="Headless"), [other], OF)) == []


def test_an_export_for_some_clusters_has_chains_for_these_and_no_cluster_that_an_sni_can_name() -> None:
    row = OwnExport(name=ECHO, export=export(importers="c3, c9"))
    sni = service_sni(ECHO, 80, DOMAIN)
    assert chains(row) == PLAIN | {
        f"{sni} restricted c3": {f"c3/{sni}"},
        "refused": PLAIN["refused"] | {f"c1/{sni}"},
    }
    assert row.export is not None
    [cluster] = {each.name for each in exports.of_export(row.export, [], OF)}
    assert cluster == f"{sni} restricted"
    assert not cluster.endswith(services_suffix(DOMAIN))


def test_the_chains_of_an_export_for_some_clusters_end_with_it() -> None:
    derived = exports.derived(OF)
    db = Database(*tables_of([derived]))
    derivations = Derivations(db, derived)

    def chain_names() -> set[str]:
        while derivations.step():
            pass
        [row] = [each for each in db.snapshot().all(XDS) if each.type == "listener"]
        return {chain.name for chain in message(MESSAGES["listener"]).FromString(row.body).filter_chains}

    own = OwnExport(name=ECHO, export=export(importers="c1"))
    with db.write() as txn:
        txn.put(TRUST_BUNDLES, TrustBundle((ClusterName("c1"),)))
        txn.put(OWN_EXPORTS, own)
    sni = service_sni(ECHO, 80, DOMAIN)
    assert chain_names() == {"refused", "services c1", "health c1", f"{sni} restricted c1"}
    with db.write() as txn:
        txn.delete(OWN_EXPORTS, ECHO)
    assert chain_names() == {"refused", "services c1", "health c1"}


def policy(*clusters: str, name: str = "callers", **fields: Any) -> ExportPolicy:
    rules = tuple(Allow(cluster=ClusterName(each)) for each in clusters)
    return ExportPolicy(**({"name": ServiceName(f"demo/{name}"), "allow": rules} | fields))


def callers(*policies: ExportPolicy, importers: str | None = None) -> str:
    """The members of c1, c3 and c4 that a gateway of c2 lets call the export, by its listener."""
    derived = exports.derived(OF._replace(policies=True))
    db = Database(*tables_of([derived]))
    derivations = Derivations(db, derived)
    with db.write() as txn:
        txn.put(OWN_EXPORTS, OwnExport(name=ECHO, export=export(importers=importers)))
        for each in ("c1", "c3", "c4"):
            txn.put(TRUST_BUNDLES, TrustBundle((ClusterName(each),)))
    while derivations.step():  # policies are read last, as in a gateway that runs
        pass
    with db.write() as txn:
        for judging in policies:
            txn.put(EXPORT_POLICIES, judging)
    while derivations.step():
        pass
    with db.write() as txn:  # labels change last, as when a gateway has reached its peers
        txn.put(CLUSTERS, Cluster(name=ClusterName("c3"), labels=(("class", "gold"),)))
        txn.put(CLUSTERS, Cluster(name=ClusterName("c4"), labels=(("class", "gold"), ("tier", "1"))))
    while derivations.step():
        pass
    [row] = [each for each in db.snapshot().all(XDS) if each.type == "listener"]
    names = {chain.name for chain in message(MESSAGES["listener"]).FromString(row.body).filter_chains}
    clusters = {each.name for each in db.snapshot().all(XDS) if each.type == "cluster" and each.owner != "Gateway"}
    sni = service_sni(ECHO, 80, DOMAIN)
    if sni in clusters:
        return "every member"
    return " ".join(sorted(name.rpartition(" ")[2] for name in names if name.startswith(f"{sni} restricted")))


@pytest.mark.parametrize(
    ("policies", "importers", "want"),
    [
        ((), None, "every member"),
        ((policy("c3"),), None, "c3"),
        ((policy("c3", "c4", "c9"),), None, "c3 c4"),
        ((policy(),), None, ""),
        ((policy(allow=(Allow(),)),), None, "every member"),
        ((policy(allow=(Allow(namespace="shop"),)),), None, "c1 c3 c4"),
        ((policy(allow=(Allow(namespace="shop"),)),), "c4", "c4"),
        ((policy(allow=(Allow(cluster=ClusterName("c3"), service_account="web"),)),), None, "c3"),
        ((policy(allow=(Allow(labels=(("class", "gold"),)),)),), None, "c3 c4"),
        ((policy(allow=(Allow(labels=(("class", "gold"), ("tier", "1"))),)),), None, "c4"),
        ((policy(allow=(Allow(cluster=ClusterName("c3"), labels=(("class", "gold"),)),)),), None, "c3"),
        ((policy(allow=(Allow(cluster=ClusterName("c1"), labels=(("class", "gold"),)),)),), None, ""),
        ((policy(invalid="spec.allow: missing"),), None, ""),
        ((policy("c3", audit=True),), None, "every member"),
        ((policy("c3", audit=True),), "c4", "c4"),
        ((policy("c3", "c4"),), "c4, c1", "c4"),
        ((policy("c3"),), "", ""),
        ((policy("c3", target="other"),), None, "every member"),
        ((policy("c3"), policy("c4", name="narrow", target="echo")), None, "c4"),
        ((policy("c3", created="2026-02-01"), policy("c4", name="z", created="2026-01-01")), None, "c4"),
        ((replace(policy("c3"), name=ServiceName("other/callers")),), None, "every member"),
    ],
    ids=[
        "none",
        "one cluster",
        "clusters, one of them no member",
        "nobody",
        "anybody",
        "a namespace of any cluster",
        "a namespace of any cluster, and importers",
        "an account of a cluster",
        "labels of clusters",
        "several labels",
        "labels of one cluster",
        "labels that the cluster does not have",
        "invalid",
        "audit",
        "audit beside importers",
        "a cluster has to be in both",
        "importers without any",
        "of another export",
        "the export's own comes first",
        "the older comes first",
        "of another namespace",
    ],
)
def test_a_policy_and_the_annotation_have_one_meaning_at_gateways(
    policies: tuple[ExportPolicy, ...], importers: str | None, want: str
) -> None:
    assert callers(*policies, importers=importers) == want


def test_a_policy_limits_ports_of_udp_and_http_as_others_whatever_it_enforces() -> None:
    """Calls of all of them come by TLS, so that the certificate names the cluster in each."""
    row = export(ports=(Port("", 53, "UDP"), Port("http", 80)))
    db = Database(EXPORT_POLICIES, CLUSTERS)
    with db.write() as txn:
        txn.put(EXPORT_POLICIES, policy("c3", enforce="tcp"))
    judged = exports.judging(db.snapshot(), OF._replace(policies=True))(row)
    udp, http = (service_sni(ECHO, 53, DOMAIN, protocol="UDP"), service_sni(ECHO, 80, DOMAIN))
    assert chains(OwnExport(name=ECHO, export=judged)) == PLAIN | {
        f"{udp} restricted c3": {f"c3/{udp}"},
        f"{http} restricted c3": {f"c3/{http}"},
        "refused": PLAIN["refused"] | {f"c1/{udp}", f"c1/{http}"},
    }


def test_a_starting_gateway_admits_nobody_before_it_has_read_the_policies() -> None:
    db = Database(PEER_POLICIES, EXPORT_POLICIES)
    done = db.initializer(EXPORT_POLICIES, "kubernetes")
    members = [ClusterName("c1")]
    assert exports.trusted_apart(db.snapshot(), members, policies=True) is None
    with db.write() as txn:
        done.complete(txn)
    assert exports.trusted_apart(db.snapshot(), members, policies=True) == [("c1",)]


def test_an_export_for_nobody_has_no_chain() -> None:
    sni = service_sni(ECHO, 80, DOMAIN)
    found = chains(OwnExport(name=ECHO, export=export(importers="")))
    assert found == PLAIN | {"refused": PLAIN["refused"] | {f"c1/{sni}", f"c3/{sni}"}}


def test_without_a_member_everybody_is_refused() -> None:
    row = OwnExport(name=ECHO, export=export(ports=(Port("http", 80),)))
    assert chains(row, members=()) == {"refused": PLAIN["refused"]}


@pytest.mark.parametrize(
    ("port", "want"),
    [
        (Port("", 80), None),
        (Port("web", 80, app_protocol="http"), 1),
        (Port("", 80, app_protocol="kubernetes.io/ws"), 1),
        (Port("", 80, app_protocol="kubernetes.io/h2c"), 2),
        (Port("", 80, app_protocol="grpc"), 2),
        (Port("http", 80), 1),
        (Port("http-web", 80), 1),
        (Port("grpc", 80), 2),
        (Port("https", 443), None),
        (Port("http", 80, app_protocol="kubernetes.io/wss"), None),
        (Port("http", 80, app_protocol="tcp"), None),
        (Port("http", 80, "UDP"), None),
    ],
)
def test_ports_speak_http_by_their_app_protocol_or_else_their_name(port: Port, want: int | None) -> None:
    assert http_version(port) == want


def test_ports_of_http_share_a_chain_for_each_member_and_have_no_cluster_that_an_sni_can_name() -> None:
    row = OwnExport(name=ECHO, export=export(ports=(Port("http", 80), Port("", 9000), Port("grpc", 81))))
    snis = [service_sni(ECHO, port, DOMAIN) for port in (80, 81)]
    assert chains(row) == PLAIN | {f"http {each}": {f"{each}/{sni}" for sni in snis} for each in ("c1", "c3")}
    assert row.export is not None
    made = list(exports.of_export(row.export, [], OF))
    assert {each.name for each in made} == {*(f"{sni} http" for sni in snis), service_sni(ECHO, 9000, DOMAIN)}
    assert [problem(MESSAGES[each.type], each.body) for each in made] == [""] * 6


def test_no_row_names_a_key_or_an_authority() -> None:
    body = exports.listener(OF, [], [C2]).body
    assert b"/run/isthmus/gateway/sds/pair.json" in body
    assert b"BEGIN" not in body


def test_members_are_those_with_a_file_that_holds_certificates(tmp_path: Path) -> None:
    for name in ("c1", "c3"):
        (tmp_path / f"{name}.ca.crt").write_bytes(certificates.authority(name).certificate)
    (tmp_path / "c4.ca.crt").write_text("nonsense")
    (tmp_path / "C5.ca.crt").write_bytes(certificates.authority("c5").certificate)
    found = read_bundles(tmp_path)
    assert list(found.members) == ["c1", "c3"]
    assert list(found.problems) == [tmp_path / "c4.ca.crt"]
    assert list(read_bundles(tmp_path, but=(ClusterName("c1"),)).members) == ["c3"]


def test_a_file_that_is_no_authority_is_logged_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c4.ca.crt").write_text("nonsense")
    db, identity = Database(TRUST_BUNDLES), Identity(tmp_path / "gateway.crt", tmp_path / "gateway.key")
    secrets = Secrets(db, tmp_path, apart=lambda *_: [], identity=identity, trust=tmp_path, domain=DOMAIN)
    for _ in range(3):
        secrets.renew()
    assert capsys.readouterr().err.count("authorities cannot be used") == 1
    (tmp_path / "c4.ca.crt").write_text("other nonsense")
    (tmp_path / "c5.ca.crt").write_text("nonsense")
    secrets.renew()
    assert capsys.readouterr().err.count("authorities cannot be used") == 1


def test_trust_follows_the_files_and_without_any_it_trusts_nobody(tmp_path: Path) -> None:
    trust = tmp_path / "trust"
    trust.mkdir()
    (trust / "c1.ca.crt").write_bytes(certificates.authority("c1").certificate)
    identity = Identity(tmp_path / "gateway.crt", tmp_path / "gateway.key")
    db, apart = Database(TRUST_BUNDLES), [(ClusterName("c1"), ClusterName("c3"))]
    secrets = Secrets(db, tmp_path / "envoy", apart=lambda *_: apart, identity=identity, trust=trust, domain=DOMAIN)

    def domains(*, of_some: bool = False) -> list[str]:
        secrets.renew()
        name = tls.trust_of(*apart) if of_some else "trust"
        [found] = json.loads((tmp_path / "envoy" / "sds" / f"{name}.json").read_text())["resources"]
        config = found["validation_context"]["custom_validator_config"]["typed_config"]
        return [each["name"] for each in config["trust_domains"]]

    (trust / "c2.ca.crt").write_bytes(certificates.authority("c2").certificate)
    assert domains() == [f"c1.{DOMAIN}", f"c2.{DOMAIN}"]
    assert domains(of_some=True) == [f"c1.{DOMAIN}"]
    assert [row.clusters for row in db.snapshot().all(TRUST_BUNDLES)] == apart
    assert db.snapshot().initialized(TRUST_BUNDLES)
    (trust / "c2.ca.crt").unlink()
    (trust / "c1.ca.crt").unlink()
    assert domains() == domains(of_some=True) == [f"nobody.{DOMAIN}"]
    assert "no such file" in identity.problem


def test_the_row_of_trust_that_is_no_longer_wanted_goes_at_once_and_its_file_a_minute_later(tmp_path: Path) -> None:
    first: tuple[ClusterName, ...] = (ClusterName("c1"), ClusterName("c3"))
    second: tuple[ClusterName, ...] = (ClusterName("c1"),)
    db, apart, now = Database(TRUST_BUNDLES), [first, second], 1000.0
    identity = Identity(tmp_path / "gateway.crt", tmp_path / "gateway.key")

    def made() -> Secrets:
        where = tmp_path / "envoy"
        return Secrets(
            db, where, apart=lambda *_: apart, identity=identity, trust=tmp_path, domain=DOMAIN, clock=lambda: now
        )

    def there() -> set[tuple[ClusterName, ...]]:
        secrets.renew()
        names = {tls.trust_of(each): each for each in (first, second)}
        files = {names[path.stem] for path in (tmp_path / "envoy" / "sds").glob("trust-*.json")}
        assert {row.clusters for row in db.snapshot().all(TRUST_BUNDLES)} == set(apart)
        return files

    secrets = made()
    assert there() == {first, second}
    apart.remove(first)
    now += KEEP
    assert there() == {first, second}, "Envoy may have a listener that names it"
    now += 1
    assert there() == {second}
    apart.append(first)
    assert there() == {first, second}
    apart.remove(first)
    db = Database(TRUST_BUNDLES)
    secrets = made()
    assert there() == {second}, "what an earlier process left goes at once"


def test_a_changed_file_of_trust_is_written_again(tmp_path: Path) -> None:
    identity = Identity(tmp_path / "gateway.crt", tmp_path / "gateway.key")
    db = Database(TRUST_BUNDLES)
    secrets = Secrets(db, tmp_path, apart=lambda *_: [], identity=identity, trust=tmp_path, domain=DOMAIN)
    secrets.renew()
    path = tls.secret_file(tmp_path, tls.TRUST)
    written = path.read_bytes()
    path.write_bytes(b"{}")
    secrets.renew()
    assert path.read_bytes() == written


def test_what_envoy_found_of_gateways_is_written_when_it_changes() -> None:
    db = Database(CLUSTERS, GATEWAY_CHECKS)
    with db.write() as txn:
        txn.put(CLUSTERS, Cluster(name=C2))

    def found(**health: bool) -> tuple[bool, str, float]:
        checks.record(db, [Host("island c2", "172.30.2.11:15443", HostHealth(**health)), other], now=next(times))
        [row] = db.snapshot().all(GATEWAY_CHECKS)
        return row.healthy, row.reason, row.since

    other, times = Host("demo/echo:80", "10.1.0.1:80", HostHealth()), iter(range(1, 9))
    assert found() == (True, "", 1)
    assert found() == (True, "", 1)
    assert found(failed_active_health_check=True) == (False, "its checks fail", 3)
    assert found(failed_outlier_check=True) == (False, "connects to it fail", 4)
    checks.record(db, [], now=5)
    assert not list(db.snapshot().all(GATEWAY_CHECKS))


@pytest.mark.parametrize(
    ("measured", "want"),
    [
        ([(0.0, False)], 0.0),
        ([(0.0001, True)], 1 / 16),
        ([(0.08, True)], 1 / 8),
        ([(0.08, True), (0.0, False)], 1 / 8),
        ([(0.03, True), (0.2, True)], 1 / 16),  # a machine that stood still
        ([(0.03, True), (0.2, False)], 1 / 4),
        ([(0.2, False), (0.03, True)], 1 / 16),
    ],
)
def test_a_round_trip_grows_only_while_a_gateway_fails_by_it(measured: list[tuple[float, bool]], want: float) -> None:
    db = Database(CLUSTERS, GATEWAY_CHECKS)
    with db.write() as txn:
        txn.put(CLUSTERS, Cluster(name=C2))
    at = "172.30.2.11:15443"
    for round_trip, healthy in measured:
        host = Host("island c2", at, HostHealth(failed_active_health_check=not healthy))
        checks.record(db, [host], now=1, round_trips={at: round_trip})
    [row] = db.snapshot().all(GATEWAY_CHECKS)
    assert row.round_trip == want


@pytest.mark.parametrize(
    ("health", "round_trip", "after", "want"),
    [
        (HostHealth(failed_active_health_check=True), 0.0, 1.0, True),
        (HostHealth(pending_active_hc=True), 0.0, 1.0, True),
        (HostHealth(), 0.0, 1.0, False),
        (HostHealth(failed_active_health_check=True), 0.3, 1.0, False),
        (HostHealth(failed_active_health_check=True), 0.0, checks.FIRST_MEASURED, False),  # it may be gone for good
    ],
)
def test_round_trips_are_looked_for_at_once_while_a_gateway_fails_its_first_checks(
    health: HostHealth, round_trip: float, after: float, want: bool
) -> None:
    db, at = Database(CLUSTERS, GATEWAY_CHECKS), "172.30.2.11:15443"
    with db.write() as txn:
        txn.put(CLUSTERS, Cluster(name=C2))
    checks.record(db, [Host("island c2", at, health)], now=1, round_trips={at: round_trip})
    assert checks.unmeasured(db.snapshot(), now=1 + after) is want


def test_round_trips_are_those_of_connections_that_are_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        at = server.getsockname()
        assert sock_diag.tcp_round_trips(at[1]) == {}
        with socket.create_connection(at):
            assert 0 < sock_diag.tcp_round_trips(at[1])["127.0.0.1"] < 60


def test_refusals_are_counted_by_reason_and_by_the_members_that_are_vouched_for() -> None:
    refusals = Refusals(DOMAIN, lambda: [ClusterName("c1")])
    node = f"spiffe://c1.{DOMAIN}/node"
    verify = "TLS_error:|268435581:SSL routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED:verify cert failed: "
    at = "X509_verify_cert: certificate verification error at depth"
    for each in (
        FailedConnection(node),  # its pods did not answer: no refusal
        FailedConnection(node, no_cluster=True),
        FailedConnection(node, f"{verify}SAN match"),
        FailedConnection(f"spiffe://c9.{DOMAIN}/node", f"{verify}SAN match"),
        FailedConnection(node, f"{verify}no trust bundle store"),
        FailedConnection(f"spiffe://c9.{DOMAIN}/node", f"{verify}no trust bundle store"),
        FailedConnection("spiffe://c1.other.local/node", no_cluster=True),
        FailedConnection("https://c1", no_cluster=True),
        FailedConnection(node, f"{verify}{at} 0: certificate has expired"),
        FailedConnection(node, f"{verify}{at} 1: certificate has expired"),
        FailedConnection(node, f"{verify}{at} 0: unable to get local issuer certificate"),
        FailedConnection(failure="PEER_DID_NOT_RETURN_A_CERTIFICATE:"),
        FailedConnection(failure="UNSUPPORTED_PROTOCOL"),
        FailedConnection(failure="HTTP_REQUEST", no_chain=True, hello=False),
        FailedConnection(failure="CONNECTION_REJECTED"),
        FailedConnection(too_many=True),
        FailedConnection(hello=False),
    ):
        refusals.count(each)
    found = refusals.by_reason()
    assert found == {
        "certificate": {"unknown": 3},
        "expired": {"c1": 1},
        "handshake": {"unknown": 1},
        "no certificate": {"unknown": 1},
        "no handshake": {"unknown": 1},
        "not allowed": {"c1": 1, "unknown": 2},
        "not exported": {"c1": 1, "unknown": 2},
        "too many": {"unknown": 2},
        "unknown SNI": {"unknown": 1},
    }
    assert set(found) == set(REASONS)
