"""A plan lists the peers it awaits, so that what an earlier process programmed of them stays."""

from __future__ import annotations

from rows.balancing_world import World, make

from isthmus.model.tables import ENDPOINT_SETS, PLANS, SERVICES


def awaited(world: World) -> list[tuple[str, ...]]:
    return [row.awaited for row in world.plans]


def test_a_plan_awaits_each_peer_until_its_first_list_is_whole() -> None:
    world = World()
    peers = [world.db.initializer(ENDPOINT_SETS, f"clusterset/{name}") for name in ("c2", "c3")]
    world.put(make.derived(), make.endpoints("c1", "10.1.0.1"))
    assert awaited(world) == [("clusterset/c2", "clusterset/c3")]
    with world.db.write() as txn:
        txn.put(ENDPOINT_SETS, make.endpoints("c2", "10.2.0.1"))
        peers[0].complete(txn)
    assert awaited(world) == [("clusterset/c3",)]
    with world.db.write() as txn:
        peers[1].complete(txn)
    assert awaited(world) == [()]


def test_plans_are_complete_without_the_peers_and_not_without_the_api_server() -> None:
    world = World()
    world.db.initializer(ENDPOINT_SETS, "clusterset/c2")
    own = world.db.initializer(SERVICES, "kubernetes")
    world.put(make.derived()).settle()
    assert world.db.snapshot().pending(PLANS) == {"kubernetes"}
    with world.db.write() as txn:
        own.complete(txn)
    world.settle()
    assert world.db.snapshot().initialized(PLANS)


def test_a_plain_service_awaits_no_peer() -> None:
    world = World("all")
    world.db.initializer(ENDPOINT_SETS, "clusterset/c2")
    world.put(make.service())
    assert awaited(world) == [()]
