"""The metrics that the story's autoscalers read, against an API server on real sockets, on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clusters.fake_apiserver import Reply, Request, running, status
from labs.lab_running import lab_name

from isthmus import kube
from isthmus.kube.access import Access
from isthmus.kube.transport import Transport
from isthmus_lab.karmada import autoscaling
from isthmus_lab.layout import Lab

pytestmark = pytest.mark.looptime

LAB = Lab(lab_name("q"), 1)
METRICS = "/apis/metrics.k8s.io/v1beta1"
OF_POD = f"{METRICS}/namespaces/shop/pods/web-1"
UNKNOWN = Reply(404, b"404 page not found\n")


def resources(name: str, kind: str) -> dict[str, Any]:
    return {"resources": [{"name": name, "kind": kind, "namespaced": kind == "PodMetrics"}]}


def of_kind(request: Request) -> bool:
    return request.path == METRICS


def of_pods(request: Request) -> bool:
    return request.method == "GET" and request.path == "/api/v1/namespaces/shop/pods"


def of_metrics(request: Request) -> bool:
    return request.method == "PATCH" and request.path == OF_POD


@pytest.mark.parametrize(
    ("refusal", "on"),
    [
        (UNKNOWN, of_kind),
        (status(503, "ServiceUnavailable"), of_pods),
        (status(409, "Conflict"), of_metrics),
        (status(500, "InternalError"), of_metrics),
    ],
)
async def test_a_request_that_is_refused_costs_one_measurement_and_not_those_after_it(
    refusal: Reply, on: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = iter(range(1, 100))
    monkeypatch.setattr(autoscaling, "_used", lambda cluster, namespace: {"web-1": {"web": next(looks) * 0.5}})
    async with running() as server, kube.Client(Transport(Access(server=server.url, token="t"))) as client:
        server.objects["/apis/apiextensions.k8s.io/v1"] = resources(
            "customresourcedefinitions", "CustomResourceDefinition"
        )
        server.objects[METRICS] = resources("pods", "PodMetrics")
        server.put("/api/v1/namespaces/shop/pods/web-1", spec={}, metadata={"labels": {"app": "web"}})
        server.fail(refusal, on=on)
        async with autoscaling.pod_metrics({LAB.clusters[0]: client}, client, "shop"), asyncio.timeout(60):
            while OF_POD not in server.objects:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        found = server.objects[OF_POD]
    assert not server.faults
    assert found["metadata"]["labels"] == {"app": "web"}
    assert [each["name"] for each in found["containers"]] == ["web"]
