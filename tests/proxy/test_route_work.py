"""What routes cost an agent and an operator: little for each change, and bounded in one turn of the loop."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from meshes.route_world import RouteWorld, route
from msgspec.structs import replace

from isthmus.model.names import ServiceName
from isthmus.model.routes import Route, with_rules
from isthmus.model.tables import ATTACHMENTS, PROXY_LISTENERS, ROUTE_PARTS, ROUTES, XDS
from isthmus.proxy import route_parts
from isthmus.proxy.attachment import MAX_SIZE
from isthmus.proxy.routing import encoded

TO_ECHO = "parentRefs: [{group: '', kind: Service, name: echo}]\n"
HEADERS = ", ".join(f"{{name: x-{header}, value: {'v' * 250}}}" for header in range(16))
DOES = (
    f"filters: [{{type: RequestHeaderModifier, requestHeaderModifier: {{set: [{HEADERS}]}}}}],"
    " backendRefs: [{name: echo, port: 80}]"
)
PATHS = [", ".join(f"{{path: {{value: /{rule}/{match}}}}}" for match in range(8)) for rule in range(16)]
LARGE = f"{TO_ECHO}rules: [{', '.join(f'{{matches: [{paths}], {DOES}}}' for paths in PATHS)}]"
"""As large as a route can be."""


class Work:
    """What each pass of the derivations did: routes encoded, and bytes of configuration joined."""

    def __init__(self, world: RouteWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.encoded: list[str] = []
        self.passes: list[tuple[int, int]] = []
        """Routes encoded, and bytes joined, of each."""
        self._joined = 0

        def counted(row: Route, number: int, *rest: Any) -> Any:
            if number == 0:
                self.encoded.append(row.name)
            return encoded(row, number, *rest)

        def joined(*arguments: Any, **fields: Any) -> Any:
            made = configuration(*arguments, **fields)
            self._joined += len(made.body)
            return made

        module = sys.modules["isthmus.proxy.derived"]  # the package has a function of that name
        configuration = module.route_configuration
        monkeypatch.setattr(route_parts, "encoded", counted)
        monkeypatch.setattr(module, "route_configuration", joined)

    def change(self, put: Iterable[Route] = (), delete: Iterable[Route] = ()) -> None:
        """Change routes in one transaction, as a watch's batch does, and derive, pass by pass."""
        with self.world.db.write() as txn:
            for row in put:
                txn.put(ROUTES, row)
            for row in delete:
                txn.delete(ROUTES, row.key)
        more = True
        while more:
            before, self._joined = len(self.encoded), 0
            more = self.world.derivations.step()
            self.passes.append((len(self.encoded) - before, self._joined))


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(RouteWorld().service("demo/echo", "127.0.0.1:80"), monkeypatch)


def routes(count: int) -> Iterator[Route]:
    row = route(LARGE)
    assert row.invalid == ""
    for number in range(count):
        yield replace(row, name=ServiceName(f"demo/r{number:03}"))


def test_of_two_hundred_large_routes_one_is_encoded_in_a_turn_and_those_without_effect_never(work: Work) -> None:
    rows = list(routes(200))
    assert rows[0].size > MAX_SIZE / 4
    work.change(put=rows)
    [attachment] = work.world.rows(ATTACHMENTS)
    counting = attachment.ports[0].routes
    assert len(counting) * rows[0].size <= MAX_SIZE < (len(counting) + 1) * rows[0].size
    assert sorted(work.encoded) == sorted(name for _, name in counting)
    assert max(routes for routes, _ in work.passes) == 1
    assert max(joined for _, joined in work.passes) < 2 * MAX_SIZE
    work.encoded.clear()
    work.change(delete=rows[len(counting) :])
    assert work.encoded == [], "they had no effect"
    work.change(delete=rows[: len(counting)])
    assert work.encoded == []
    assert not [
        work.world.rows(table) for table in (XDS, ROUTE_PARTS, PROXY_LISTENERS, ATTACHMENTS) if work.world.rows(table)
    ]


def test_a_route_that_changes_is_encoded_and_none_of_the_others_of_its_service(work: Work) -> None:
    rows = [route(TO_ECHO + "rules: [{}]", name=f"demo/r{number}") for number in range(50)]
    work.change(put=rows)
    work.encoded.clear()
    work.change(put=[with_rules(rows[7], [*rows[7].rules, *rows[7].rules])])
    assert work.encoded == ["demo/r7"]
    work.change(delete=[rows[3]])
    assert work.encoded == ["demo/r7"]


def test_a_pod_that_comes_or_goes_costs_no_route_anything(work: Work) -> None:
    work.change(put=routes(1))
    work.encoded.clear()
    work.passes.clear()
    work.world.endpoints("demo/echo", "c1", "127.0.0.1:81", "127.0.0.1:82")  # type: ignore[arg-type]
    assert (work.encoded, work.passes) == ([], [])


def test_many_small_routes_are_encoded_together(work: Work) -> None:
    """A bound for large ones is none for an agent that starts."""
    names = [f"demo/s{number:03}" for number in range(200)]
    for name in names:
        work.world.service(name, "127.0.0.1:80")
    to = TO_ECHO + "rules: [{backendRefs: [{name: echo, port: 80}]}]"
    work.change(put=[route(to.replace("echo}]\n", f"{name[5:]}}}]\n"), name=name) for name in names])
    assert len(work.encoded) == 200
    assert max(routes for routes, _ in work.passes) >= 50
