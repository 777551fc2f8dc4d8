"""The page in a real browser: each view, keys, colours, hostile texts, many services, and a server that goes."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
from rows.ui_browser import ejected, fill, growing, opened, running_browser, spoiled
from rows.ui_page import agents, served_page
from rows.ui_world import ECHO, TOKEN, backend, backend_key, imported, peer

from isthmus.admin.feed import Feed
from isthmus.admin.protocol import ProcessStatus
from isthmus.model import tables
from isthmus.model.balancing import CallerFailure, Probe
from isthmus.model.clusters import Cluster
from isthmus.model.drains import Drain, Draining
from isthmus.model.flows import End, Flow
from isthmus.model.islands import GatewayCheck, RefusedGateway
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.policies import Policy
from isthmus.statedb import Fault, Table

pytestmark = [pytest.mark.ui, pytest.mark.slow]
CLUSTERS: Final = ["c1", "c2", "c3"]


@pytest.fixture
async def browser() -> AsyncIterator[Any]:
    async with running_browser() as found:
        yield found


# Each view


async def test_a_newcomer_sees_which_cluster_fails_and_why(browser: Any, tmp_path: Path) -> None:
    async with (
        agents(tmp_path, *CLUSTERS, counters=growing([ECHO], CLUSTERS)) as (processes, sources),
        served_page(sources) as served,
    ):
        fill(processes, CLUSTERS, [ECHO])
        async with opened(browser, served) as tab:
            await tab.shows("header .pill", "all is well")
            await tab.shows("aside", "Nothing that is asked finds anything wrong")
            await tab.until("() => document.querySelector('canvas').dataset.edges === '9'")
            processes[0].put(tables.FAILURES, ejected("c2", "10.1.0.1", ECHO))
            await tab.shows("header .pill", "something fails")
            await tab.shows("aside li", "Cluster c2 fails")
            await tab.shows("aside li", "c1: ejected: 3 connects: silent")
            await tab.shows(".marks li", "cluster c2 is failing")
            processes[0].delete(tables.FAILURES, backend_key("c2", "10.1.0.1"))
            await tab.shows("header .pill", "all is well")
            await tab.shows(".marks li", "cluster c2 is well again")


async def test_a_service_and_a_cluster_open_with_all_that_is_known_of_them(browser: Any, tmp_path: Path) -> None:
    feed: Feed[Flow] = Feed()
    feed.add([a_flow()], 0)
    async with (
        agents(tmp_path, *CLUSTERS, counters=growing([ECHO], CLUSTERS), feeds={"flows": feed}) as (processes, sources),
        served_page(sources) as served,
    ):
        fill(processes, CLUSTERS, [ECHO])
        processes[0].put(tables.POLICIES, Policy(name=ServiceName("demo/near"), target=ServiceName(ECHO)))
        async with opened(browser, served, fragment="view=table") as tab:
            await tab.shows("caption", "Services")
            await tab.get_by_role("button", name=ECHO).first.click()
            await tab.shows("#tabpanel td", "10.1.0.1")
            await tab.shows("#tabpanel li", "c1 TrafficPolicy demo/near")
            await tab.shows("#tabpanel li", "c1 → c2")
            await tab.get_by_role("tab", name="Flows").click()
            await tab.shows("#tabpanel td", "demo/client")
            await tab.get_by_role("tab", name="Events").click()
            await tab.shows("#tabpanel", "no kubeconfig of this cluster is known here")
            await tab.get_by_role("tab", name="Diagnose").click()
            await tab.shows("#tabpanel code", f"isthmus diagnose {ECHO} --socket")
            await tab.get_by_role("tab", name="Explain").click()
            await tab.shows("#tabpanel code", f"isthmus explain {ECHO} --socket")
            await tab.get_by_role("button", name="Close").click()
            await tab.get_by_role("button", name="c2", exact=True).click()
            await tab.shows("aside", "As other clusters find it")
            await tab.shows("aside li", "c1: ready")


async def test_the_urls_fragment_is_what_is_shown_and_never_has_the_token(browser: Any, tmp_path: Path) -> None:
    async with agents(tmp_path, *CLUSTERS) as (processes, sources), served_page(sources) as served:
        fill(processes, CLUSTERS, [ECHO, "shop/cart"])
        async with opened(browser, served) as tab:
            await tab.get_by_label("Namespace").select_option("shop")
            await tab.get_by_role("button", name="Table").click()
            await tab.get_by_role("button", name="shop/cart").first.click()
            url: str = tab.url
            assert TOKEN not in url
        async with opened(browser, served, fragment=url.partition("#")[2]) as other:
            await other.shows("aside h2", "shop/cart")
            assert await other.locator("tbody th", has_text=ECHO).count() == 0
        window = await browser.new_context()
        tab = await window.new_page()
        await tab.goto(url)
        await tab.get_by_label("URL").fill(served.url)
        await tab.get_by_role("button", name="Open").click()
        await tab.locator("aside h2", has_text="shop/cart").wait_for()
        assert TOKEN not in tab.url
        await window.close()


async def test_it_is_used_by_keys_alone_and_speaks(browser: Any, tmp_path: Path) -> None:
    async with agents(tmp_path, *CLUSTERS) as (processes, sources), served_page(sources) as served:
        fill(processes, CLUSTERS, [ECHO])
        processes[0].put(tables.FAILURES, ejected("c2", "10.1.0.1", ECHO))
        async with opened(browser, served) as tab:
            await tab.shows("aside li", "Cluster c2 fails")
            for _ in range(30):
                await tab.keyboard.press("Tab")
                if await tab.evaluate("document.activeElement.tagName") == "CANVAS":
                    break
            label = await tab.evaluate("document.activeElement.getAttribute('aria-label')")
            assert "3 clusters" in label
            assert "not well: c2" in label
            await tab.keyboard.press("ArrowRight")
            await tab.shows(".map .spoken", "Cluster c1: well")
            await tab.keyboard.press("ArrowRight")
            await tab.shows(".map .spoken", "Cluster c2: fails")
            await tab.keyboard.press("ArrowDown")
            await tab.shows(".map .spoken", "Service demo/echo in c2: fails")
            await tab.keyboard.press("Enter")
            await tab.shows("aside h2", ECHO)
            await tab.get_by_role("tab", name="Overview").focus()
            await tab.keyboard.press("ArrowRight")
            await tab.until("() => document.activeElement.dataset.tab === 'diagnose'")
            await tab.keyboard.press("Escape")
            await tab.shows("aside h2", "What is wrong")
            nameless = "els => els.filter(e => !(e.innerText || e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)"
            assert await tab.locator("button, input, select, canvas[tabindex]").evaluate_all(nameless) == []


async def test_colours_follow_the_system_until_one_chooses(browser: Any, tmp_path: Path) -> None:
    colour = "getComputedStyle(document.body).backgroundColor"
    async with agents(tmp_path, "c1") as (processes, sources), served_page(sources) as served:
        fill(processes, ["c1"], [ECHO])
        async with opened(browser, served, color_scheme="light") as tab:
            light = await tab.evaluate(colour)
            await tab.emulate_media(color_scheme="dark")
            await tab.until(f"() => {colour} !== '{light}'")
            await tab.get_by_role("button", name="Colours: as the system").click()
            await tab.get_by_role("button", name="Colours: dark").click()
            await tab.until(f"() => {colour} === '{light}'")
            await tab.reload()
            await tab.shows("header button", "light")
            await tab.until(f"() => {colour} === '{light}'")


async def test_a_server_that_goes_is_told_and_what_is_shown_is_as_of_then(browser: Any, tmp_path: Path) -> None:
    async with agents(tmp_path, *CLUSTERS) as (processes, sources):
        fill(processes, CLUSTERS, [ECHO])
        async with served_page(sources) as served:
            window = await browser.new_context()
            tab = await window.new_page()
            await tab.goto(served.url)
            await tab.locator("header .pill", has_text="all is well").wait_for()
        await tab.locator("[role=alert]", has_text="Not live").wait_for(timeout=60_000)
        await tab.locator("main.outdated").wait_for()
        assert await tab.locator("header .pill.ok").count() == 0
        await window.close()


MOVED_AS_A_PICTURE: Final = """() => {
    const now = performance.now, picture = globalThis.isthmusPicture;
    performance.now = () => 0;  // a machine on which the commands of a drawing take no time
    picture.drawAll();
    picture.zoom(1.1, 100, 100);
    const moving = Boolean(picture.moving);
    performance.now = now;
    return moving;
}"""


async def test_500_services_of_10_clusters_are_shown_searched_and_moved(browser: Any, tmp_path: Path) -> None:
    clusters, services = [f"c{n}" for n in range(1, 11)], [f"team{n % 20}/service-{n}" for n in range(500)]
    counters = growing(services[:100], clusters)
    async with agents(tmp_path, *clusters, counters=counters) as (processes, sources), served_page(sources) as served:
        fill(processes, clusters, services)
        async with opened(browser, served) as tab:
            await tab.until("() => document.querySelector('canvas')?.dataset.nodes === '5000'")
            await tab.shows(".legend", "kinds of calls are drawn")
            assert await tab.evaluate(MOVED_AS_A_PICTURE)
            await tab.get_by_label("Search").fill("service-499")
            await tab.until("() => document.querySelector('canvas').dataset.nodes === '10'")
            await tab.get_by_role("button", name="Table").click()
            assert await tab.locator("table:nth-of-type(2) tbody tr").count() == 1
            await tab.get_by_label("Search").fill("")
            await tab.shows("button", "Show more: 300 are left")


# Hostile texts

HOSTILE: Final = (
    "<img src=x onerror=globalThis.pwned=1><svg onload=globalThis.pwned=2>'\"&lt;`${globalThis.pwned=3}`\u202e"
)
JOINED: Final = frozenset({"key", "name", "cluster", "clusters", "service", "import_of", "target", "by", "derived"})
"""Fields by which rows are joined: their values are hostile as they are made."""


def a_flow(service: str = ECHO, **more: Any) -> Flow:
    end = End("c1", "10.1.0.1:8080")
    return Flow(
        **{
            "time": 1_795_000_000.0, "id": 1, "state": "connected", "verdict": "called", "protocol": "TCP",
            "node": "n1", "pod": "demo/client", "source": "10.0.0.9:1", "service": f"{service}:80",
            "called": "10.96.0.1:80", "asked": end, "answered": end, "took": 0.1, **more,
        }
    )  # fmt: skip


async def test_hostile_texts_in_every_field_are_shown_as_text(browser: Any, tmp_path: Path) -> None:
    mine, theirs, service = (ClusterName(f"{HOSTILE}{name}") for name in ("c1", "c2", "demo/echo"))
    feed: Feed[Flow] = Feed()
    feed.add([spoiled(a_flow(service), HOSTILE, frozenset({"service"}))], 0)
    status = ProcessStatus(problems=(HOSTILE,), warnings=(HOSTILE,), faults=(HOSTILE,))
    kubectl = tmp_path / "kubectl"
    event = {"type": HOSTILE, "reason": HOSTILE, "message": HOSTILE, "lastTimestamp": HOSTILE}
    items = [event | {"involvedObject": {"kind": HOSTILE, "name": service.partition("/")[2]}}]
    kubectl.write_text(f"#!/usr/bin/env python3\nimport json\nprint(json.dumps({{'items': {items!r}}}))\n")
    kubectl.chmod(kubectl.stat().st_mode | stat.S_IXUSR)
    counters = growing([service], [mine, theirs])
    rows: dict[Table[Any, Any], list[Any]] = {
        tables.CLUSTERS: [
            Cluster(name=mine, own=True, state="ready"),
            peer(theirs, state="stale", network="n", gateways=("1.2.3.4:1", "1.2.3.4:2"), reason="x"),
        ],
        tables.IMPORTS: [imported(service, mine, theirs)],
        tables.BACKENDS: [backend(mine, "10.1.0.1", service), backend(theirs, "10.2.0.1", service)],
        tables.FAILURES: [ejected(theirs, "10.2.0.1", service)],
        tables.PROBES: [Probe(backend_key(mine, "10.1.0.1", service), False, "x")],
        tables.CALLER_FAILURES: [
            CallerFailure(
                caller=1, key=backend_key(mine, "10.1.0.1", service), pod="x", reason="x", failures=1, since=1, until=2
            )
        ],
        tables.POLICIES: [Policy(name=ServiceName(service), target=ServiceName(service))],
        tables.DRAINING: [Draining(by=mine, drain=Drain(kind="Cluster", target=mine, reason="x"), left=5)],
        tables.GATEWAY_CHECKS: [GatewayCheck(cluster=theirs, address="1.2.3.4:1", healthy=False, reason="x")],
        tables.REFUSED_GATEWAYS: [RefusedGateway(cluster=theirs, address="1.2.3.4:2", message="x")],
        tables.FAULTS: [Fault(part="x", name="x", cause="bug", error="x", since=1.0)],
    }
    async with agents(tmp_path, "a", status=status, counters=counters, feeds={"flows": feed}) as ([process], sources):
        for table, found in rows.items():
            process.put(table, *(spoiled(row, HOSTILE, JOINED) for row in found))
        async with (
            served_page(sources, kubectl={"a": [str(kubectl)]}) as served,
            opened(browser, served) as tab,
        ):
            await tab.shows("aside li", "<img src=x onerror=")
            await tab.shows(".marks li", "<svg onload=")
            await tab.until("() => document.querySelector('canvas').dataset.nodes === '2'")
            await tab.get_by_role("button", name="Table").click()
            for button in range(3):
                await tab.locator("tbody button").nth(button).click()
                await tab.shows("aside h2", "<img src=x onerror=")
            for name in ("Overview", "Diagnose", "Explain", "Flows", "Events"):
                await tab.get_by_role("tab", name=name).click()
                await tab.shows("#tabpanel", "onerror=")
            seen = await tab.evaluate("document.body.innerText")
            assert "\u202e" not in seen
            assert "\\u{202e}" in seen
            assert await tab.evaluate("[globalThis.pwned ?? 0, document.querySelectorAll('img, svg').length]") == [0, 0]
            assert await tab.evaluate("document.querySelectorAll('script').length") == 1


async def test_the_browser_itself_refuses_to_make_html_of_text(browser: Any, tmp_path: Path) -> None:
    async with agents(tmp_path, "c1") as (processes, sources), served_page(sources) as served:
        fill(processes, ["c1"], [ECHO])
        async with opened(browser, served) as tab:
            refused = "try { document.body.innerHTML = '<b>x</b>'; 'made' } catch (error) { error.name }"
            assert await tab.evaluate(refused) == "TypeError"
            tab.errors.clear()  # the browser complains of that attempt
