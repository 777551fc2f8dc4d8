"""What a process shows of its faults."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

import isthmus
from isthmus.config import Config
from isthmus.model.tables import FAULTS
from isthmus.processes import faults
from isthmus.processes.observing import Shown, View
from isthmus.running import Tasks
from isthmus.statedb import Database, Fault

DERIVED = Fault(part="plans", name="demo/echo", cause="bug", error="KeyError: 'c2'", where="plans.py:7", since=1.0)
POLICY = Fault(
    part="policies",
    kind="trafficpolicies.isthmus.io",
    name="demo/echo",
    cause="unreadable",
    error="Expected `array`, got `str` - at `$.spec.tiers`",
    since=2.0,
    uid="u1",
)
POD = Fault(part="pods", kind="pods", name="demo/web", cause="malformed", error="status.podIPs: 'x'", since=3.0)


def database(*rows: Fault) -> Database:
    db = Database(FAULTS)
    put(db, *rows)
    return db


def put(db: Database, *rows: Fault) -> None:
    with db.write() as txn:
        for row in rows:
            txn.put(FAULTS, row)


class Written:
    """What would be Events, in the place of the recorder that sends them."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str, str, str, str]] = []

    def record(self, kind: Any, *, namespace: str, name: str, uid: str, reason: str, message: str, **_: Any) -> None:
        self.events.append((kind.kind, f"{namespace}/{name}", uid, reason, message.partition(";")[0]))


async def test_a_bug_is_a_problem_and_a_tenants_object_is_not() -> None:
    async with Tasks() as tasks:
        shown = Shown(tasks, Config(), "isthmus_agent")
        shown.show(View(db=database(POLICY, POD)))
        assert shown.status().problems == ()
        shown.show(View(db=database(DERIVED, POLICY), problems=lambda: ["not attached"]))
        status = shown.status()
        tasks.cancel()
    assert status.problems == (
        "not attached",
        "what failed keeps its last state (isthmus get faults): demo/echo of plans: KeyError: 'c2' (plans.py:7)",
    )
    assert status.faults == (
        "demo/echo of plans: KeyError: 'c2' (plans.py:7)",
        "trafficpolicies.isthmus.io demo/echo of policies: Expected `array`, got `str` - at `$.spec.tiers`",
    )
    assert msgspec.json.encode(structs.asdict(status))


def test_status_has_a_few_sentences_and_the_number_of_the_others() -> None:
    rows = [structs.replace(POLICY, name=f"demo/p{n}") for n in range(7)]
    found = faults.sentences(database(*rows, structs.replace(DERIVED, name="(others)", count=40)).snapshot())
    assert len(found) == faults.MAX_SENTENCES + 1
    assert found[0].startswith("(others) of plans")
    assert found[-1] == "and 3 more: isthmus get faults"


def test_the_metric_counts_by_table_and_cause() -> None:
    others = structs.replace(DERIVED, name="(others)", count=40)
    [*samples] = faults.family("isthmus_agent", database(DERIVED, others, POLICY).snapshot()).samples
    assert {(each.name, *each.labels.values()): each.value for each in samples} == {
        ("isthmus_agent_faults", "plans", "bug"): 41,
        ("isthmus_agent_faults", "policies", "unreadable"): 1,
    }


@pytest.mark.looptime
async def test_an_event_is_written_about_the_object_that_is_at_fault() -> None:
    recorder, db = Written(), database(DERIVED, POLICY, POD, structs.replace(POLICY, part="observed"))
    task = asyncio.create_task(faults.record(db, recorder, faults.OF_OPERATOR))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    assert recorder.events == [("TrafficPolicy", "demo/echo", "u1", "Unreadable", POLICY.error)]
    of_pods = asyncio.create_task(faults.record(db, recorder, faults.OF_PODS))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    assert recorder.events[1:] == [("Pod", "demo/web", "", "Malformed", POD.error)]
    for each in (task, of_pods):
        each.cancel()


@pytest.mark.looptime
async def test_an_object_that_is_wrong_in_ever_other_ways_has_an_event_now_and_then() -> None:
    recorder, db = Written(), database(POLICY)
    task = asyncio.create_task(faults.record(db, recorder, faults.OF_OPERATOR))  # type: ignore[arg-type]
    for number in range(100):
        put(db, structs.replace(POLICY, error=f"number {number}"))
        await asyncio.sleep(1)
    await asyncio.sleep(faults.QUIET)
    assert 4 <= len(recorder.events) <= 6
    assert recorder.events[-1][-1] == "number 99"
    task.cancel()


@pytest.mark.looptime
async def test_a_unit_that_begins_to_fail_is_a_line_in_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    db = database(POLICY)
    task = asyncio.create_task(faults.log_bugs(db))
    for tries in (1, 2, 3):
        put(db, structs.replace(DERIVED, tries=tries))
        await asyncio.sleep(1)
    assert capsys.readouterr().err.count("KeyError: 'c2'") == 1
    task.cancel()


SOURCES = Path(isthmus.__file__).parent
DATABASES = [*sorted((SOURCES / "processes").glob("*.py")), SOURCES / "clusterset" / "mirror.py"]


def calls(path: Path, name: str) -> list[str]:
    """The source of each call of a class."""
    text = path.read_text()
    found = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return [ast.get_source_segment(text, node) or "" for node in found if ast.unparse(node.func) == name]


def test_every_process_with_tables_has_one_of_faults_and_its_derivations_write_to_it() -> None:
    databases = [(path.name, call) for path in DATABASES for call in calls(path, "Database")]
    derivations = [(path.name, call) for path in DATABASES for call in calls(path, "Derivations")]
    assert {name for name, _ in databases} >= {"agent.py", "mirror.py", "dns.py", "gateway.py", "operator.py"}
    assert {name for name, _ in derivations} >= {"agent.py", "gateway.py", "operator.py"}
    known = (SOURCES / "processes" / "operator.py").read_text().partition("known = (")[2].partition(")")[0]
    assert [call for _, call in databases if "FAULTS" not in call.replace("*known", known)] == []
    assert [call for _, call in derivations if "faults=tables.FAULTS" not in call] == []
