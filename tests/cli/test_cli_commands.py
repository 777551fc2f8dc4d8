"""The commands around ``get``: help, status, bpf maps, and starting a process."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from rows.admin_world import Process, list_clusters, serving

from isthmus.admin.protocol import ProcessStatus
from isthmus.cli import COMMANDS, local, remote, root
from isthmus.config import Config
from isthmus.datapath.core import shapes
from isthmus.datapath.core.maps import DictMaps
from isthmus.model import tables
from isthmus.model.clusters import Cluster
from isthmus.model.names import ClusterName
from isthmus.reflector import State
from isthmus.statedb import ReconcilerStats
from isthmus.times import timestamp


def isthmus(*arguments: str) -> Result:
    return CliRunner().invoke(root, arguments)


async def beside_the_loop(*arguments: str) -> Result:
    return await asyncio.to_thread(isthmus, *arguments)


def modules_after(*arguments: str) -> set[str]:
    """What a command has imported when it is done."""
    program = (
        "import sys, isthmus.cli\ntry: isthmus.cli.main()\nexcept SystemExit: print(*sys.modules, file=sys.stderr)"
    )
    ran = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], []])
def test_help_imports_no_command_and_nothing_that_takes_time(arguments: list[str]) -> None:
    ours = {name for name in modules_after(*arguments) if name.startswith("isthmus.")}
    assert ours == {f"isthmus.cli{module}" for module in ("", ".completion", ".contexts", ".lazy")}


def test_looking_imports_no_web_server() -> None:
    loaded = modules_after("get", "plans", "--socket", "/nowhere")
    assert not loaded & {"aiohttp", "grpc", "structlog", "isthmus.datapath", "isthmus.statedb"}


def test_help_names_every_command() -> None:
    shown = isthmus("--help").stdout
    assert all(name in shown and line.split()[0] in shown for name, (_, line) in COMMANDS.items())


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_of_its_own(name: str) -> None:
    result = isthmus(name, "--help")
    assert (result.exit_code, result.stdout.startswith("Usage: ")) == (0, True)


GROUPS = [name for name in (*COMMANDS, "lab") if isinstance(root.get_command(click.Context(root), name), click.Group)]


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_shows_the_whole_first_sentence_of_each_command(group: str) -> None:
    commands = isthmus(group, "--help").stdout.partition("Commands:")[2]
    assert commands
    assert "..." not in commands


def test_the_version_is_told() -> None:
    assert isthmus("--version").stdout == "isthmus 0.1.0\n"


def test_an_option_of_all_commands_behind_one_is_refused_with_its_place() -> None:
    result = isthmus("bpf", "maps", "--context", "c1")
    assert result.exit_code == 2
    assert "Error: --context comes before the command: root --context ...\n" in result.stderr


def test_a_context_may_be_given_after_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def find(context: str, **options: object) -> list[object]:
        asked.append(context)
        return []

    monkeypatch.setattr(remote, "find", find)
    for words in (("--context", "c1", "status"), ("status", "--context", "c1")):
        isthmus(*words)
    assert asked == ["c1", "c1"]
    assert "--context and --lab exclude each other" in isthmus("status", "--context", "c1", "--lab", "demo").stderr


def test_an_unknown_command_is_a_wrong_question() -> None:
    assert isthmus("fly").exit_code == 2


class Shown(ProcessStatus, frozen=True, kw_only=True):
    reflectors: dict[str, State]
    plans: ReconcilerStats
    place: str = "c1-n1"


@asynccontextmanager
async def away(tmp_path: Path) -> AsyncIterator[Process]:
    """A process whose source and peer are away."""
    state = State(synced=True, connected=False, lists=2, failures=3, last_failure="no route to host")
    stats = ReconcilerStats(outcome="1 updated", rounds=7, waiting=0, failing=0, pruned=True)
    shown = Shown(reflectors={"kubernetes/services": state}, plans=stats)
    async with serving(tmp_path / "agent.sock", status=shown) as process:
        process.put(tables.CLUSTERS, Cluster(name=ClusterName("c2"), state="stale", reason="connection refused"))
        yield process


async def test_status_names_what_is_wrong_and_counts_what_is_not_and_a_stale_peer_makes_it_end_with_1(
    tmp_path: Path,
) -> None:
    async with away(tmp_path) as process:
        result = await beside_the_loop("status", "--socket", str(process.socket))
    assert result.exit_code == 1
    head, *lines = result.stdout.splitlines()
    assert head.startswith("agent 0.1.0: not ready: cluster c2 is stale: connection refused, up ")
    assert lines == [
        f"  tables: {len(process.db.tables)} complete",
        "  sources: 0 of 1 watching",
        "    kubernetes/services: away; last known state; no route to host",
        "  clusters: 0 of 1 ready",
        "    cluster c2 is stale: connection refused",
        "  place: c1-n1",
        "",
    ]


async def test_status_in_wide_form_shows_each_table_source_and_cluster_and_all_counters(tmp_path: Path) -> None:
    async with away(tmp_path) as process:
        result = await beside_the_loop("status", "--socket", str(process.socket), "-o", "wide")
    assert result.exit_code == 1
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith("agent 0.1.0: not ready: cluster c2 is stale: connection refused, up ")
    assert "clusters 1 1 complete" in lines
    assert "kubernetes/services away; last known state 2 3 no route to host" in lines
    assert "c2 stale connection refused" in lines
    assert "plans: outcome 1 updated, rounds 7, waiting 0, failing 0, pruned yes" in lines


async def test_status_has_what_is_wrong_with_a_peers_file_beside_what_is_known_of_the_peer(tmp_path: Path) -> None:
    certificate, file = "c2.crt ends at 2026-11-25 12:00 UTC", "/peers/c2: endpoints: want a list of URLs"
    async with serving(tmp_path / "agent.sock") as process:
        process.put(
            tables.CLUSTERS, Cluster(name=ClusterName("c2"), state="ready", reason=certificate, file_problem=file)
        )
        result = await beside_the_loop("status", "--socket", str(process.socket))
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0].startswith(f"agent 0.1.0: not ready: cluster c2 is ready: {certificate}; {file}, up ")
    assert f"cluster c2 is ready: {certificate}; {file}" in lines


@pytest.mark.parametrize(("days", "problem"), [(1, True), (10, False)])
async def test_status_shows_a_peers_certificate_as_a_warning_and_as_a_problem_when_it_ends_within_two_days(
    tmp_path: Path, days: int, problem: bool
) -> None:
    ends = timestamp(datetime.now(UTC) + timedelta(days=days))
    reason = f"the certificate that https://192.0.2.2:2379 shows ends at {ends}"
    row = Cluster(name=ClusterName("c2"), state="ready", reason=reason, certificate_ends=ends)
    async with serving(tmp_path / "agent.sock") as process:
        process.put(tables.CLUSTERS, row)
        result = await beside_the_loop("status", "--socket", str(process.socket))
    assert (result.exit_code == 1) is problem
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert (f"cluster c2 is ready: {reason}" in lines) is problem
    assert (f"warning: cluster c2: {reason}" in lines) is not problem


async def test_status_has_a_line_for_each_fault_and_only_a_bug_makes_it_end_with_1(tmp_path: Path) -> None:
    for problems, code in (((), 0), (("what failed keeps its last state: plans demo/echo",), 1)):
        shown = ProcessStatus(problems=problems, faults=("trafficpolicies demo/p of policies: it cannot be read",))
        async with serving(tmp_path / f"{code}.sock", status=shown) as process:
            result = await beside_the_loop("status", "--socket", str(process.socket))
        assert result.exit_code == code
        assert "  fault: trafficpolicies demo/p of policies: it cannot be read" in result.stdout.splitlines()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of cluster c1, the only one of a lab; its processes are the test's."""
    monkeypatch.setattr(local, "LABS", tmp_path)
    list_clusters(tmp_path / "demo", "c1")
    folder = tmp_path / "demo" / "c1"
    folder.mkdir(parents=True)
    return folder


