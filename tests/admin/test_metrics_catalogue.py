"""Metrics keep Prometheus' rules, have bounded labels, and are declared; alerts name metrics and pages that exist."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import ClientSession
from machine import programs
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from isthmus import config, metrics
from isthmus.admin.monitor import Monitor
from isthmus.cli import COMMANDS
from isthmus.config import Config, MonitorSection
from isthmus.datapath.metrics import calls
from isthmus.processes.observing import Shown, View
from isthmus.running import Tasks
from isthmus.statedb import Database

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "deploy/monitoring/rules.yaml").read_text())["groups"][0]["rules"]
EXPOSED = {each.exposed(process) for each in metrics.ALL for process in each.processes}
UNITS = {"milliseconds", "minutes", "hours", "kilobytes", "megabytes", "percent", "ms", "sec", "kb", "mb", "s"}
"""What promtool refuses as units: anything but base units, and abbreviations."""


class Collected:
    def __init__(self, *families: Metric) -> None:
        self.families = families

    def collect(self) -> tuple[Metric, ...]:
        return self.families


def parsed(*families: Metric) -> dict[str, Metric]:
    registry = CollectorRegistry()
    registry.register(Collected(*families))
    return {each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())}


@pytest.mark.parametrize("definition", metrics.ALL, ids=lambda each: each.name)
def test_a_metric_keeps_the_rules_that_promtool_checks(definition: metrics.Definition) -> None:
    words = definition.name.split("_")
    assert re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", definition.name)
    assert words[-1] not in {"total", "count", "sum", "bucket"}, "a suffix that the kind of a metric adds"
    assert not {"gauge", "counter", "histogram", "summary"} & set(words)
    assert not UNITS & set(words)
    assert not {"le", "quantile", "job", "instance"} & set(definition.labels)
    assert definition.help
    assert definition.kind != "histogram" or words[-1] == "seconds"


def test_each_metric_has_one_definition() -> None:
    names = [each.exposed(process) for each in metrics.ALL for process in each.processes]
    assert len(names) == len(set(names))


def test_each_process_that_serves_metrics_is_declared() -> None:
    modules = (ROOT / "src/isthmus/processes").glob("*.py")
    prefixes = {each for path in modules for each in re.findall(r'^PREFIX\b.*"isthmus_(\w+)"', path.read_text(), re.M)}
    assert prefixes == set(metrics.EVERY)


def test_no_other_module_makes_metrics() -> None:
    makers = [
        path.relative_to(ROOT / "src/isthmus").as_posix()
        for path in (ROOT / "src/isthmus").rglob("*.py")
        if re.search(r"\b\w+MetricFamily\(", path.read_text())
    ]
    assert makers == ["metrics.py"]


def test_what_is_served_parses_as_what_was_declared() -> None:
    histogram = metrics.Histogram(metrics.CONVERGENCE)
    for seconds in (0.01, 0.05, 0.3, 100.0):
        histogram.observe(seconds)
    found = parsed(histogram.family("isthmus_agent"))["isthmus_agent_convergence_seconds"]
    samples = {(each.name, each.labels.get("le")): each.value for each in found.samples}
    name = "isthmus_agent_convergence_seconds"
    assert found.type == "histogram"
    assert samples[name + "_bucket", "0.05"] == 2
    assert samples[name + "_bucket", "0.5"] == 3
    assert samples[name + "_bucket", "+Inf"] == samples[name + "_count", None] == 4
    assert samples[name + "_sum", None] == pytest.approx(100.36)


def test_calls_are_of_imports_and_not_of_their_derived_services() -> None:
    rows = [
        {"service": "demo/derived-abc:80/TCP", "cluster": "c2", "verdict": "called", "calls": 2},
        {"service": "demo/plain:80/TCP", "cluster": "c1", "verdict": "called", "calls": 1},
    ]
    found = calls(rows, "isthmus_agent", cluster="c1", imports={"demo/derived-abc": "demo/echo"})
    assert {each.labels["service"]: each.value for each in found.samples} == {
        "demo/echo:80/TCP": 2,
        "demo/plain:80/TCP": 1,
    }


def test_services_beyond_the_bound_share_a_series_and_those_with_one_keep_it() -> None:
    bound = metrics.Bound(2)

    def counted(*services: str) -> dict[str, float]:
        rows = [{"service": each, "cluster": "c1", "verdict": "called", "calls": 1} for each in services]
        return {s.labels["service"]: s.value for s in calls(rows, "x", cluster="c1", bound=bound).samples}

    assert counted("a/a", "a/b", "a/c", "a/d") == {"a/a": 1, "a/b": 1, "other": 2}
    assert counted("a/z", "a/b", "a/a") == {"other": 1, "a/b": 1, "a/a": 1}


def test_a_namespace_with_ever_more_services_leaves_series_for_those_of_others() -> None:
    bound = metrics.Bound()
    hostile = [bound.label(f"tenant/{n}:80/TCP") for n in range(5 * metrics.SERIES)]
    other = [bound.label(f"demo/{n}:80/TCP") for n in range(50)]
    assert len(set(hostile)) < metrics.SERIES
    assert metrics.OTHER in hostile
    assert metrics.OTHER not in other
    more = [bound.label(f"{n}/echo:80/TCP") for n in range(5 * metrics.SERIES)]
    assert len({*hostile, *other, *more}) <= metrics.SERIES + 1


async def fetched(address: tuple[str, int], path: str) -> tuple[int, str]:
    async with ClientSession() as session, session.get(f"http://{address[0]}:{address[1]}{path}") as answer:
        return answer.status, await answer.text()


async def test_the_address_for_metrics_serves_them_alone_and_probes_stay_where_they_are() -> None:
    monitor = Monitor("127.0.0.1:0", metrics="127.0.0.1:0", ready=lambda: ("", ""), families=tuple)
    task = asyncio.create_task(monitor.run())
    await monitor.listening()
    try:
        status, text = await fetched(monitor.metrics_address, "/metrics")
        assert (status, "process_resident_memory_bytes" in text) == (200, True)
        assert (await fetched(monitor.metrics_address, "/readyz"))[0] == 404
        assert (await fetched(monitor.address, "/readyz"))[0] == 200
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.parametrize("tables", [False, True])
async def test_internal_counters_of_tables_are_an_option(tables: bool) -> None:
    async with Tasks() as tasks:
        shown = Shown(tasks, Config(monitor=MonitorSection(tables=tables)), "isthmus_agent")
        shown.show(View(db=Database()))
        names = {each.name for each in shown._families()}
        tasks.cancel()
    assert "isthmus_agent_build_info" in names
    assert ("isthmus_agent_table_rows" in names) == tables
    assert names <= {each.removesuffix("_total") for each in EXPOSED}


def promtool(*arguments: str | Path, text: str = "") -> str:
    """Output of promtool, which must have no remark."""
    command = [programs.path("promtool"), *arguments]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.needs("promtool")
def test_promtool_has_no_remark_on_any_metric() -> None:
    families = [
        metrics.Histogram(each).family(f"isthmus_{process}")
        if each.kind == "histogram"
        else each.family(f"isthmus_{process}", [(["x"] * len(each.labels), 1)])
        for each in metrics.ALL
        for process in each.processes
    ]
    registry = CollectorRegistry()
    registry.register(Collected(*families))
    assert promtool("check", "metrics", text=generate_latest(registry).decode()) == ""


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_alerts() -> None:
    assert f"{len(RULES)} rules found" in promtool("check", "rules", ROOT / "deploy/monitoring/rules.yaml")


FIRING = {
    "IsthmusHooksDetached": {'isthmus_agent_datapath_attached{instance="n1"}': "0"},
    "IsthmusPodLinksFail": {'isthmus_agent_pod_links{instance="n1",state="failed"}': "2"},
    "IsthmusNoLeader": {'isthmus_agent_build_info{cluster="c2"}': "1"},
    "IsthmusSourceAway": {'isthmus_dns_source_connected{instance="n1",source="services"}': "0"},
    "IsthmusPeerAway": {'isthmus_operator_clustermesh_remote_cluster_readiness_status{target_cluster="c2"}': "0"},
    "IsthmusPublishFails": {"isthmus_operator_publish_failures_total": "0+30x120"},
    "IsthmusRowsNotWritten": {'isthmus_agent_reconciler_failing{reconciler="plans"}': "3"},
    "IsthmusFaults": {'isthmus_dns_faults{table="names",cause="bug"}': "1"},
    "IsthmusTaskFails": {'isthmus_mirror_task_failing{task="mirror"}': "1"},
    "IsthmusCertificateEnds": {
        'isthmus_operator_clustermesh_remote_cluster_certificate_end_timestamp_seconds{target_cluster="c2"}': "86400"
    },
    "IsthmusRotationWaits": {'isthmus_keys_authority_rotation_step{instance="k1"}': "1"},
    "IsthmusKeysFail": {'isthmus_keys_problems{instance="k1"}': "1"},
    "IsthmusEtcdNoSpace": {"isthmus_operator_etcd_alarms": "1"},
    "IsthmusEtcdLarge": {"isthmus_operator_etcd_db_size_bytes": "81", "isthmus_operator_etcd_db_quota_bytes": "100"},
    "IsthmusCallsFail": {
        'isthmus_agent_calls_total{service="demo/echo:80/TCP",destination_cluster="c2",verdict="failed"}': "0+6x120",
        'isthmus_agent_calls_total{service="demo/echo:80/TCP",destination_cluster="c2",verdict="called"}': "0+60x120",
    },
    "IsthmusBackendsEjected": {'isthmus_agent_ejected_backends{service="demo/echo",target_cluster="c2"}': "1"},
    "IsthmusCallersFail": {'isthmus_agent_caller_ejections{instance="n1"}': "2"},
    "IsthmusEnvoySilent": {'isthmus_agent_envoy_answers{instance="n1"}': "0"},
    "IsthmusQuestionsDropped": {
        'isthmus_agent_dns_questions_total{instance="n1",kind="steered",result="dropped"}': "0+120x120"
    },
    "IsthmusSlowToConverge": {
        'isthmus_agent_convergence_seconds_bucket{le="10.0"}': "0+1x120",
        'isthmus_agent_convergence_seconds_bucket{le="30.0"}': "0+9x120",
        'isthmus_agent_convergence_seconds_bucket{le="+Inf"}': "0+9x120",
    },
    "IsthmusExportInvalid": {
        "isthmus_operator_mcsapi_serviceexport_status_condition"
        '{namespace="demo",serviceexport="echo",condition="Valid",status="False",reason="NoService"}': "1"
    },
    "IsthmusQuotaReached": {"isthmus_operator_mcsapi_imports_over_quota": "1"},
}
"""Series that fire each alert, by PromQL's notation of tests."""
HEALTHY = {"isthmus_operator_leader": "1", "isthmus_agent_build_info": "1"}


