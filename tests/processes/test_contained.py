"""Derivations of the agent and the operator that raise at random: all other units end as without the failures.

Each is made to raise by the unit, after it has written something of it and of others, and by the changed row.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Sequence
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from rows.pipeline import Object, Pipeline, Role

from isthmus.model.tables import FAULTS, PROXY_LISTENERS, XDS
from isthmus.proxy import probing
from isthmus.statedb import AnyTable, Derivation, Dirty, Reader, WriteTxn
from isthmus.statedb.derived import ByChanged, Cost
from isthmus.statedb.faults import unit_text

SERVICES: Final = ("web0", "web1", "web2", "web3")
LABEL: Final = "kubernetes.io/service-name"


class Bug(Exception):  # noqa: N818
    """What is raised in the place of a derivation's work."""


Failing = set[tuple[str, str]]
"""The tables of a derivation, and the service whose units raise, or whose changed rows do: ``rows of <service>``."""


class Raising:
    """A derivation that raises for the units and changed rows of some services, half done."""

    def __init__(self, derivation: Derivation, failing: Failing, raised: set[tuple[str, str]]) -> None:
        self._derivation = derivation
        self._failing = failing
        self._raised = raised
        self.name = ", ".join(table.name for table in derivation.tables)

    @property
    def tables(self) -> Sequence[AnyTable]:
        return self._derivation.tables

    @property
    def reads(self) -> Collection[AnyTable]:
        return self._derivation.reads

    @property
    def cost(self) -> Cost | None:
        return self._derivation.cost

    def arrived(self, reader: Reader, sources: frozenset[str]) -> Iterable[Hashable]:
        return self._derivation.arrived(reader, sources)

    def awaited(self, reader: Reader, table: AnyTable) -> frozenset[str]:
        return self._derivation.awaited(reader, table)

    def mark(self, dirty: Dirty, reader: Reader, changed: ByChanged) -> None:
        self._derivation.mark(dirty, reader, {table: pairs[:1] for table, pairs in changed.items()})
        for pairs in changed.values():
            if any(self._fails(repr(row), "rows of ") for pair in pairs for row in pair if row is not None):
                raise Bug
        self._derivation.mark(dirty, reader, {table: pairs[1:] for table, pairs in changed.items() if pairs[1:]})

    def renew(self, txn: WriteTxn, units: Dirty) -> None:
        failing = [unit for unit in units if self._fails(unit_text(unit))]
        if failing:
            self._derivation.renew(txn, dict([*units.items()][: len(units) // 2 + 1]))
        for unit in units if not failing or len(units) == 1 else ():
            (self._raised.add if failing else self._raised.discard)((self.name, unit_text(unit)))
        if failing:
            raise Bug
        self._derivation.renew(txn, units)

    def _fails(self, text: str, what: str = "") -> bool:
        return any(
            tables == self.name and of == what + name
            for name in SERVICES
            if name in text
            for tables, of in self._failing
        )


def obj(api_version: str, kind: str, name: str, **fields: Any) -> Object:
    metadata = {"name": name, "namespace": "demo", "uid": f"uid-{name}", "creationTimestamp": "2026-01-01T00:00:00Z"}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata | fields.pop("metadata", {}), **fields}


def made(kind: str, name: str, version: int) -> Object:
    """One of a few versions of an object of a service, which shares nothing with those of other services."""
    number = SERVICES.index(name)
    match kind:
        case "Service":
            address = f"10.96.{number}.{version}"
            spec: Object = {
                "type": "ClusterIP",
                "clusterIP": address,
                "clusterIPs": [address],
                "ports": [{"name": "http", "port": 80}],
            }
            return obj("v1", "Service", name, spec=spec)
        case "EndpointSlice":
            ready: list[Object] = [
                {"addresses": [f"10.1.{number}.{n}"], "conditions": {"ready": True}} for n in range(version + 1)
            ]
            ports = [{"name": "http", "port": 80, "protocol": "TCP"}]
            return obj(
                "discovery.k8s.io/v1", "EndpointSlice", name, metadata={"labels": {LABEL: name}},
                addressType="IPv4", ports=ports, endpoints=ready,
            )  # fmt: skip
        case "ServiceExport":
            return obj("multicluster.x-k8s.io/v1beta1", "ServiceExport", name)
        case "TrafficPolicy":
            target = {"kind": "Service", "name": name}
            spec = {"targetRef": target, "sessionAffinity": "ClientIP", "sessionAffinityTimeoutSeconds": 60 + version}
            return obj("isthmus.io/v1alpha1", "TrafficPolicy", name, spec=spec)
        case _:
            parent = {"group": "", "kind": "Service", "name": name, "port": 80}
            rules: list[Object] = [{"backendRefs": [{"name": name, "port": 80, "weight": version + 1}]}]
            return obj("gateway.networking.k8s.io/v1", "HTTPRoute", name, spec={"parentRefs": [parent], "rules": rules})


KINDS: Final = ("Service", "EndpointSlice", "ServiceExport", "TrafficPolicy", "HTTPRoute")
BASE: Final = (
    obj("v1", "Namespace", "demo", metadata={"namespace": ""}),
    obj("v1", "Node", "n1", metadata={"namespace": ""}, status={"addresses": []}),
)
CHANGES = st.lists(
    st.tuples(st.sampled_from(KINDS), st.sampled_from(SERVICES), st.integers(0, 3), st.booleans()),
    min_size=1,
    max_size=6,
)
"""Objects that change together: kind, service, version, and whether it goes."""


class World:
    """The same objects before a pipeline whose derivations raise, and before one where none does."""

    def __init__(self, role: Role, large: int) -> None:
        self.failing: Failing = set()
        self.raised: set[tuple[str, str]] = set()
        self.tainted: set[str] = set()
        self.good = Pipeline(role, large=large).listed(*BASE).settle()
        wrap = lambda each: Raising(each, self.failing, self.raised)  # noqa: E731
        self.raising = Pipeline(role, contained=True, wrap=wrap, large=large).listed(*BASE).settle()
        self._objects: dict[tuple[str, str], Object] = {}

    @property
    def derivations(self) -> list[str]:
        return [", ".join(table.name for table in each.tables) for each in self.raising.derivations._derived]

    def change(self, changes: Iterable[tuple[str, str, int, bool]]) -> None:
        for kind, name, version, goes in changes:
            if not self.good.watches(kind):
                continue
            found = made(kind, name, version)
            if goes:
                self._objects.pop((kind, name), None)
            else:
                self._objects[kind, name] = found
            for pipeline in (self.good, self.raising):
                pipeline.delete(found) if goes else pipeline.apply(found)
        self.settle()

    def settle(self) -> None:
        self.good.settle()
        self.raising.settle()

    def fail(self, failing: Failing) -> None:
        self.failing.clear()
        self.failing |= failing
        self.tainted |= {of.removeprefix("rows of ") for _, of in failing}

    def assert_others_equal(self) -> None:
        for table in self.good.derived:
            found, wanted = (self._untainted(pipeline.rows(table)) for pipeline in (self.raising, self.good))
            if table is XDS and not self._untainted(self.good.rows(PROXY_LISTENERS)):
                # The listener that probes meet exists while any Service has one: here only tainted ones might.
                found, wanted = ([row for row in rows if row.name != probing.UNIT] for rows in (found, wanted))
            assert found == wanted, table.name

    def _untainted(self, rows: Iterable[Any]) -> list[Any]:
        return [row for row in rows if not any(name in repr(row) for name in self.tainted)]

    def assert_faults_exact(self) -> None:
        faults = self.raising.rows(FAULTS)
        assert {(row.part, row.name) for row in faults if not row.kind} == self.raised
        assert all(any(name in row.name for name in self.tainted) for row in faults if row.kind)

    def heal(self) -> None:
        """Nothing raises any more, and all objects that there may be come, go, and are again as they were."""
        self.fail(set())
        every = [made(kind, name, 0) for kind in KINDS for name in SERVICES if self.good.watches(kind)]
        for pipeline in (self.good, self.raising):
            pipeline.apply(*every).settle().delete(*every).settle().apply(*self._objects.values()).settle()
        self.tainted.clear()


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(["agent", "operator"]), st.sampled_from([0, 64]))
def test_whatever_raises_all_other_units_end_as_without_and_nothing_is_left_afterwards(
    data: st.DataObject, role: Role, large: int
) -> None:
    world = World(role, large)
    places = st.tuples(
        st.sampled_from(world.derivations),
        st.sampled_from([*SERVICES[:2], *(f"rows of {name}" for name in SERVICES[:2])]),
    )
    for _ in range(data.draw(st.integers(1, 5))):
        world.fail(data.draw(st.sets(places, max_size=5)))
        world.change(data.draw(CHANGES))
        world.assert_others_equal()
        world.assert_faults_exact()
    world.heal()
    world.assert_others_equal()
    assert world.raising.rows(FAULTS) == []


def test_what_services_share_exists_while_one_of_them_whose_derivations_do_not_raise_needs_it() -> None:
    world = World("agent", large=0)
    world.fail({("attachments", "web0")})
    world.change([("Service", "web0", 0, False), ("HTTPRoute", "web0", 0, False)])
    world.assert_others_equal()
    assert world.raising.rows(XDS) == []
    world.change([("Service", "web2", 0, False), ("HTTPRoute", "web2", 0, False)])
    world.assert_others_equal()
    assert probing.UNIT in {row.name for row in world.raising.rows(XDS)}
