"""The discovery service, against the real Envoy: what is sent, what is refused, and what that costs others."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meshes.envoy_world import EnvoyWorld, cluster, endpoints, envoy_world, http_listener, routes
from peers.etcd_server import free_ports

from isthmus.model.tables import XDS, XDS_SERVED
from isthmus.proxy import resource

pytestmark = pytest.mark.needs("envoy")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[EnvoyWorld]:
    async with envoy_world(tmp_path / "envoy") as made:
        yield made


async def service(world: EnvoyWorld, name: str, answer: str) -> int:
    """A service through Envoy; its port."""
    [port] = free_ports(1)
    backend = await world.backend(answer)
    world.put(http_listener(name, port), routes(name, ("/", name)), cluster(name), endpoints(name, backend))
    await world.until(port, (200, answer))
    return port


async def test_rows_take_effect_change_and_go(world: EnvoyWorld) -> None:
    port = await service(world, "echo", "one")
    world.put(endpoints("echo", await world.backend("two")))
    await world.until(port, (200, "two"))
    world.put(routes("echo", ("/v2", "echo")))
    await world.until(port, (404, ""))
    world.delete(("listener", "echo"), ("routes", "echo"), ("cluster", "echo"), ("endpoints", "echo"))
    while (await world.get(port))[0]:
        pass
    assert world.refused() == []


async def test_an_updated_cluster_keeps_its_endpoints_and_serves(world: EnvoyWorld) -> None:
    port = await service(world, "echo", "one")
    world.put(cluster("echo", lb_policy="RANDOM"))
    for _ in range(50):
        assert await world.get(port) == (200, "one")


async def test_a_row_that_breaks_a_rule_is_not_sent_and_names_its_object(world: EnvoyWorld) -> None:
    port = await service(world, "echo", "one")
    world.put(
        resource("routes", "echo", "HTTPRoute demo/bad", virtual_hosts=[{"name": "", "domains": ["*"]}]),
        cluster("other"),
        endpoints("other"),
    )
    other = await service(world, "third", "three")
    assert await world.get(port) == (200, "one")
    assert await world.get(other) == (200, "three")
    assert world.refused() == ["HTTPRoute demo/bad: virtual_hosts[0].name: is shorter than 1 characters"]
    assert world.server.stats().nacks == 0


async def test_of_routes_that_envoy_refuses_the_object_is_named_that_was_not_there_before(world: EnvoyWorld) -> None:
    port = await service(world, "echo", "one")

    def rule(name: str, **match: object) -> dict[str, object]:
        return {"name": f"HTTPRoute demo/{name}, rule 1", "match": match, "route": {"cluster": "echo"}}

    good = rule("good", prefix="/good")

    def with_rules(*rules: dict[str, object]) -> None:
        hosts = [{"name": "all", "domains": ["*"], "routes": rules}]
        world.put(resource("routes", "echo", "HTTPRoute demo/good", virtual_hosts=hosts))

    with_rules(good)
    await world.until(port, (404, ""))
    [accepted] = [row for row in world.db.snapshot().all(XDS) if row.type == "routes"]
    while world.server._resources._accepted["routes", "echo"] is not accepted:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    with_rules(rule("bad", safe_regex={"regex": "*"}), good)
    await world.db.until(lambda now: bool(world.refused()))
    [refusal] = world.refused()
    assert refusal.startswith("HTTPRoute demo/bad: ")
    assert "no argument for repetition operator" in refusal
    assert await world.get(port, "/good") == (200, "one")


async def test_one_bad_cluster_among_many_holds_no_other_up_and_is_named(world: EnvoyWorld) -> None:
    backend = await world.backend("good")
    names = [f"s{n}" for n in range(40)]
    ports = dict(zip(names, free_ports(40), strict=True))
    bad = cluster("s17x", type="EDS", transport_socket_matches=[{"name": "m", "match": {}}])
    rows = [bad]
    for name in names:
        rows += [cluster(name), endpoints(name, backend), http_listener(name, ports[name]), routes(name, ("/", name))]
    world.put(*rows)
    for name in names:
        await world.until(ports[name], (200, "good"))
    [refusal] = world.refused()
    assert refusal.startswith("Service demo/s17x: ")
    assert 2 <= world.server.stats().nacks <= 8


async def test_what_was_accepted_last_stays_in_force_and_a_later_good_row_replaces_it(world: EnvoyWorld) -> None:
    port = await service(world, "echo", "one")
    for number in (1, 2):  # the second is refused as the first, and not sent again for other changes
        world.put(cluster("echo", transport_socket_matches=[{"name": f"m{number}", "match": {}}]))
        await world.db.until(lambda now: bool(world.refused()))
        assert await world.get(port) == (200, "one")
    world.put(cluster("echo", lb_policy="RANDOM"), endpoints("echo", await world.backend("two")))
    await world.until(port, (200, "two"))
    assert world.refused() == []


async def test_a_second_envoy_is_not_given_what_the_first_refused(world: EnvoyWorld) -> None:
    port = await service(world, "echo", "one")
    world.put(cluster("echo", transport_socket_matches=[{"name": "m", "match": {}}]))
    await world.db.until(lambda now: bool(world.refused()))
    nacks, first = world.server.stats().nacks, world.supervisor.stats().running
    world.supervisor.replace()
    while world.supervisor.stats().running in (first, 0):
        await world.get(port)
    assert await world.get(port) == (200, "one")
    assert world.server.stats().nacks == nacks


async def test_envoy_keeps_what_it_has_while_the_service_is_away_and_is_sent_the_difference(world: EnvoyWorld) -> None:
    port = await service(world, "echo", "one")
    other = await service(world, "other", "other")
    await world.stop("ads")
    assert await world.get(port) == (200, "one")
    world.put(endpoints("echo", await world.backend("two")))
    world.delete(("listener", "other"), ("routes", "other"), ("cluster", "other"), ("endpoints", "other"))
    world.serve()
    await world.until(port, (200, "two"))
    while (await world.get(other))[0]:
        pass
    assert world.server.stats().responses <= 8


async def test_a_restarted_service_does_not_take_away_what_it_now_refuses(world: EnvoyWorld) -> None:
    port = await service(world, "echo", "one")
    await world.stop("ads")
    world.put(resource("routes", "echo", "HTTPRoute demo/bad", virtual_hosts=[{"name": "", "domains": ["*"]}]))
    world.serve()
    other = await service(world, "other", "other")
    assert await world.get(port) == (200, "one")
    assert await world.get(other) == (200, "other")


async def test_a_listener_whose_port_was_in_use_is_tried_again(tmp_path: Path) -> None:
    async with envoy_world(tmp_path / "envoy", retry=0.5) as world:
        with socket.create_server(("127.0.0.1", 0)) as other:
            port = other.getsockname()[1]
            backend = await world.backend("one")
            world.put(http_listener("echo", port), routes("echo", ("/", "echo")), cluster("echo"))
            world.put(endpoints("echo", backend))
            await world.db.until(lambda now: bool(world.refused()))
            assert "Address already in use" in world.refused()[0]
        await world.until(port, (200, "one"))
        assert world.refused() == []


async def test_an_idle_stream_outlives_envoys_pings(tmp_path: Path) -> None:
    """gRPC's servers by default end a connection with the third ping in five minutes in which nothing was sent."""
    async with envoy_world(tmp_path, ping_every=0.05) as world:
        [port] = free_ports(1)
        world.put(http_listener("a", port), routes("a", ("/", "a")), cluster("a"), endpoints("a", 1))
        served = world.db.changes(XDS_SERVED)
        await world.db.until(lambda now: now.get(XDS_SERVED, "a") is not None)
        served.next()
        for _ in range(20):  # 40 pings
            await asyncio.sleep(0.1)
            assert served.next()[1] == []
        served.close()