@pytest.mark.needs("promtool")
def test_each_alert_fires_on_what_it_is_for_and_on_nothing_else(tmp_path: Path) -> None:
    assert set(FIRING) == {each["alert"] for each in RULES}
    tests = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [
                {"series": each, "values": values if "x" in values else f"{values}x90"}
                for each, values in series.items()
            ],
            "promql_expr_test": [
                {
                    "expr": 'count(ALERTS{alertstate="firing"}) by (alertname)',
                    "eval_time": "90m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}],
                }
            ],
        }
        for name, series in [*((name, HEALTHY | each) for name, each in FIRING.items()), ("IsthmusNoLeader", {})]
    ]
    file = tmp_path / "test.yaml"
    rules = str(ROOT / "deploy/monitoring/rules.yaml")
    file.write_text(yaml.safe_dump({"rule_files": [rules], "evaluation_interval": "1m", "tests": tests}))
    assert "SUCCESS" in promtool("test", "rules", file)


@pytest.mark.parametrize("rule", RULES, ids=lambda each: each["alert"])
def test_an_alert_is_of_metrics_that_exist_and_has_its_cure(rule: dict[str, Any]) -> None:
    named = {re.sub("_bucket$", "", each) for each in re.findall(r"\bisthmus_\w+", rule["expr"])}
    assert named
    assert named <= EXPOSED
    program, command, *_ = rule["annotations"]["diagnose"].split()
    assert (program, command in COMMANDS) == ("isthmus", True)
    page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^### (.+)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in [each.lower() for each in headings]


