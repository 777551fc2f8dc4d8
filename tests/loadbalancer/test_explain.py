"""Why calls go where they go: each reason is that of the code that plans."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from rows.admin_world import serving
from rows.balancing_world import PERMISSIVE, World, make

from isthmus.admin.protocol import ProcessStatus
from isthmus.cli import root
from isthmus.loadbalancer import Place
from isthmus.loadbalancer.explain import Explanation, explain, services_called
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Policy, Share, Tier
from isthmus.model.services import Condition, Port

HERE = Place(ClusterName("c1"), "n1")
ECHO = ServiceName("demo/echo")


def account(world: World, service: str = ECHO) -> Explanation:
    found = explain(world.settle().db.snapshot(), ServiceName(service), place=HERE)
    assert [path.plan for path in found.paths] == [row for row in world.plans if row.key.service == service]
    return found


def left_out(found: Explanation) -> dict[str, str]:
    return {out.backend.key.address: out.reason for path in found.paths for out in path.left_out}


def test_whoever_is_left_out_has_a_reason() -> None:
    away = make.endpoint("10.1.1.2", condition=Condition.NOT_READY)
    ending = make.terminating("10.1.1.3")
    world = World("all").put(make.service(), make.endpoints("c1", "10.1.1.1", away, ending, service=ECHO))
    assert left_out(account(world)) == {"10.1.1.2": "it is not ready", "10.1.1.3": "it is terminating"}
    world.put(make.local(), make.pod())
    found = account(world)
    assert set(left_out(found).values()) == {"calls are redirected by CiliumLocalRedirectPolicy demo/near"}
    assert found.notes == ("redirected by CiliumLocalRedirectPolicy demo/near, for the ports it means",)


def test_what_counts_and_what_does_not_is_said_in_sentences() -> None:
    world = World("all", rules=PERMISSIVE).put(make.service(), make.service(source="files"))
    world.put(make.endpoints("c1", "10.1.1.1", service=ECHO))
    world.put(make.endpoints("c1", "10.1.1.1", "10.1.1.2", service=ECHO, source="files"))
    world.put(make.service("demo/late", created="2026-01-01T00:00:00Z", cluster_ips=(), external_ips=("10.96.0.7",)))
    world.put(make.proxied(service=ECHO), make.proxied(service=ECHO, owner="HTTPRoute demo/z"))
    assert account(world).notes == (
        "source files has it too: kubernetes comes first, for all of it",
        "10.96.0.7:80/TCP is also claimed by demo/late: its claim as ClusterIP comes first",
        "redirected by HTTPRoute demo/r, for the ports it means",
        "HTTPRoute demo/z waits behind HTTPRoute demo/r, for the ports that both mean",
        "c1: 2 endpoints of files are shadowed by kubernetes",
    )
    assert account(world, "demo/late").notes == (
        "10.96.0.7:80/TCP is answered for demo/echo: its claim as ClusterIP comes first",
    )


def test_a_service_without_plan_says_why() -> None:
    plain = World().put(make.service(), make.endpoints("c1", "10.1.1.1", service=ECHO))
    assert account(plain).notes[0].startswith("it is a plain Service: no import, not global, not redirected")
    headless = World("all").put(make.service(headless=True, cluster_ips=()))
    assert account(headless).notes == ("it is headless: there is no address to be called at",)
    assert account(World()).notes == ("no source has such a service",)
    ports = World("all").put(make.service(ports=(Port("web", 80),)), make.endpoints("c1", "10.1.1.1", service=ECHO))
    assert account(ports).notes == (
        "c1: 1 endpoints of kubernetes are not used: no port agrees, or they are not shared",
    )


def test_people_may_mean_an_import_a_service_or_both() -> None:
    world = World().put(make.imported(), make.derived(), make.service(cluster_ips=("10.96.0.8",)))
    assert services_called(world.db.snapshot(), ECHO) == sorted([make.DERIVED, ECHO])
    world.delete(make.derived(), make.service())
    assert services_called(world.db.snapshot(), ECHO) == [make.DERIVED]
    assert services_called(world.db.snapshot(), ServiceName("demo/none")) == []


def test_an_island_is_named_as_the_reason() -> None:
    world = World().put(make.imported(), make.derived(), make.endpoints("c2", "10.1.1.1", "10.1.1.2"))
    world.put(make.cluster("c1", own=True, network="c1"), make.cluster("c2", network="c2"))
    found = account(world, make.DERIVED)
    assert [path.plan.groups for path in found.paths] == [()]
    assert found.notes == ("c2: 2 endpoints are not used: that cluster is on another network, and has no gateway",)


class Agent(ProcessStatus, frozen=True, kw_only=True):
    place: Place
    services: str


async def ask(world: World, tmp_path: Path, *arguments: str) -> tuple[int, str, str]:
    status = Agent(place=Place(ClusterName("c1"), "n1"), services="all")
    async with serving(tmp_path / "agent.sock", db=world.settle().db, status=status) as process:
        command = ["explain", *arguments, "--socket", str(process.socket)]
        done = await asyncio.to_thread(CliRunner().invoke, root, command)
    return done.exit_code, done.stdout, done.stderr


async def test_a_redirect_that_leaves_its_own_pods_out_is_told_with_what_those_reach(tmp_path: Path) -> None:
    world = World("all").put(make.service(), make.endpoints("c1", "10.1.1.1", service=ECHO), make.pod())
    code, printed, _ = await ask(world.put(make.local(skip_from_backend=True)), tmp_path, "demo/echo")
    policy = "CiliumLocalRedirectPolicy demo/near"
    assert (code, printed.splitlines()) == (
        0,
        [
            "demo/echo",
            "",
            f"  80/TCP IPv4 at 10.96.0.7:80/TCP, redirected by {policy}, but for calls of 10.1.1.9",
            "    → c1 10.1.1.9:8080",
            f"    ✗ c1 10.1.1.1:8080: calls are redirected by {policy}",
            "",
            "  80/TCP IPv4 at 10.96.0.7:80/TCP/o, calls that the redirect does not mean",
            "    → c1 10.1.1.1:8080",
            "",
            f"  redirected by {policy}, for the ports it means",
        ],
    )


async def test_the_command_tells_it_over_the_admin_socket(tmp_path: Path) -> None:
    world = World().put(make.imported(), make.derived(affinity="ClientIP", affinity_timeout=60))
    world.put(make.endpoints("c2", "10.2.1.1", make.endpoint("10.2.1.2", condition=Condition.NOT_READY)))
    code, printed, _ = await ask(world, tmp_path, "demo/echo")
    assert (code, printed.splitlines()) == (
        0,
        [
            f"{make.DERIVED}, which stands for the import demo/echo",
            "",
            "  80/TCP IPv4 at 10.96.0.7:80/TCP, a client stays for 60 s",
            "    → c2 10.2.1.1:8080",
            "    ✗ c2 10.2.1.2:8080: it is not ready",
        ],
    )


async def test_an_unknown_service_is_one_line(tmp_path: Path) -> None:
    code, printed, error = await ask(World(), tmp_path, "echo", "-n", "demo")
    assert (code, printed, error) == (1, "", "Error: no service or import is called demo/echo (namespace: -n)\n")


async def test_a_peer_that_is_not_ready_is_named_beside_its_endpoints_and_makes_it_end_with_1(tmp_path: Path) -> None:
    world = World().put(make.imported(), make.derived(), make.endpoints("c2", "10.2.0.1"))
    stale = make.cluster("c2", state="stale", since="2026-01-01T10:00:00Z", reason="timed out")
    code, printed, _ = await ask(world.put(make.cluster("c1", own=True), stale), tmp_path, "demo/echo")
    assert code == 1
    assert "    → c2 10.2.0.1:8080 (c2 is stale since 2026-01-01T10:00:00Z)" in printed.splitlines()
    assert "  ✗ peer  cluster c2: stale since 2026-01-01T10:00:00Z: timed out" in printed.splitlines()


def failover() -> World:
    """Two tiers: this cluster and c2 by weight while half is usable, then c3."""
    first = Tier((Share(ClusterName("."), 90), Share(ClusterName("c2"), 10)), min_percent=50)
    policy = Policy(name=ECHO, target=ECHO, tiers=(first, Tier((Share(region="far"),))))
    world = World().put(make.imported(), make.derived(), policy, make.cluster("c1", own=True, state="ready"))
    world.put(make.cluster("c2", state="ready"), make.cluster("c3", region="far", state="ready"))
    return world.put(*(make.endpoints(f"c{n}", f"10.{n}.0.1", f"10.{n}.0.2") for n in (1, 2, 3)))


async def test_shares_and_tiers_of_the_policy_in_force_are_shown(tmp_path: Path) -> None:
    verdict = make.probe("10.2.0.1", healthy=False, cluster="c2", service=make.DERIVED)
    world = failover().put(replace(verdict, reason="HTTP status 500"))
    code, printed, _ = await ask(world, tmp_path, "demo/echo")
    assert code == 0
    assert printed.splitlines()[3:] == [
        "    shares: c1 90%, c2 10%",
        "    tier 1 of the policy: 100% of calls; 3 usable, wants 50%; . weight 90, c2 weight 10",
        "    tier 2 of the policy: 0% of calls; 2 usable, wants 1; far",
        "    → tier 0, weight 9: c1 10.1.0.1:8080",
        "    → tier 0, weight 9: c1 10.1.0.2:8080",
        "    → tier 0, weight 1: c2 10.2.0.2:8080",
        "    → tier 1, weight 1: c3 10.3.0.1:8080",
        "    → tier 1, weight 1: c3 10.3.0.2:8080",
        "    ✗ c2 10.2.0.1:8080: probes find it dead: HTTP status 500",
        "",
        "  shared out by TrafficPolicy demo/echo",
    ]


@pytest.mark.parametrize(
    ("gone", "shares"),
    [
        ((), "shares: c1 90%, c2 10%"),
        (("c2",), "shares: c1 100%"),
        (("c1",), "shares: c2 100%"),
        (("c3",), "shares: c1 90%, c2 10%"),
        (("c1", "c2"), "shares: c3 100%"),
        (("c1", "c2", "c3"), "shares: none"),
    ],
)
async def test_what_if_a_cluster_had_nothing_ready(tmp_path: Path, gone: tuple[str, ...], shares: str) -> None:
    words = [word for each in gone for word in ("--without", each)]
    _, printed, _ = await ask(failover(), tmp_path, "demo/echo", *words)
    assert printed.splitlines()[3].strip() == shares
    for each in gone:
        assert f"    ✗ {each} 10.{each[1]}.0.1:8080: as if {each} had nothing ready" in printed.splitlines()


async def test_what_if_agrees_with_what_is_when_it_comes_to_be_so(tmp_path: Path) -> None:
    def lines(text: str) -> list[str]:
        return [line for line in text.splitlines() if "→" in line or "shares" in line]

    _, foretold, _ = await ask(failover(), tmp_path, "demo/echo", "--without", "c1")
    away = [make.endpoint(f"10.1.0.{n}", condition=Condition.NOT_READY) for n in (1, 2)]
    _, seen, _ = await ask(failover().put(make.endpoints("c1", *away)), tmp_path, "demo/echo")
    assert lines(foretold) == lines(seen)


async def test_what_if_of_an_unknown_cluster_is_one_line(tmp_path: Path) -> None:
    code, _, error = await ask(failover(), tmp_path, "demo/echo", "--without", "c9")
    assert (code, error) == (1, "Error: --without c9: no such cluster\n")
