"""A name never gets NXDOMAIN while some cluster exports it, and keeps its last answer until there is a better one.

Each test reads the name after every single transaction that the agent sees.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows.named_world import APEX, Cluster, backend

from isthmus.model import tables
from isthmus.model.services import Port
from isthmus.zone import codec


@pytest.fixture
def cluster() -> Cluster:
    """One whose peer c2 exports demo/echo."""
    cluster = Cluster()
    cluster.published(backend(1))
    cluster.exported()
    cluster.settle()
    assert cluster.ask() == ("NOERROR", ("10.96.0.2",))
    cluster.seen.clear()
    return cluster


def test_a_name_exists_as_soon_as_its_import_does() -> None:
    cluster = Cluster()
    cluster.exported()
    cluster.written("ServiceImport")
    assert cluster.ask() == ("NOERROR", ())


@pytest.mark.parametrize("type_", ["ClusterSetIP", "Headless"])
def test_a_name_without_an_endpoint_or_address_exists_and_so_do_its_ports(type_: str) -> None:
    cluster = Cluster()
    cluster.exported(type=type_)
    cluster.settle()
    assert cluster.ask()[0] == "NOERROR"
    assert cluster.ask(f"_http._tcp.{APEX}", codec.SRV_TYPE)[0] == "NOERROR"


def test_a_name_that_becomes_headless_has_an_answer_in_every_transaction(cluster: Cluster) -> None:
    cluster.exported("c9", created="1970-01-01T00:00:00Z", type="Headless")
    cluster.settle()
    assert cluster.ask() == ("NOERROR", ("10.2.0.1",))
    assert all(code == "NOERROR" and addresses for code, addresses in cluster.seen), cluster.seen


def test_a_name_that_gets_an_address_has_an_answer_in_every_transaction(cluster: Cluster) -> None:
    cluster.exported("c9", created="1970-01-01T00:00:00Z", type="Headless")
    cluster.settle()
    cluster.operator.withdraw("c9")
    cluster.settle()
    assert cluster.ask() == ("NOERROR", ("10.96.0.2",))
    assert all(code == "NOERROR" and addresses for code, addresses in cluster.seen), cluster.seen


@pytest.mark.parametrize("kind", ["Service", "ServiceImport"])
def test_a_name_keeps_its_answer_when_an_object_is_deleted_by_hand(cluster: Cluster, kind: str) -> None:
    cluster.deleted(kind)
    cluster.settle()
    assert {*cluster.seen} == {("NOERROR", ("10.96.0.2",))}


def test_a_name_keeps_its_answer_when_its_import_is_deleted_and_the_service_with_it(cluster: Cluster) -> None:
    """The garbage collector removes what an import owned after the operator wrote the import again."""
    cluster.deleted("ServiceImport")
    cluster.written("ServiceImport")
    cluster.deleted("Service")
    cluster.settle()
    assert {*cluster.seen} == {("NOERROR", ("10.96.0.2",))}


STEPS = st.sampled_from(
    ["headless", "address", "older headless", "older withdrawn", "renamed", "named back", "no endpoints", "endpoints"]
    + ["Service", "ServiceImport", "stale", "connecting", "ready"]
    + ["write import", "write service"] * 4
)


@given(st.lists(STEPS, max_size=25))
def test_a_name_that_is_exported_is_never_denied_whatever_happens_in_which_order(steps: list[str]) -> None:
    cluster = Cluster()
    cluster.published(backend(1))
    cluster.exported()
    cluster.settle()
    cluster.seen.clear()
    fields: dict[str, Any] = {}
    for step in steps:
        match step:
            case "headless" | "address":
                fields["type"] = "Headless" if step == "headless" else "ClusterSetIP"
                cluster.exported(**fields)
            case "older headless":
                cluster.exported("c9", created="1970-01-01T00:00:00Z", type="Headless")
            case "older withdrawn":
                if cluster.operator.db.snapshot().by(tables.EXPORTS, "cluster", "c9"):
                    cluster.operator.withdraw("c9")
            case "renamed" | "named back":
                name = "web" if step == "renamed" else "http"
                fields["ports"] = (Port(name, 80),)
                cluster.exported(**fields)
                cluster.published(backend(1, name))
            case "no endpoints":
                cluster.published()
            case "endpoints":
                cluster.published(backend(2), backend(3))
            case "Service" if cluster.has("ServiceImport"):
                cluster.deleted(step)
            case "ServiceImport" if cluster.has("Service"):  # while both are missing, no object of the cluster has it
                cluster.deleted(step)
            case "stale" | "connecting" | "ready":
                cluster.peer(step)
            case "write import":
                cluster.written("ServiceImport")
            case "write service" if cluster.has("ServiceImport"):  # the operator writes the import first
                cluster.written("Service")
        assert cluster.ask()[0] == "NOERROR", (step, steps)
    cluster.settle()
    assert {code for code, _ in cluster.seen} <= {"NOERROR"}
