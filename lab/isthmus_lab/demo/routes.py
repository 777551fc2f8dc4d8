"""Calls that a route splits: by path, and by weights that change, as a canary's. Left out without an Envoy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from isthmus.kube.objects import core
from isthmus.kube.objects.gateway import HTTP_ROUTE
from isthmus_lab import examples, manifests, startup
from isthmus_lab.demo.calls import MEASURED, Load, load, measured
from isthmus_lab.demo.plans import HERE, planned
from isthmus_lab.demo.stage import NAMESPACE, SERVICE, Stage, StepFailed

ROUTE: Final = examples.path("routes/by-path.yaml")
ELSEWHERE: Final = 0.01
"""Share of calls that may miss Envoy: a connect unanswered for 200 ms moves to the import's own backends."""
MISSING: Final = "left out: no Envoy is installed here (tools/setup envoy)"


async def by_path(stage: Stage) -> str:
    """The route as it is in the examples, once the exports declare their port as HTTP: routes pass over others."""
    if startup.envoy() is None:
        return MISSING
    port = {"name": "http", "port": 80, "targetPort": "http", "appProtocol": "http"}
    for cluster in stage.lab.clusters:  # the oldest export first: it decides for the import
        await stage.client(cluster.name).patch(core.SERVICE, NAMESPACE, SERVICE, {"spec": {"ports": [port]}})
    if problems := await manifests.apply(stage.client(HERE), list(manifests.of_file(ROUTE))):
        raise StepFailed("; ".join(problems))
    took = max(await _followed(stage, "/v2/x", {"c2": 1.0}), await _followed(stage, "/", {"c1": 1.0}))
    remote, here = await _measured(stage, "/v2/x", {"c2": 1.0}), await _measured(stage, "/", {"c1": 1.0})
    return f"/v2/x: {remote}; /: {here}; {took:.2f} s after it was applied"


async def canary(stage: Stage) -> str:
    """Weights of one rule change; calls of the other path do not."""
    if startup.envoy() is None:
        return MISSING
    seen = []
    for weight in (5, 50, 0, 100):
        shares = {name: part / 100 for name, part in (("c1", 100 - weight), ("c2", weight)) if part}
        rules = [
            {"backendRefs": [_cluster("c1", 100 - weight), _cluster("c2", weight)]},
            {"matches": [{"path": {"type": "PathPrefix", "value": "/v2"}}], "backendRefs": [_cluster("c2", 1)]},
        ]
        await stage.client(HERE).patch(HTTP_ROUTE, NAMESPACE, SERVICE, {"spec": {"rules": rules}})
        await _followed(stage, "/", shares)
        result = await _measured(stage, "/", shares)
        await _measured(stage, "/v2", {"c2": 1.0})
        seen.append(f"{'abort to 0' if weight == 0 else weight} → {100 * result.by.get('c2', 0) / result.calls:.1f}%")
    await stage.client(HERE).delete(HTTP_ROUTE, NAMESPACE, SERVICE)
    await planned(stage, {"c1": 0.9, "c2": 0.1})
    return f"c2's measured part of /: {', '.join(seen)}; of /v2 always all; 0 failed calls"


async def _measured(stage: Stage, path: str, shares: Mapping[str, float]) -> Load:
    return await measured(stage, shares, calls=MEASURED // 10, path=path, elsewhere=ELSEWHERE)


async def _followed(stage: Stage, path: str, shares: Mapping[str, float]) -> float:
    """Wait until calls are shared out about so; how long that took, in seconds."""

    async def so() -> bool:
        result = await load(stage, calls=100, path=path)
        near = all(abs(result.by.get(name, 0) / result.calls - part) < 0.2 for name, part in shares.items())
        return near and result.by.keys() == shares.keys()

    return await stage.until(f"calls of {path} are shared out as {dict(shares)}", so)


def _cluster(name: str, weight: int) -> dict[str, Any]:
    return {"group": "isthmus.io", "kind": "Cluster", "name": name, "weight": weight}
