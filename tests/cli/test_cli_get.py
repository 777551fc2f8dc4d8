"""``isthmus get`` as people see it, against a process that serves its tables."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import signal
import struct
import sys
import termios
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result
from rows.admin_world import TABLES, Process, list_clusters, serving

from isthmus.cli import local, root, sockets
from isthmus.cli.columns import COLUMNS, title
from isthmus.model import tables
from isthmus.model.balancing import Backend, BackendKey, Failure, Frontend, FrontendKey, Group, Plan, PlanKey, Target
from isthmus.model.clusters import Cluster
from isthmus.model.dns import Name
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Condition, Import, Namespace, Pod, Port, Service
from isthmus.statedb import Database, Fault, Status, Table

ECHO = ServiceName("demo/echo")
DERIVED = derived(ECHO)
C1, C2 = ClusterName("c1"), ClusterName("c2")
PLAN = PlanKey(DERIVED, 80, "TCP", "IPv4")
FRONTEND = FrontendKey("10.96.0.7", 80, "TCP")


def plan(*targets: Target) -> Plan:
    return Plan(key=PLAN, frontends=(FRONTEND,), groups=(Group(targets),) if targets else (), import_of=ECHO)


TARGETS = Target("10.1.1.3", 8080, "TCP", C1), Target("10.2.1.3", 8080, "TCP", C2), Target("10.2.1.4", 8080, "TCP", C2)

ROWS: list[tuple[Table[Any, Any], Any]] = [
    (tables.CLUSTERS, Cluster(name=C1, id=1, own=True, state="ready", since="2026-01-01T00:00:00Z")),
    (tables.CLUSTERS, Cluster(name=C2, id=2, state="stale", reason="connection refused", synced=("services",))),
    (tables.NAMESPACES, Namespace("demo")),
    (tables.SERVICES, Service(name=ECHO, source="kubernetes", cluster_ips=("10.96.0.8",), ports=(Port("http", 80),))),
    (tables.SERVICES, Service(name=DERIVED, source="kubernetes", cluster_ips=("10.96.0.7",), import_of=ECHO)),
    (tables.IMPORTS, Import(name=ECHO, ports=(Port("http", 80),), ips=("10.96.0.7",), clusters=(C1, C2))),
    (tables.FRONTENDS, Frontend(key=FRONTEND, service=DERIVED, port_name="http", plan=PLAN, import_of=ECHO)),
    (
        tables.BACKENDS,
        Backend(
            key=BackendKey(DERIVED, C2, "10.2.1.3", 8080, "TCP"),
            port_names=("http",),
            condition=Condition.TERMINATING,
            node="c2-n1",
            import_of=ECHO,
        ),
    ),
    (tables.PLANS, plan(*TARGETS)),
    (tables.NAMES, Name("echo.demo.svc.clusterset.local", "A", ("10.96.0.7",), ECHO)),
    (tables.PODS, Pod(name="shop/cart", uid="u", ready=True, phase="Running", addresses=("10.1.1.9",))),
]


@pytest.fixture
async def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Process]:
    """An agent with a row in each table."""
    async with serving(tmp_path / "agent.sock") as process:
        for table, row in ROWS:
            process.put(table, row)
        monkeypatch.setenv(sockets.VARIABLE, str(process.socket))
        yield process


async def isthmus(*arguments: str) -> Result:
    """The command, beside the loop that serves."""
    return await asyncio.to_thread(CliRunner().invoke, root, arguments)


async def printed(*arguments: str) -> str:
    """The output of a command that succeeds."""
    result = await isthmus(*arguments)
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout


async def test_plans_show_the_import_what_is_called_and_how_many_targets_each_cluster_has(process: Process) -> None:
    assert await printed("get", "plans", "-A") == (
        "NAMESPACE   NAME   PORT     FRONTENDS          TARGETS     STATUS\n"
        "demo        echo   80/TCP   10.96.0.7:80/TCP   c1:1 c2:2   ok\n"
    )


async def test_what_the_reconciler_could_not_do_is_the_plans_status(process: Process) -> None:
    process.put(tables.PLANS_STATUS, Status(PLAN, "map slots is full", 3, 1.5))
    assert "c1:1 c2:2   map slots is full (tried 3×)" in await printed("get", "plans", "-A")
    shown = json.loads(await printed("get", "plans", "-A", "-o", "json"))
    assert shown["rows"][0]["status"] == {"ok": False, "error": "map slots is full"}


async def test_a_backend_that_the_kernel_has_ejected_has_the_reason_as_its_status(process: Process) -> None:
    key = BackendKey(DERIVED, C2, "10.2.1.3", 8080, "TCP")
    process.put(tables.FAILURES, Failure(key, "ejected until 04:54:53Z: silent", "silent", 5, since=1.0, until=4.0))
    assert "c2-n1   ejected until 04:54:53Z: silent\n" in await printed("get", "backends", "-A")


async def test_faults_have_a_table_a_cause_and_the_whole_of_what_is_wrong(process: Process) -> None:
    why = "Expected `array`, got `str` - at `$.spec.tiers`, which is longer than sixty characters"
    kind = "trafficpolicies.isthmus.io"
    process.put(
        tables.FAULTS, Fault(part="policies", kind=kind, name="demo/p", cause="unreadable", error=why, since=60.0)
    )
    shown = [" ".join(line.split()) for line in (await printed("get", "faults", "-A")).splitlines()]
    assert shown == [
        "NAMESPACE NAME TABLE KIND CAUSE SINCE TRIES ERROR",
        f"demo p policies {kind} unreadable 1970-01-01T00:01:00Z 1 {why}",
    ]


@pytest.mark.parametrize("table", ["drains", "policies", "routes"])
def test_a_sentence_about_what_is_wrong_is_never_cut(table: str) -> None:
    why = "spec.targetRef.kind: a cluster is drained from the namespace isthmus-system only"
    [invalid] = [each for each in COLUMNS[table] if each.head == "INVALID"]
    assert invalid.text({"invalid": why}) == why


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ("clusters", ["NAME ID STATE SYNCED SINCE REASON", "c1 1 ready (own) 2026-01-01T00:00:00Z"]),
        ("imports", ["NAMESPACE NAME TYPE IPS PORTS CLUSTERS", "demo echo ClusterSetIP 10.96.0.7 80/TCP c1,c2"]),
        ("frontends", ["NAMESPACE NAME ADDRESS TYPE PORT-NAME", "demo echo 10.96.0.7:80/TCP ClusterIP http"]),
        (
            "backends",
            [
                "NAMESPACE NAME CLUSTER ADDRESS CONDITION NODE STATUS",
                "demo echo c2 10.2.1.3:8080/TCP terminating c2-n1 ok",
            ],
        ),
        ("names", ["NAMESPACE NAME TYPE ANSWERS", "demo echo.demo.svc.clusterset.local A 10.96.0.7"]),
        ("namespaces", ["NAME STATUS", "demo Active"]),
        ("pods", ["NAMESPACE NAME READY PHASE ADDRESSES NODE", "shop cart yes Running 10.1.1.9"]),
    ],
)
async def test_each_table_has_columns_worth_reading(process: Process, table: str, expected: list[str]) -> None:
    lines = [" ".join(line.split()) for line in (await printed("get", table, "-A")).splitlines()]
    assert lines[:2] == expected


@pytest.mark.parametrize("table", ["caller_addresses", "address_identities"])
def test_the_account_of_an_address_is_called_by_the_address(table: str) -> None:
    assert title(table, {"cluster": C2, "address": "10.2.1.3", "number": 131_072}) == "10.2.1.3"


async def test_plain_and_derived_services_are_told_apart(process: Process) -> None:
    lines = (await printed("get", "services", "-n", "demo")).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["NAME", "IMPORT"],
        [DERIVED.partition("/")[2], "echo"],
        ["echo", "kubernetes"],
    ]


@pytest.mark.parametrize(
    ("typed", "table"), [("plan", "plans"), ("svc", "services"), ("svcim", "imports"), ("PODS", "pods")]
)
async def test_tables_have_the_names_people_use(process: Process, typed: str, table: str) -> None:
    assert await printed("get", typed, "-A") == await printed("get", table, "-A")


async def test_a_table_we_know_nothing_of_gets_columns_of_its_fields(process: Process) -> None:
    process.put(tables.PLANS_STATUS, Status(PLAN, "map slots is full", 3, 1.5))
    head, line = (await printed("get", "plans_status", "-A")).splitlines()
    assert head.split() == ["NAMESPACE", "NAME", "KEY", "ERROR", "ATTEMPTS", "NEXT-TRY"]
    assert "map slots is full   3" in line


async def test_wide_shows_more(process: Process) -> None:
    head, line = (await printed("get", "plans", "-n", "demo", "-o", "wide")).splitlines()
    assert "ADDRESSES" in head
    assert "10.1.1.3:8080@c1,10.2.1.3:8080@c2,10.2.1.4:8080@c2" in line


@pytest.mark.parametrize(("form", "read"), [("json", json.loads), ("yaml", yaml.safe_load)])
async def test_programs_get_whole_rows_and_whether_they_are_all(process: Process, form: str, read: Any) -> None:
    process.db.initializer(tables.IMPORTS, "kubernetes")
    shown = read(await printed("get", "imports", "-A", "-o", form))
    assert {key: shown[key] for key in ("table", "complete", "pending")} == {
        "table": "imports",
        "complete": False,
        "pending": ["kubernetes"],
    }
    assert shown["rows"][0]["clusters"] == ["c1", "c2"]


async def test_people_are_told_beside_the_rows_that_they_are_not_all(process: Process) -> None:
    process.db.initializer(tables.IMPORTS, "clusterset/c3")
    result = await isthmus("get", "imports", "-A")
    assert (result.exit_code, result.stderr) == (0, "not complete: still waiting for clusterset/c3\n")


@pytest.mark.parametrize("arguments", [["echo", "-n", "demo"], ["demo/echo"], ["echo", "-A"]])
async def test_a_name_filters_and_the_imports_name_finds_all_that_is_its(
    process: Process, arguments: list[str]
) -> None:
    process.put(tables.PLANS, Plan(key=PlanKey(ServiceName("demo/other"), 80, "TCP", "IPv4"), frontends=(), groups=()))
    for table in ("plans", "backends", "frontends", "names", "imports"):
        assert len((await printed("get", table, *arguments)).splitlines()) == 2


async def test_without_a_namespace_it_is_default_and_nothing_there_is_said_and_no_failure(process: Process) -> None:
    result = await isthmus("get", "plans")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "No plans in namespace default; -A looks in all namespaces\n"
    assert "c2" in await printed("get", "clusters")


async def test_a_name_that_is_not_there_is_a_failure(process: Process) -> None:
    result = await isthmus("get", "plans", "nobody", "-n", "demo")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: no plans called 'nobody' in namespace demo; -A looks in all namespaces\n"


async def test_a_table_that_is_not_there_is_a_failure_that_names_those_there_are(process: Process) -> None:
    result = await isthmus("get", "colours")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: no table 'colours' here; there are: services, imports, ")


async def test_nobody_there_is_a_failure_that_says_what_to_do(tmp_path: Path) -> None:
    result = await isthmus("get", "plans", "--socket", str(tmp_path / "none.sock"))
    assert result.exit_code == 1
    assert (
        result.stderr == f"Error: no process serves {tmp_path}/none.sock: start it, or name its socket with --socket\n"
    )


@pytest.mark.parametrize(
    "arguments", [[], ["plans", "-o", "xml"], ["plans", "-w", "-o", "yaml"], ["plans", "-w", "-o", "name"]]
)
async def test_asking_in_a_wrong_way_ends_with_2(process: Process, arguments: list[str]) -> None:
    result = await isthmus("get", *arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


async def test_names_are_printed_once_each_as_the_command_takes_them(process: Process) -> None:
    process.put(tables.IMPORTS, Import(name=ServiceName("shop/cart")))
    names = (await printed("get", "imports", "-A", "-o", "name")).split()
    assert names == ["demo/echo", "shop/cart"]
    assert await printed("get", "imports", names[1], "-o", "name") == "shop/cart\n"
    assert await printed("get", "backends", "-A", "-o", "name") == "demo/echo\n"
    assert await printed("get", "clusters", "-o", "name") == "c1\nc2\n"
    assert await printed("get", "imports", "-n", "other", "-o", "name") == ""


class Lab:
    """A lab's directory with an agent and an operator of cluster c1."""

    def __init__(self, root: Path) -> None:
        self.c1 = root / "demo" / "c1"
        self.c1.mkdir(parents=True)
        list_clusters(root / "demo", "c1", "c2")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    monkeypatch.setattr(local, "LABS", tmp_path / "labs")
    monkeypatch.setattr(sockets, "RUN", tmp_path / "nothing")
    monkeypatch.delenv(sockets.VARIABLE, raising=False)
    return Lab(tmp_path / "labs")


