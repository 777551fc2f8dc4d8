"""Names: the derived hash as the MCS reference has it, parts of a service's name, what a cluster may be called."""

from __future__ import annotations

import doctest
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus.model import names
from isthmus.model.balancing import PlanKey, Scope
from isthmus.model.names import ServiceName, derived, is_derived, service_name, split, valid_cluster

LABEL = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


def test_the_derived_name_is_the_one_of_the_reference_implementation() -> None:
    assert doctest.testmod(names).attempted > 0
    assert doctest.testmod(names).failed == 0


@given(namespace=LABEL, name=LABEL)
def test_a_derived_service_is_in_its_imports_namespace_under_a_name_kubernetes_takes(namespace: str, name: str) -> None:
    found = derived(service_name(namespace, name))
    assert split(found)[0] == namespace
    assert re.fullmatch(r"derived-[0-9a-v]{10}", split(found)[1])
    assert is_derived(found)


@given(one=st.tuples(LABEL, LABEL), other=st.tuples(LABEL, LABEL))
def test_two_imports_have_two_derived_services(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (derived(service_name(*one)) == derived(service_name(*other))) == (one == other)


@given(namespace=LABEL, name=LABEL)
def test_a_service_name_comes_apart_as_it_was_put_together(namespace: str, name: str) -> None:
    assert split(service_name(namespace, name)) == (namespace, name)


def test_an_ordinary_service_is_no_derived_one() -> None:
    assert not is_derived(ServiceName("derived-ns/echo"))
    assert is_derived(ServiceName("demo/derived-b8s174v3sn"))


@pytest.mark.parametrize("name", ["a", "c1", "7", "eu-west-1", "a" * 32])
def test_a_cluster_may_be_called(name: str) -> None:
    assert valid_cluster(name)


@pytest.mark.parametrize("name", ["", "default", "C1", "a_b", "-a", "a-", "a.b", "a" * 33, "a\n", "é"])
def test_a_cluster_may_not_be_called(name: str) -> None:
    assert not valid_cluster(name)


@given(st.builds(PlanKey, st.builds(service_name, LABEL, LABEL), st.integers(0, 65_535), scope=st.sampled_from(Scope)))
def test_the_key_of_a_plan_is_read_back_from_its_text(key: PlanKey) -> None:
    assert PlanKey.parse(str(key)) == key


@pytest.mark.parametrize(
    "text", ["", "demo/echo", "demo/echo:80/TCP", "demo/echo:80/TCP/IPv5", "demo/echo:80/TCP/IPv4/x"]
)
def test_another_text_is_no_key_of_a_plan(text: str) -> None:
    assert PlanKey.parse(text) is None


def test_no_more_than_so_many_hashes_are_kept_and_all_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "MOST_DERIVED", 3)
    monkeypatch.setattr(names, "_derived", {})
    every = [ServiceName(f"demo/svc-{n}") for n in range(10)]
    first = [derived(name) for name in every]
    assert [derived(name) for name in every] == first
    assert len({*first}) == 10
    assert len(names._derived) <= 3
