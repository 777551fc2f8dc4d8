"""Accounts of calling pods: which a node passes, and which callers a gateway's matcher accepts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from isthmus.gateway import accounts, exports
from isthmus.gateway.naming import service_sni
from isthmus.model.clusters import Cluster
from isthmus.model.export_policies import Allow, ExportPolicy
from isthmus.model.hosts import Endpoint
from isthmus.model.islands import TrustBundle
from isthmus.model.mcs import OwnExport
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Export, Pod, Port
from isthmus.model.tables import CLUSTERS, EXPORT_POLICIES, OWN_EXPORTS, TRUST_BUNDLES, XDS
from isthmus.processes.start import tables_of
from isthmus.proxy.delta import MESSAGES
from isthmus.proxy.messages import message, unpacked
from isthmus.proxy.rules import problem
from isthmus.statedb import Database, Derivations

OWN = "c1.clusterset.local"
MEMBER = f"'{OWN}'"
C1, C2, ECHO = ClusterName("c1"), ClusterName("c2"), ServiceName("demo/echo")
WEB = f"{MEMBER},'{accounts.passed('shop', 'web')}'"
JOB = f"{MEMBER},'{accounts.passed('shop', 'job')}'"
LAB = f"{MEMBER},'{accounts.passed('lab', 'web')}'"


def pod(name: str, *addresses: str, account: str = "web", **fields: Any) -> Pod:
    return Pod(name=name, uid=name, addresses=addresses, service_account=account, **fields)


def passed(*pods: Pod) -> dict[str, str]:
    """The protocol that a node passes for each address."""
    row = accounts.config(C2, "island c2", OWN, pods)
    assert problem(MESSAGES["extension"], row.body) == ""
    config = unpacked(message(MESSAGES["extension"]).FromString(row.body).typed_config)
    found = {}
    assert config is not None
    for value in config.on_new_connection:
        text = value.format_string.text_format_source.inline_string
        if value.object_key == accounts.PROTOCOLS:
            conditions, _, offered = text.removeprefix("%CEL(").partition(" ? ")
            for each in conditions.split(" || "):
                found[each.partition("b'")[2].strip("'")] = offered.partition("'")[2].partition("'")[0]
    return found


def test_a_node_passes_the_accounts_of_its_pods_by_all_their_addresses() -> None:
    web, job = (f"{OWN},{accounts.passed('shop', name)}" for name in ("web", "job"))
    found = passed(
        pod("shop/a", "10.1.0.1", "fd00::1"), pod("shop/b", "10.1.0.2"), pod("shop/c", "10.1.0.3", account="job")
    )
    assert found == {"10.1.0.1": web, "fd00::1": web, "10.1.0.2": web, "10.1.0.3": job}


def test_pods_of_the_nodes_network_without_an_account_and_ended_ones_pass_nothing() -> None:
    found = passed(
        pod("shop/a", "10.0.0.1", host_network=True),
        pod("shop/b", "10.1.0.2", account=""),
        pod("shop/c", "10.1.0.3", phase="Failed"),
        pod("shop/d", "10.1.0.4' || true || '"),
    )
    assert found == passed() == {}


def test_an_address_of_two_accounts_stands_for_neither() -> None:
    both = pod("shop/a", "10.1.0.1"), pod("shop/b", "10.1.0.1", account="job")
    assert passed(*both) == {}
    assert set(passed(pod("shop/a", "10.1.0.1"), pod("shop/b", "10.1.0.1"))) == {"10.1.0.1"}, "of one account"


def test_names_of_accounts_travel_as_hashes() -> None:
    found = accounts.passed("shop", "web")
    assert "shop" not in found
    assert "web" not in found
    assert len(found) <= 255, "the length of a protocol"
    assert accounts.passed("a", "b") != accounts.passed("b", "a")


@pytest.mark.parametrize(
    ("rules", "unproven", "want"),
    [
        ([("shop", "web")], False, [WEB]),
        ([("shop", "")], False, [WEB, JOB]),
        ([("", "web")], False, [WEB, LAB]),
        ([("shop", "job"), ("lab", "")], False, [JOB, LAB]),
        ([("shop", "web")], True, [MEMBER, WEB]),
        ([], False, []),
    ],
    ids=["an account", "a namespace", "an account of any namespace", "two rules", "unproven", "nobody"],
)
def test_a_matcher_lets_in_whom_a_rule_allows(rules: list[tuple[str, str]], unproven: bool, want: list[str]) -> None:
    matchers = [*accounts.matchers(OWN, frozenset(rules), unproven=unproven)]

    def matches(offered: str) -> bool:
        return any(
            {"exact": offered == text, "prefix": offered.startswith(text), "suffix": offered.endswith(text)}[kind]
            for each in matchers
            for kind, text in each.items()
        )

    assert [each for each in (MEMBER, WEB, JOB, LAB) if matches(each)] == want


def listener(*ports: Port, rules: int = 1) -> Any:
    """c2's listener with an export whose policy allows accounts of c1."""
    gateway = exports.GatewaySettings(
        C2, "clusterset.local", (Endpoint("127.0.0.1", 15443),), Path("/run/gateway"), policies=True
    )
    derived = exports.derived(gateway)
    db = Database(*tables_of([derived]))
    derivations = Derivations(db, derived)
    export = Export(cluster=C2, name=ECHO, created="", ports=ports)
    allowed = [Allow(cluster=C1, namespace="shop", service_account=f"web{n or ''}") for n in range(rules)]
    with db.write() as txn:
        txn.put(OWN_EXPORTS, OwnExport(name=ECHO, export=export))
        txn.put(TRUST_BUNDLES, TrustBundle((C1,)))
        txn.put(CLUSTERS, Cluster(name=C2, own=True))
        txn.put(EXPORT_POLICIES, ExportPolicy(name=ServiceName("demo/callers"), allow=tuple(allowed)))
    while derivations.step():
        pass
    [row] = [each for each in db.snapshot().all(XDS) if each.type == "listener"]
    assert problem(MESSAGES["listener"], row.body) == ""
    return message(MESSAGES["listener"]).FromString(row.body)


