"""The admin socket: what a list and a watch promise, and what a client may cost."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from rows.admin_world import eventually, serving

from isthmus.admin.protocol import ProcessStatus, encode, key_text
from isthmus.config import ConfigError
from isthmus.model import chunked, tables
from isthmus.model.balancing import BackendKey, Group, Plan, PlanKey, Target
from isthmus.model.clusters import Cluster
from isthmus.model.dns import Name
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Namespace, Pod, Service
from isthmus.model.tables import CLUSTERS, FAULTS, NAMES, NAMESPACES
from isthmus.statedb import Database


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "agent.sock"


def a_name(n: int, *, answers: int = 1) -> Name:
    return Name(f"n{n}.demo.svc.clusterset.local", "A", tuple(f"10.96.0.{i}" for i in range(answers)))


async def ask(path: Path, question: str) -> tuple[int, Any]:
    connector = aiohttp.UnixConnector(str(path))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get(f"http://isthmus/v1/{question}") as response,
    ):
        return response.status, json.loads(await response.read())


class Watch:
    """A raw client that reads when it wants to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, path: Path, question: str, *, buffer: int = 1 << 16) -> Watch:
        raw = socket.socket(socket.AF_UNIX)
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        raw.connect(str(path))
        reader, writer = await asyncio.open_unix_connection(sock=raw, limit=buffer)
        writer.write(f"GET /v1/{question} HTTP/1.0\r\n\r\n".encode())
        return cls(reader, writer)

    async def head(self) -> int:
        """The status, once it has come."""
        head = await self._reader.readuntil(b"\r\n\r\n")
        return int(head.split()[1])

    async def line(self) -> Any:
        """The next line; None at the end."""
        text = await self._reader.readline()
        return json.loads(text) if text else None

    async def rest(self) -> list[Any]:
        """All lines to the end."""
        lines = []
        while (line := await self.line()) is not None:
            lines.append(line)
        return lines

    async def close(self) -> None:
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()


Follow = Callable[..., Awaitable[Watch]]


@pytest.fixture
async def follow(path: Path) -> AsyncIterator[Follow]:
    """Opens watches, and closes them when the test ends."""
    watches: list[Watch] = []

    async def open_one(question: str, **more: Any) -> Watch:
        watches.append(await Watch.open(path, question, **more))
        return watches[-1]

    yield open_one
    for watch in watches:
        await watch.close()


async def test_a_table_that_is_in_order_is_listed_below_a_name_and_another_one_whole(path: Path) -> None:
    async with serving(path) as process:
        process.put(tables.PODS, *(Pod(name=name, uid="1") for name in ("demo/a", "other/a")))
        process.put(
            tables.SERVICES,
            *(Service(name=ServiceName(name), source="x") for name in ("demo/b", "demo/a", "demo2/a", "a/demo")),
        )
        _, found = await ask(path, "tables/services?under=demo/")
        assert [row["name"] for row in found["rows"]] == ["demo/a", "demo/b"]
        assert [len((await ask(path, f"tables/{each}"))[1]["rows"]) for each in ("services", "pods")] == [4, 2]
        _, found = await ask(path, "tables/pods?under=demo/")
        assert len(found["rows"]) == 2


async def test_the_socket_is_its_owners_only_and_goes_with_the_server(path: Path) -> None:
    async with serving(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


async def test_a_socket_that_a_dead_process_left_is_replaced(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    async with serving(path):
        assert (await ask(path, "tables"))[0] == 200


async def test_a_socket_that_another_process_serves_is_not_taken(path: Path) -> None:
    async with serving(path) as first:
        with pytest.raises(ConfigError, match=r"admin.socket = '.*agent.sock': another process serves there"):
            async with serving(path):
                pass
        assert (await ask(path, "tables"))[1]["instance"] == first.server.instance


async def test_a_server_takes_no_name_away_that_another_has_put_there_since(path: Path) -> None:
    async with serving(path):
        path.unlink()
        path.write_text("somebody else's")
    assert path.read_text() == "somebody else's"


async def test_a_path_that_cannot_be_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="longer than the 106 bytes"):
        async with serving(tmp_path / ("x" * 107)):
            pass
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"admin.socket = '.*/file/x': File exists .*/file.$"):
        async with serving(tmp_path / "file" / "x"):
            pass


async def test_it_names_its_tables_with_their_numbers(path: Path) -> None:
    async with serving(path) as process:
        process.db.initializer(NAMES, "derive")
        process.put(NAMESPACES, Namespace("demo"))
        _, shown = await ask(path, "tables")
        assert shown["tables"]["namespaces"] == {"rows": 1, "revision": 1, "readers": 0, "unread": 0, "pending": []}
        assert shown["tables"]["names"]["pending"] == ["derive"]


class Shown(ProcessStatus, frozen=True, kw_only=True):
    plans: str


async def test_a_problem_makes_a_process_not_ready(path: Path) -> None:
    async with serving(path, status=ProcessStatus(problems=("not attached",))):
        _, shown = await ask(path, "status")
        assert (shown["ready"], shown["problems"]) == (False, ["not attached"])