async def test_status_fits_40_lines_of_100_columns_however_much_is_wrong(cluster: Path) -> None:
    state = State(synced=True, connected=False, lists=2, failures=3, last_failure="no route to host " * 10)
    shown = Shown(
        reflectors={f"source-{n}": state for n in range(30)},
        plans=ReconcilerStats(outcome="", rounds=7, waiting=0, failing=0, pruned=True),
        place="somewhere far away " * 30,
        problems=tuple(f"problem {n} " * 20 for n in range(30)),
        faults=tuple(f"plans demo/{n} " * 20 for n in range(100)),
    )
    async with AsyncExitStack() as serve:
        for name in ("agent", "operator", "dns", "dns-second"):
            process = await serve.enter_async_context(serving(cluster / f"{name}.sock", status=shown))
            for n in range(50):
                process.put(
                    tables.CLUSTERS, Cluster(name=ClusterName(f"p{n}"), state="stale", reason="connection refused")
                )
        result = await beside_the_loop("status", "--cluster", "c1")
        whole = await beside_the_loop("status", "--cluster", "c1", "-o", "wide")
    lines = result.stdout.splitlines()
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 100
    for counted in ("sources: 0 of 30 watching", "clusters: 0 of 50 ready", "faults: 100, shown by -o wide"):
        assert f"  {counted}" in lines
    assert "plans demo/99" in whole.stdout