async def test_in_a_lab_the_agent_is_asked_and_the_operator_for_what_the_agent_has_not(lab: Lab) -> None:
    async with (
        serving(lab.c1 / "agent.sock", db=Database(tables.NAMESPACES)) as agent,
        serving(lab.c1 / "operator.sock", db=Database(tables.NAMESPACES, tables.CLUSTERS)) as operator,
    ):
        agent.put(tables.NAMESPACES, Namespace("of-the-agent"))
        operator.put(tables.NAMESPACES, Namespace("of-the-operator"))
        operator.put(tables.CLUSTERS, Cluster(name=C1))
        assert "of-the-agent" in await printed("get", "namespaces", "--cluster", "c1")
        assert "c1" in await printed("get", "clusters", "--cluster", "c1", "--lab", "demo")
        result = await isthmus("get", "colours", "--cluster", "c1")
        assert result.stderr.startswith("Error: no such table; there are: clusters, namespaces; no process serves ")


async def test_a_lab_or_cluster_that_is_not_there_or_not_said_is_named(lab: Lab) -> None:
    for arguments, code, why in (
        (["--cluster", "c9"], 1, "Error: lab 'demo' has no cluster 'c9'; it has: c1, c2"),
        (
            ["--cluster", "c1", "--lab", "x"],
            1,
            "Error: no lab 'x' on this machine; up are: demo; start it with: isthmus lab up",
        ),
        (["--lab", "demo"], 2, "Error: which cluster of lab 'demo'? add --cluster c1|c2"),
        ([], 2, "Error: which cluster? add --cluster c1|c2"),
    ):
        result = await isthmus("get", "plans", *arguments)
        assert (result.exit_code, result.stderr.splitlines()[-1]) == (code, why)