def judged(port: Port, offered: str) -> str:
    """The chain that c2's gateway chooses for a call of c1 that offers these protocols."""
    sni = service_sni(ECHO, port.port, "clusterset.local", protocol=port.protocol)
    chosen = listener(port).filter_chain_matcher.matcher_tree.prefix_match_map.map[MEMBER].matcher
    for entry in chosen.matcher_list.matchers:
        called, allowed = entry.predicate.and_matcher.predicate
        accepted = allowed.not_matcher.single_predicate.value_match.exact
        if called.single_predicate.value_match.exact == sni and offered != accepted:
            return str(entry.on_match.action.name)
    tree = chosen.on_no_match.matcher if chosen.HasField("matcher_list") else chosen
    return str(tree.matcher_tree.exact_match_map.map[sni].action.name)


def test_a_caller_that_no_rule_allows_is_refused_and_by_http_answered() -> None:
    assert judged(Port("", 80), WEB).endswith(" restricted c1")
    assert judged(Port("", 80), JOB) == judged(Port("", 80), MEMBER) == "refused"
    assert judged(Port("", 80, app_protocol="http"), JOB) == "forbidden c1"
    assert " restricted c1 " in judged(Port("", 80, app_protocol="http"), WEB)


def test_callers_are_listed_once_for_all_ports_of_a_policy() -> None:
    """A policy of 64 and a Service of 30 ports made a listener of 42 MB for 50 members, all tenants' listener."""
    ports = [Port(f"p{number}", 8000 + number) for number in range(12)]
    few, many = (listener(*ports[:number], rules=64).filter_chain_matcher.ByteSize() for number in (2, 12))
    assert many - few < 10 * 500


def test_callers_by_udp_are_judged_by_their_cluster() -> None:
    assert judged(Port("", 53, "UDP"), JOB).endswith(" restricted c1")