def test_labels_in_an_alerts_texts_are_those_of_its_metrics() -> None:
    for rule in RULES:
        known = {"instance"}
        for each in metrics.ALL:
            if any(each.exposed(process) in rule["expr"] for process in each.processes):
                known |= set(each.labels)
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= known


@pytest.mark.needs("kubectl")
def test_agents_scraped_from_outside_are_still_probed_on_loopback(tmp_path: Path) -> None:
    folder = tmp_path / "deploy"
    shutil.copytree(ROOT / "deploy", folder)
    file = folder / "kustomization.yaml"
    file.write_text(file.read_text().replace("  - mirror\n", "  - mirror\n  - monitoring\n"))
    done = subprocess.run([programs.path("kubectl"), "kustomize", folder], capture_output=True, text=True, check=True)
    objects = {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(done.stdout)}
    agent = objects["DaemonSet", "isthmus-agent"]["spec"]["template"]
    container = next(each for each in agent["spec"]["containers"] if each["name"] == "agent")
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    variables = {each["name"]: each.get("value", "192.0.2.1") for each in container["env"]}
    variables["ISTHMUS_MONITOR_METRICS"] = variables["ISTHMUS_MONITOR_METRICS"].replace(
        "$(HOST_IP)", variables["HOST_IP"]
    )
    read = config.load(folder / "config/agent.toml", environment=variables, flags=())
    probed = container["livenessProbe"]["httpGet"]
    assert read.monitor.listen == f"{probed['host']}:{ports[probed['port']]}" == "127.0.0.1:9964"
    assert read.monitor.metrics == f"192.0.2.1:{ports['metrics']}"
    servers = {
        each["name"]: {variable["name"]: variable.get("value", "") for variable in each["env"]}
        for each in objects["DaemonSet", "isthmus-dns"]["spec"]["template"]["spec"]["containers"]
    }
    outside = {name: each["ISTHMUS_MONITOR_METRICS"] for name, each in servers.items()}
    assert outside == {"dns": "$(HOST_IP):9971", "dns-second": "$(HOST_IP):9972"}
    for name, each in objects.items():
        if name in {
            ("DaemonSet", "isthmus-agent"),
            ("DaemonSet", "isthmus-dns"),
            ("Deployment", "isthmus-operator"),
            ("Deployment", "isthmus-mirror"),
        }:
            annotations = each["spec"]["template"]["metadata"]["annotations"]
            listening = [p for c in each["spec"]["template"]["spec"]["containers"] for p in c.get("ports", ())]
            assert annotations["prometheus.io/port"] in [str(port["containerPort"]) for port in listening]
