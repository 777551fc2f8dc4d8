"""Computes the status of each Drain object: whether its target gets no more calls, and if not, the reason.

The status covers the services that this cluster imports or has as global Services. In another cluster a policy may
leave no other backend, so that the target is still called there; ``isthmus explain`` of that cluster shows it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from isthmus.desired import Condition, Draft, Ownership, condition, observed_generation, row
from isthmus.kube.objects.drains import DRAIN
from isthmus.loadbalancer import backends
from isthmus.loadbalancer.drains import WHOLE, Drained
from isthmus.loadbalancer.selection import undrained
from isthmus.model.balancing import Backend
from isthmus.model.drains import Draining, DrainRequest
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.objects import Object
from isthmus.model.services import Condition as EndpointCondition
from isthmus.model.tables import DRAINING, DRAINS, ENDPOINT_SETS, OBSERVED
from isthmus.statedb import Faults, Reader

KINDS: Final = {"Drain": Ownership(DRAIN, conditions=frozenset({"Ready", "Drained"}))}

SHOWN: Final = 8
"""Number of services that a message names; the others are only counted."""


def compute(reader: Reader, *, cluster: ClusterName, faults: Faults) -> Iterator[Object]:
    """Yield the status of every Drain. A Drain or service that raises is a fault; no status names such a service."""
    requests = list(reader.all(DRAINS))
    services = {each.service for each in reader.all(ENDPOINT_SETS)} if requests else set()
    faults.retain({*(each.name for each in requests), *services})
    if not requests:
        return
    draining = {each.drain.reason: each for each in reader.all(DRAINING) if each.by == cluster}
    drained = Drained(reader.all(DRAINING))
    offered = dict(_offered(reader, services, cluster, faults)) if draining else {}
    for request in requests:
        statuses: list[Object] = []
        with faults.attempt(request.name):
            statuses = [_status(reader, request, draining, drained, offered)]
        yield from statuses


def _status(
    reader: Reader,
    request: DrainRequest,
    draining: Mapping[str, Draining],
    drained: Drained,
    offered: Mapping[ServiceName, list[Backend]],
) -> Object:
    row_in_force = draining.get(request.drain.reason)
    about = Drained([row_in_force]) if row_in_force is not None else None
    still = [name for name, serving in offered.items() if about is not None and _still_called(serving, drained, about)]
    drained_condition = _condition(request, row_in_force, still)
    status = {
        **observed_generation(request.generation),
        "conditions": [drained_condition, _ready(drained_condition)],
        "share": f"{row_in_force.left if row_in_force is not None else WHOLE}%" if not request.invalid else "",
    }
    draft = Draft("Drain", request.name, status=status)
    observed = reader.get(OBSERVED, ("Drain", request.name))
    return row(draft, observed, unit=request.name, ownership=KINDS["Drain"])


def _offered(
    reader: Reader, services: Iterable[ServiceName], cluster: ClusterName, faults: Faults
) -> Iterator[tuple[ServiceName, list[Backend]]]:
    """Yield the serving backends of every multicluster service, by the service's or its import's name."""
    for service in services:
        computed: list[Backend] = []
        with faults.attempt(service):
            computed = list(backends.compute(reader, service, cluster=cluster, which="multicluster", cache={}))
        serving = [each for each in computed if each.healthy and each.condition <= EndpointCondition.TERMINATING]
        if serving:
            yield ServiceName(serving[0].import_of or service), serving


def _still_called(serving: list[Backend], drained: Drained, about: Drained) -> bool:
    """True if fully drained backends are still called because there are no others."""
    return any(about.percent_left(each) == 0 for each in undrained(serving, drained))


def _ready(drained: Condition) -> Condition:
    """Return the condition Ready: true once no new call goes to what is drained, or the drain has ended."""
    done = drained["status"] == "True" or drained["reason"] == "Ended"
    return {**drained, "type": "Ready", "status": "True" if done else "False"}


def _condition(request: DrainRequest, draining: Draining | None, still: list[ServiceName]) -> Condition:
    def drained(status: bool, reason: str, message: str) -> Condition:
        return condition("Drained", status, reason=reason, message=message, generation=request.generation)

    if request.invalid:
        return drained(False, "Invalid", request.invalid)
    if draining is None:
        return drained(False, "Ended", f"it ended at {request.drain.ends}")
    if draining.left:
        return drained(False, "Ramping", f"{draining.left}% of its share of new calls is left")
    if still:
        named = ", ".join(sorted(still)[:SHOWN]) + (f" and {len(still) - SHOWN} more" if len(still) > SHOWN else "")
        return drained(False, "NothingElse", f"nothing else is ready for {named}: calls of it go on")
    closed = ", and connections are closed" if draining.closing else ""
    return drained(True, "Drained", f"no new call goes there{closed}")
