"""Watches: what is sent, from where, until when, and how soon."""

from __future__ import annotations

import asyncio

from clusters.apiserver_world import ApiServer, Client, Object, connected, until

from isthmus.etcd import Session


def labelled(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


async def test_a_watch_begins_with_what_is_there_and_goes_on_with_what_happens(client: Client) -> None:
    await client.made("configmaps", labelled("a"))
    async with client.watch("configmaps?fieldSelector=metadata.name!=kube-root-ca.crt") as events:
        kind, obj = await events.next()
        assert (kind, obj["metadata"]["name"]) == ("ADDED", "a")
        await client.patch("configmaps/a", {"data": {"x": "1"}})
        kind, changed = await events.next()
        assert (kind, changed["data"]) == ("MODIFIED", {"x": "1"})
        await client.delete("configmaps/a")
        kind, gone = await events.next()
        assert kind == "DELETED"
        assert gone["data"] == {"x": "1"}
        assert int(gone["metadata"]["resourceVersion"]) > int(changed["metadata"]["resourceVersion"])


async def test_a_watch_from_a_version_delivers_all_that_came_after(client: Client) -> None:
    made = await client.made("leases", labelled("a"))
    await client.made("leases", labelled("b"))
    await client.delete("leases/a")
    async with client.watch(f"leases?resourceVersion={made['metadata']['resourceVersion']}") as events:
        assert [(k, o["metadata"]["name"]) for k, o in [await events.next(), await events.next()]] == [
            ("ADDED", "b"),
            ("DELETED", "a"),
        ]


async def test_objects_come_into_a_selection_and_leave_it(client: Client) -> None:
    await client.made("leases", labelled("a", on="no"))
    async with client.watch("leases?labelSelector=on=yes") as events:
        await client.patch("leases/a", labelled("a", on="yes"))
        assert (await events.next())[0] == "ADDED"
        await client.patch("leases/a", labelled("a", on="no"))
        assert (await events.next())[0] == "DELETED"


async def test_a_watch_of_one_namespace_hears_nothing_of_others(client: Client, server: ApiServer) -> None:
    async with connected(server, f"{client.namespace}-other") as other, client.watch("leases") as events:
        await other.made("leases", labelled("theirs"))
        await client.made("leases", labelled("mine"))
        assert (await events.next())[1]["metadata"]["name"] == "mine"


async def test_a_watch_ends_when_its_time_is_up(client: Client) -> None:
    async with client.watch("leases?timeoutSeconds=1") as events:
        assert await events.ended()


async def test_initial_events_end_with_a_bookmark(client: Client) -> None:
    await client.made("leases", labelled("a"))
    query = "sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan"
    async with client.watch(f"leases?{query}") as events:
        assert (await events.next())[0] == "ADDED"
        kind, bookmark = await events.next()
        assert kind == "BOOKMARK"
        assert bookmark["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


async def test_a_version_that_is_compacted_is_gone_in_the_watch_and_in_the_list(own_server: ApiServer) -> None:
    async with connected(own_server, "here") as client:
        first = await client.made("leases", labelled("a"))
        await client.made("configmaps", labelled("a"))
        await client.made("configmaps", labelled("b"))
        page = (await client.get("configmaps?limit=1")).body
        last = await client.made("leases", labelled("c"))
        async with Session([own_server.etcd.endpoint]) as session:
            await session.compact(int(last["metadata"]["resourceVersion"]))
        own_server.stop()
        own_server.start()
        await asyncio.to_thread(until, own_server.ready)
        async with client.watch(f"leases?resourceVersion={first['metadata']['resourceVersion']}") as events:
            kind, status = await events.next()
            assert (kind, status["code"], status["reason"]) == ("ERROR", 410, "Expired")
            assert await events.ended()
        late = await client.get(f"configmaps?limit=1&continue={page['metadata']['continue']}")
        assert (late.status, late.reason) == (410, "Expired")


async def test_a_version_of_another_store_is_gone(client: Client) -> None:
    async with client.watch("leases?resourceVersion=999999999") as events:
        kind, status = await events.next()
        assert (kind, status["code"]) == ("ERROR", 410)


async def test_a_watch_from_before_a_restart_goes_on(own_server: ApiServer) -> None:
    async with connected(own_server, "here") as client:
        first = await client.made("leases", labelled("a"))
        await client.made("leases", labelled("b"))
        assert own_server.stop() == 0
        own_server.start()
        await asyncio.to_thread(until, own_server.ready)
        async with client.watch(f"leases?resourceVersion={first['metadata']['resourceVersion']}") as events:
            assert (await events.next())[1]["metadata"]["name"] == "b"
            await client.made("leases", labelled("c"))
            assert (await events.next())[1]["metadata"]["name"] == "c"


async def test_etcd_going_away_and_coming_back_loses_nothing(own_server: ApiServer) -> None:
    async with connected(own_server, "here") as client:
        await client.made("leases", labelled("a"))
        async with client.watch("leases") as events:
            assert (await events.next())[1]["metadata"]["name"] == "a"
            own_server.etcd.stop()
            refused = await client.create("leases", labelled("b"))
            assert (refused.status, refused.reason) == (503, "ServiceUnavailable")
            assert (await client.get("leases/a")).status == 200
            own_server.etcd.start()
            async with asyncio.timeout(60):
                while (await client.create("leases", labelled("c"))).status == 503:
                    pass  # etcd's client waits before it tries again
            assert (await events.next())[1]["metadata"]["name"] == "c"


async def test_each_new_export_reaches_a_watcher_before_the_next_is_made(client: Client) -> None:
    async with client.watch("serviceexports") as events:
        for index in range(20):
            assert (await client.create("serviceexports", labelled(f"a{index}"))).status == 201
            assert (await events.next())[1]["metadata"]["name"] == f"a{index}"


async def test_an_etcd_that_lost_everything_is_a_new_beginning(own_server: ApiServer) -> None:
    async with connected(own_server, "here") as client:
        await client.made("leases", labelled("a"))
        async with client.watch("leases") as events:
            assert (await events.next())[0] == "ADDED"
            own_server.etcd.stop()
            own_server.etcd.wipe()
            own_server.etcd.start()
            kind, status = await events.next()
            assert (kind, status["code"]) == ("ERROR", 410)
        assert (await client.get("leases/a")).status == 404
        await client.until("/api/v1/namespaces/default/services/kubernetes", lambda body: body["kind"] == "Service")
