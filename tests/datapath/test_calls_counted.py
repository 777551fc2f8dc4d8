"""What became of calls is counted by service, cluster and verdict, and agrees with what the callers saw."""

from __future__ import annotations

import pytest
from datapath_worlds.bpf_world import Load, group, places, plan, programmed
from datapath_worlds.failing_backends import GOOD, REFUSES, SILENT, VIP
from labs.lab_running import until
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.registry import CollectorRegistry

from isthmus.datapath import Datapath, view
from isthmus.datapath.core.shapes import ID
from isthmus.datapath.flows.reader import traffic
from isthmus.datapath.metrics import calls, ejections
from isthmus.model.balancing import Ejection
from isthmus.model.names import ClusterName

NEVER = Ejection(after=0)


def counted(datapath: Datapath) -> dict[tuple[str, str], int]:
    """Calls by the cluster that answered, or did not, and verdict."""
    return {(row["cluster"], row["verdict"]): row["calls"] for row in datapath.counters()}


@pytest.mark.bpf
@pytest.mark.parametrize("bad", [REFUSES, SILENT])
@pytest.mark.slow
def test_a_rescued_connect_counts_for_the_cluster_that_answered(rescuing: Datapath, load: Load, bad: str) -> None:
    groups = group(bad, cluster="c1"), group(GOOD[0], tier=1, cluster="c2")
    programmed(rescuing.target(), plan("echo", VIP, *groups, ejection=NEVER))
    assert load.run(VIP, calls=20, at_once=5).ended == {"ok": 20}
    assert counted(rescuing) == {("c1", "called"): 20, ("c2", "rescued"): 20}


@pytest.mark.bpf
def test_a_connect_that_fails_is_counted_as_the_application_saw_it(rescuing: Datapath, load: Load) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(REFUSES), ejection=NEVER))
    assert load.run(VIP, calls=7).ended == {"ECONNREFUSED": 7}
    assert counted(rescuing) == {("c1", "called"): 7, ("c1", "failed"): 7}


@pytest.mark.bpf
def test_a_connect_to_the_first_choice_that_answers_is_called_and_nothing_else(rescuing: Datapath, load: Load) -> None:
    programmed(rescuing.target(), plan("echo", VIP, group(*GOOD), ejection=NEVER))
    assert load.run(VIP, calls=30, at_once=5).ended == {"ok": 30}
    assert counted(rescuing) == {("c1", "called"): 30}


def test_counters_have_the_callers_cluster_and_read_as_prometheus_wants_them() -> None:
    row = {"service": "demo/echo:80/TCP", "cluster": "c2", "verdict": "rescued", "calls": 3}

    class Both:
        def collect(self) -> list[object]:
            return [
                calls([row], "isthmus_agent", cluster="c1"),
                ejections({("ejected", "c2", "silent"): 2}, "isthmus_agent"),
            ]

    registry = CollectorRegistry()
    registry.register(Both())  # type: ignore[arg-type]
    text = generate_latest(registry).decode()  # type: ignore[no-untyped-call]
    labels = 'destination_cluster="c2",service="demo/echo:80/TCP",source_cluster="c1",verdict="rescued"'
    assert f"isthmus_agent_calls_total{{{labels}}} 3" in _sorted_labels(text)
    assert 'isthmus_agent_backend_ejections_total{event="ejected",reason="silent",target_cluster="c2"} 2' in (
        _sorted_labels(text)
    )


def _sorted_labels(text: str) -> str:
    lines = []
    for line in text.splitlines():
        head, brace, rest = line.partition("{")
        inside, end, value = rest.partition("}")
        lines.append(head + brace + ",".join(sorted(inside.split(","))) + end + value.removesuffix(".0"))
    return "\n".join(lines)


@pytest.mark.bpf
def test_what_was_measured_of_a_cluster_goes_with_it(rescuing: Datapath, load: Load) -> None:
    """Its number is given to another one some day."""
    target = rescuing.target()
    programmed(target, plan("echo", VIP, group(GOOD[0], cluster="c7")))
    before = places(rescuing)
    load.run(VIP, calls=3)
    until(lambda: places(rescuing) <= before, what="all connections have ended")
    assert "c7" in rescuing.traffic()
    number = rescuing.state.clusters[ClusterName("c7")].id
    assert "c7" in [row["cluster"] for row in view.rows(rescuing.maps, "round_trips")]
    programmed(target)
    until(lambda: target.sweep_due() == 0, what="nothing is left to delete")
    assert number not in [ID.unpack(key)[0] for key, _ in rescuing.maps.items("round_trips")]
    assert traffic(rescuing.maps, {"the next": number}) == {}