class Watching:
    """``isthmus get -w``, a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    async def line(self) -> str:
        assert self.process.stdout is not None
        async with asyncio.timeout(60):
            return (await self.process.stdout.readline()).decode().rstrip()


async def watching(process: Process, *arguments: str) -> Watching:
    environment = {**os.environ, sockets.VARIABLE: str(process.socket), "PYTHONUNBUFFERED": "1"}
    pipe = asyncio.subprocess.PIPE
    return Watching(
        await asyncio.create_subprocess_exec(
            sys.executable, "-m", "isthmus", "get", *arguments, "-w", env=environment, stdout=pipe, stderr=pipe
        )
    )


async def test_watching_tells_each_change_of_rows_and_of_their_status_until_it_is_interrupted(process: Process) -> None:
    seen = await watching(process, "plans", "-A")
    assert (await seen.line()).split()[:3] == ["EVENT", "NAMESPACE", "NAME"]
    assert (await seen.line()).split() == ["ADDED", "demo", "echo", "80/TCP", "10.96.0.7:80/TCP", "c1:1", "c2:2", "ok"]
    process.put(tables.PLANS, plan(TARGETS[0]))
    assert (await seen.line()).split() == ["MODIFIED", "demo", "echo", "80/TCP", "10.96.0.7:80/TCP", "c1:1", "ok"]
    process.put(tables.PLANS_STATUS, Status(PLAN, "full", 1, 1.5))
    assert (await seen.line()).endswith("c1:1        full (tried 1×)")
    process.delete(tables.PLANS, PLAN)
    assert (await seen.line()).split()[:3] == ["DELETED", "demo", "echo"]
    seen.process.send_signal(signal.SIGINT)
    assert await seen.process.communicate() == (b"", b"")
    assert seen.process.returncode == 0


async def test_watching_as_json_is_a_line_per_change_of_the_rows_asked_for(process: Process) -> None:
    seen = await watching(process, "imports", "echo", "-A", "-o", "json")
    assert json.loads(await seen.line())["event"] == "ADDED"
    process.put(tables.IMPORTS, Import(name=ServiceName("demo/other")))
    process.delete(tables.IMPORTS, ECHO)
    assert json.loads(await seen.line()) == {"event": "DELETED", "key": "demo/echo", "row": None}
    seen.process.send_signal(signal.SIGINT)
    await seen.process.communicate()


async def test_a_list_that_becomes_complete_while_it_is_watched_tells_only_what_differs(process: Process) -> None:
    source = process.db.initializer(tables.IMPORTS, "kubernetes")
    seen = await watching(process, "imports", "-A", "-o", "json")
    assert json.loads(await seen.line())["key"] == "demo/echo"
    with process.db.write() as txn:
        source.complete(txn)
    process.put(tables.IMPORTS, Import(name=ServiceName("demo/other")))
    assert json.loads(await seen.line())["key"] == "demo/other"
    seen.process.send_signal(signal.SIGINT)
    await seen.process.communicate()


async def test_watching_a_process_that_ends_is_a_failure(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.sock") as process:
        process.put(tables.CLUSTERS, Cluster(name=C1))
        seen = await watching(process, "clusters")
        await seen.line()
    _, shown = await seen.process.communicate()
    assert (seen.process.returncode, shown.decode()) == (1, f"Error: the process at {tmp_path}/agent.sock has ended\n")


async def test_on_a_terminal_watching_redraws_the_rows_as_they_are_now(process: Process) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    environment = {**os.environ, sockets.VARIABLE: str(process.socket), "TERM": "xterm"}
    command = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "isthmus", "get", "plans", "-A", "-w", env=environment, stdout=theirs
    )
    os.close(theirs)
    frames = Frames(ours)
    await frames.until("c1:1 c2:2")
    process.put(tables.PLANS, plan(TARGETS[0]))
    frame = await frames.until("c1:1      ok")
    assert "c2:2" not in frame
    assert frame.count("demo") == 1, "a row has one line, however often it changed"
    process.delete(tables.PLANS, PLAN)
    await frames.until("No plans")
    command.send_signal(signal.SIGINT)
    assert await command.wait() == 0
    assert frames.rest().endswith("\x1b[?25h\x1b[?1049lNo plans\r\n")


class Frames:
    """What a terminal receives, drawing by drawing."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._text = ""

    async def until(self, text: str) -> str:
        """The first drawing with a text."""
        async with asyncio.timeout(60):
            while True:
                drawn = [each for each in self._text.split("\x1b[H")[1:] if each.endswith("\x1b[J") and text in each]
                if drawn:
                    return drawn[-1]
                self._text += (await asyncio.to_thread(os.read, self._terminal, 65536)).decode()

    def rest(self) -> str:
        """All that was received, to the end."""
        try:
            while part := os.read(self._terminal, 65536):
                self._text += part.decode()
        except OSError:  # the other end is closed
            pass
        os.close(self._terminal)
        return self._text


def test_every_table_of_the_model_has_columns_or_is_a_status() -> None:
    from isthmus.cli.columns import COLUMNS

    declared = {table.name for table in vars(tables).values() if isinstance(table, Table)}
    assert {name for name in declared if name not in COLUMNS and not name.endswith("_status")} == set()
    assert len(TABLES) > 5