async def test_status_leaves_out_what_is_empty_and_counts_empty_tables(tmp_path: Path) -> None:
    stats = ReconcilerStats(outcome="", rounds=7, waiting=0, failing=0, pruned=True)
    async with serving(tmp_path / "agent.sock", status=Shown(reflectors={}, plans=stats, place="")) as process:
        process.put(tables.CLUSTERS, Cluster(name=ClusterName("c1"), own=True))
        done = await beside_the_loop("status", "--socket", str(process.socket), "-o", "wide")
    lines = done.stdout.splitlines()
    [heads] = [number for number, line in enumerate(lines) if line.split()[:1] == ["TABLE"]]
    assert lines[heads + 1].split() == ["clusters", "1", "1", "complete"]
    assert lines[heads + 2] == f"  tables that are complete and empty: {len(process.db.tables) - 1}"
    assert "  plans: rounds 7, waiting 0, failing 0, pruned yes" in lines
    assert not [line for line in lines if line.startswith("  place")]


async def test_status_of_ready_processes_and_peers_ends_with_0_and_its_json_has_no_repr(tmp_path: Path) -> None:
    stats = ReconcilerStats(outcome="1 updated", rounds=7, waiting=0, failing=0, pruned=True)
    async with serving(tmp_path / "agent.sock", status=Shown(reflectors={}, plans=stats)) as process:
        process.put(
            tables.CLUSTERS, Cluster(name=ClusterName("c1"), own=True), Cluster(name=ClusterName("c2"), state="ready")
        )
        result = await beside_the_loop("status", "--socket", str(process.socket), "-o", "json")
    assert result.exit_code == 0
    shown = json.loads(result.stdout)
    assert shown["ready"] is True
    assert shown["processes"]["agent"]["plans"]["rounds"] == 7
    assert '"<' not in result.stdout


async def test_status_of_a_process_that_waits_says_for_whom_and_ends_with_1(tmp_path: Path) -> None:
    async with serving(tmp_path / "agent.sock") as process:
        process.db.initializer(tables.NAMES, "clusterset/c2")
        result = await beside_the_loop("status", "--socket", str(process.socket))
        assert result.exit_code == 1
        assert result.stdout.startswith("agent 0.1.0: not ready: waiting for clusterset/c2, up ")
        shown = json.loads((await beside_the_loop("status", "--socket", str(process.socket), "-o", "json")).stdout)
        assert (shown["ready"], shown["processes"]["agent"]["tables"]["names"]["pending"]) == (False, ["clusterset/c2"])


async def test_status_of_a_labs_cluster_names_the_processes_that_are_missing(cluster: Path) -> None:
    async with serving(cluster / "agent.sock"):
        result = await beside_the_loop("status", "--cluster", "c1")
    assert result.exit_code == 1
    assert f"no process serves {cluster}/operator.sock" in result.stdout
    assert result.stdout.endswith("names are degraded: dns and dns-second are away, only the kernel answers\n")
    assert result.stderr == ""


@pytest.mark.parametrize(("away", "left"), [("dns", "dns-second"), ("dns-second", "dns")])
async def test_status_names_the_name_server_that_is_away_and_the_one_that_answers_and_ends_with_1(
    cluster: Path, away: str, left: str
) -> None:
    async with AsyncExitStack() as serve:
        for name in ("agent", "operator", left):
            await serve.enter_async_context(serving(cluster / f"{name}.sock"))
        degraded = await beside_the_loop("status", "--cluster", "c1")
        shown = json.loads((await beside_the_loop("status", "--cluster", "c1", "-o", "json")).stdout)
        await serve.enter_async_context(serving(cluster / f"{away}.sock"))
        whole = await beside_the_loop("status", "--cluster", "c1")
    sentence = f"names are degraded: {away} is away, {left} answers in its place"
    assert (degraded.exit_code, degraded.stdout.splitlines()[-1]) == (1, sentence)
    assert (shown["ready"], shown["degraded"], set(shown["processes"])) == (
        False,
        sentence,
        {"agent", "operator", left},
    )
    assert (whole.exit_code, "degraded" in whole.stdout) == (0, False)
    assert f"\n{left} 0.1.0: ready, up " in whole.stdout


def test_status_of_nobody_is_a_failure(tmp_path: Path) -> None:
    result = isthmus("status", "--socket", str(tmp_path / "none.sock"))
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith(f"no process serves {tmp_path}/none.sock")