async def test_the_status_has_what_the_process_adds_and_is_ready_when_nothing_is_pending(path: Path) -> None:
    async with serving(path, status=Shown(plans="all is well")) as process:
        source = process.db.initializer(NAMES, "derive")
        assert (await ask(path, "status"))[1]["ready"] is False
        with process.db.write() as txn:
            source.complete(txn)
        _, shown = await ask(path, "status")
        assert (shown["ready"], shown["plans"], shown["version"]) == (True, "all is well", "0.1.0")


async def test_a_list_has_the_rows_under_keys_as_text(path: Path) -> None:
    async with serving(path) as process:
        process.put(NAMES, a_name(1))
        status, shown = await ask(path, "tables/names")
        assert (status, shown["complete"], shown["pending"], shown["revision"]) == (200, True, [], 1)
        assert shown["instance"] == process.server.instance
        assert shown["keys"] == ['["n1.demo.svc.clusterset.local","A"]']
        assert shown["rows"][0]["answers"] == ["10.96.0.0"]


async def test_a_list_waits_until_the_table_is_complete(path: Path) -> None:
    async with serving(path) as process:
        source = process.db.initializer(NAMES, "derive")
        asked = asyncio.create_task(ask(path, "tables/names"))
        await asyncio.sleep(0.1)
        assert not asked.done()
        with process.db.write() as txn:
            txn.put(NAMES, a_name(1))
            source.complete(txn)
        assert len((await asked)[1]["rows"]) == 1


@pytest.mark.parametrize("question", ["tables/names?wait=0", "tables/names"])
async def test_a_list_that_has_waited_long_enough_is_marked_partial_and_says_for_whom(
    path: Path, question: str
) -> None:
    async with serving(path, timeout=0.05) as process:
        process.db.initializer(NAMES, "clusterset/c2")
        _, shown = await ask(path, question)
        assert (shown["complete"], shown["pending"]) == (False, ["clusterset/c2"])


async def test_a_watch_begins_with_the_list_and_goes_on_with_what_changes(path: Path, follow: Follow) -> None:
    async with serving(path) as process:
        process.put(NAMES, a_name(1))
        watch = await follow("tables/names?watch=1")
        assert await watch.head() == 200
        assert len((await watch.line())["list"]["rows"]) == 1
        process.put(NAMES, a_name(2))
        line = await watch.line()
        assert (line["revision"], len(line["events"]), line["events"][0]["row"]["name"][:2]) == (2, 1, "n2")
        process.delete(NAMES, (a_name(1).name, "A"))
        assert (await watch.line())["events"] == [{"key": key_text((a_name(1).name, "A")), "row": None}]


async def test_a_watch_from_a_list_goes_on_where_the_list_ended(path: Path, follow: Follow) -> None:
    async with serving(path) as process:
        process.put(NAMES, a_name(1))
        _, shown = await ask(path, "tables/names")
        watch = await follow(f"tables/names?watch=1&instance={shown['instance']}&revision={shown['revision']}")
        assert await watch.head() == 200
        process.put(NAMES, a_name(2))
        assert (await watch.line())["revision"] == 2


async def test_another_instance_or_a_revision_of_the_past_is_gone(path: Path) -> None:
    async with serving(path) as process:
        process.put(NAMES, a_name(1))
        for query in ("instance=another&revision=1", f"instance={process.server.instance}&revision=0"):
            status, shown = await ask(path, f"tables/names?watch=1&{query}")
            assert (status, "list again" in shown["error"]) == (410, True)


async def test_a_watch_of_a_partial_list_ends_when_the_table_is_complete_so_that_it_is_listed_whole(
    path: Path, follow: Follow
) -> None:
    async with serving(path, timeout=0.01) as process:
        source = process.db.initializer(NAMES, "derive")
        watch = await follow("tables/names?watch=1")
        await watch.head()
        assert (await watch.line())["list"]["complete"] is False
        with process.db.write() as txn:
            txn.put(NAMES, a_name(1))
            source.complete(txn)
        events, end = await watch.rest()
        assert len(events["events"]) == 1
        assert end == {"expired": "table 'names' is complete now"}


async def test_a_question_that_makes_no_sense_is_answered_with_what_would(path: Path) -> None:
    async with serving(path) as process:
        assert process.server.watching == 0
        status, shown = await ask(path, "tables/colours")
        assert status == 404
        assert shown["error"].startswith("no table 'colours' here; there are: services, ")
        assert "names" in shown["tables"]
        for query in (
            "wait=long",
            "wait=nan",
            "wait=inf",
            "wait=-1",
            "wait=1e9",
            f"revision={'9' * 4400}",
            "revision=%C2%B2",
        ):
            status, shown = await ask(path, f"tables/names?watch=1&{query}")
            assert (status, shown["error"].partition(":")[0]) == (400, query.partition("=")[0])
        assert await ask(path, "nothing") == (404, {"error": "/v1/nothing: Not Found", "tables": []})