def test_maps_that_are_not_pinned_are_named(tmp_path: Path) -> None:
    result = isthmus("bpf", "maps", "--pin", str(tmp_path))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"Error: no datapath at {tmp_path}: ")


class Pinned(DictMaps):
    """Maps of a dict in the place of the kernel's."""

    def close(self) -> None:
        """Nothing to give back."""


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A service and a cluster in the maps; where they were looked for."""
    asked: list[str] = []
    maps = Pinned()
    name = b"demo/echo:80/TCP/IPv4"
    maps.put("services", [(shapes.ID.pack(7), name.ljust(160, b"\0"))])
    maps.put("clusters", [(shapes.ID.pack(2), b"c2".ljust(32, b"\0"))])

    def open_maps(pin: str) -> Pinned:
        asked.append(pin)
        return maps

    monkeypatch.setattr("isthmus.datapath.open_maps", open_maps)
    return asked


def test_maps_are_shown_one_after_the_other_empty_ones_left_out(pinned: list[str]) -> None:
    result = isthmus("bpf", "maps")
    assert result.exit_code == 0
    assert [line.split() for line in result.stdout.splitlines()] == [
        ["services", "(1)"],
        ["NAME", "ID"],
        ["demo/echo:80/TCP/IPv4", "7"],
        [],
        ["clusters", "(1)"],
        ["NAME", "ID"],
        ["c2", "2"],
        [],
    ]
    assert pinned == ["/sys/fs/bpf/isthmus"]


def test_ids_can_be_masked_and_maps_be_chosen(pinned: list[str]) -> None:
    result = isthmus("bpf", "maps", "services", "--mask-ids", "-o", "json", "--pin", "/x")
    assert json.loads(result.stdout) == {"services": [{"name": "demo/echo:80/TCP/IPv4"}]}
    assert pinned == ["/x"]
    assert isthmus("bpf", "maps", "colours").exit_code == 2


def test_the_maps_of_a_labs_cluster_are_where_its_agent_pins_them(
    pinned: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LABS", tmp_path)
    list_clusters(tmp_path / "demo", "c1", "c2")
    assert isthmus("bpf", "maps", "--cluster", "c2").exit_code == 0
    assert pinned == [str(tmp_path / "demo/bpf/c2")]


def test_a_lab_whose_list_of_clusters_cannot_be_read_is_an_error_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "LABS", tmp_path)
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo" / "clusters.json").write_text('{"c1": {}}')
    result = isthmus("get", "names", "--cluster", "c1")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert result.stderr.startswith(f"Error: {tmp_path}/demo/clusters.json: Object missing required field `sockets`")


@pytest.mark.parametrize("process", ["agent", "dns", "operator"])
def test_a_process_runs_with_its_file_environment_and_flags_and_ends_with_its_code(
    process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[Config] = []

    def run(config: Config) -> int:
        ran.append(config)
        return 3

    monkeypatch.setattr(f"isthmus.processes.{process}.run", run)
    monkeypatch.setenv("ISTHMUS_CLUSTER_ID", "7")
    file = tmp_path / "config.toml"
    file.write_text('[cluster]\nname = "c1"\nid = 1\n')
    result = isthmus(process, "--config", str(file), "--set", "node.name=n1", "--set", "cluster.zone=a")
    assert (result.exit_code, ran[0].cluster.name, ran[0].cluster.id) == (3, "c1", 7)
    assert (ran[0].node.name, ran[0].cluster.zone) == ("n1", "a")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--config", "/nowhere.toml"], "Error: /nowhere.toml: cannot be read: No such file or directory\n"),
        (["--set", "x"], "Error: --set x: want section.field=value\n"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_one_line(arguments: list[str], why: str) -> None:
    result = isthmus("agent", *arguments)
    assert (result.exit_code, result.stderr) == (1, why)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_its_completion(shell: str) -> None:
    program = Path(sys.executable).with_name("isthmus")
    environment = os.environ | {"_ISTHMUS_COMPLETE": f"{shell}_source"}
    script = subprocess.run([program], env=environment, capture_output=True, text=True, check=True).stdout
    assert f"_ISTHMUS_COMPLETE={shell}_complete" in script


def test_commands_of_every_level_are_completed() -> None:
    program = Path(sys.executable).with_name("isthmus")
    for words, wanted in (("isthmus ", {"get", "status"}), ("isthmus bpf ", {"maps"})):
        asked = {"_ISTHMUS_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        printed = subprocess.run([program], env=os.environ | asked, capture_output=True, text=True, check=True).stdout
        assert wanted <= {line.partition(",")[2] for line in printed.splitlines()}