async def test_a_client_that_leaves_takes_its_reader_with_it(path: Path, follow: Follow) -> None:
    async with serving(path) as process:
        watch = await follow("tables/names?watch=1")
        await watch.head()
        assert process.server.watching == 1
        await watch.close()
        await eventually(lambda: not process.db.stats()["names"].readers)


async def test_a_client_that_falls_too_far_behind_is_told_to_list_again(path: Path, follow: Follow) -> None:
    async with serving(path, unread=10) as process:
        watch = await follow("tables/names?watch=1")
        await watch.head()
        await watch.line()
        process.put(NAMES, *(a_name(n) for n in range(11)))
        [end] = await watch.rest()
        assert end == {"expired": "more than 10 rows of 'names' changed between two reads"}
        assert process.server.dropped == 1


async def test_a_client_that_reads_nothing_is_cut_off_and_costs_no_memory_while_it_lasts(
    path: Path, follow: Follow
) -> None:
    async with serving(path, stall=0.2) as process:
        process.put(NAMES, *(a_name(n, answers=50) for n in range(2_000)))
        await follow("tables/names?watch=1", buffer=4096)
        await eventually(lambda: process.server.dropped == 1 and not process.server.watching)
        assert process.db.stats()["names"].readers == 0


async def test_the_server_ends_while_it_is_watched(path: Path, follow: Follow) -> None:
    async with serving(path):
        watch = await follow("tables/names?watch=1")
        await watch.head()
        await watch.line()
    async with asyncio.timeout(60):
        assert await watch.rest() == []


async def test_rows_of_a_nested_key_and_plain_keys_have_their_natural_text() -> None:
    assert key_text("demo") == "demo"
    assert key_text(PlanKey(ServiceName("demo/echo"), 80, "TCP", "IPv4")) == "demo/echo:80/TCP/IPv4"
    backend = BackendKey(ServiceName("demo/echo"), ClusterName("c1"), "10.1.1.1", 80, "TCP")
    assert json.loads(key_text(backend))["address"] == "10.1.1.1"


async def test_a_table_of_many_rows_is_told_whole(path: Path, follow: Follow) -> None:
    async with serving(path) as process:
        process.put(CLUSTERS, *(Cluster(name=ClusterName(f"c{n}")) for n in range(3_000)))
        watch = await follow("tables/clusters?watch=1", buffer=1 << 22)
        await watch.head()
        assert len((await watch.line())["list"]["rows"]) == 3_000
        process.put(CLUSTERS, *(Cluster(name=ClusterName(f"c{n}"), id=1) for n in range(1_200)))
        sizes = [len((await watch.line())["events"]) for _ in range(3)]
        assert sizes == [500, 500, 200]


def test_a_plan_with_many_targets_is_an_array_of_them_as_any_other() -> None:
    targets = [Target(f"10.1.{n >> 8}.{n & 255}", 80, "TCP", ClusterName("c1")) for n in range(300)]
    row = Plan(PlanKey(ServiceName("demo/s"), 80, "TCP", "IPv4"), (), (Group(chunked.sequence(sorted(targets))),))
    [group] = msgspec.json.decode(encode(row), type=Plan).groups
    assert group.targets == tuple(sorted(targets))


async def test_a_row_that_cannot_be_written_costs_itself_in_lists_and_watches(path: Path) -> None:
    bad = Name("bad.demo.svc.clusterset.local", "A", ("\ud800",))
    async with serving(path, db=Database(NAMES, FAULTS)) as process:
        process.put(NAMES, a_name(1))
        process.put(NAMES, bad)
        status, listed = await ask(path, "tables/names")
        assert (status, [row["name"] for row in listed["rows"]]) == (200, [a_name(1).name])
        assert [json.loads(key)[0] for key in listed["keys"]] == [a_name(1).name]
        watch = await Watch.open(path, "tables/names?watch=1")
        assert await watch.head() == 200
        assert len((await watch.line())["list"]["rows"]) == 1
        with process.db.write() as txn:
            txn.put(NAMES, Name("\ud800", "A", ()))
            txn.put(NAMES, a_name(2))
        assert [event["row"]["name"] for event in (await watch.line())["events"]] == [a_name(2).name]
        await watch.close()
        found = {(row.part, row.kind, row.error.partition(":")[0]) for row in process.db.snapshot().all(FAULTS)}
        assert found == {("admin socket", "rows", "UnicodeEncodeError")}


async def test_a_status_that_raises_is_a_problem_and_tables_are_shown(path: Path) -> None:
    async with serving(path) as process:
        process.server.show(process.db, status=lambda: ProcessStatus(problems=(str(1 // 0),)))
        status, found = await ask(path, "status")
        assert (status, found["ready"]) == (200, False)
        assert found["problems"][0].startswith("the status cannot be computed: ZeroDivisionError")
        assert "names" in found["tables"]
