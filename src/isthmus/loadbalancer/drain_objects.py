"""What came of each Drain object, as its status is wanted: whether its target is called no more, and what is instead.

The view is this cluster's: the services it has an import of, or a global Service. A policy of another cluster may leave
it with nothing else, which only ``isthmus explain`` shows there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from isthmus.desired import Condition, Draft, Ownership, condition, row
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
from isthmus.statedb import Reader

KINDS: Final = {"Drain": Ownership(DRAIN, conditions=frozenset({"Drained"}))}

SHOWN: Final = 8
"""Services that a message names; the others are counted."""


def compute(reader: Reader, *, cluster: ClusterName) -> Iterator[Object]:
    """The status of every Drain."""
    requests = list(reader.all(DRAINS))
    if not requests:
        return
    draining = {each.drain.reason: each for each in reader.all(DRAINING) if each.by == cluster}
    drained = Drained(reader.all(DRAINING))
    offered = dict(_offered(reader, cluster)) if draining else {}
    for request in requests:
        at = draining.get(request.drain.reason)
        about = Drained([at]) if at is not None else None
        still = [name for name, found in offered.items() if about is not None and _still_called(found, drained, about)]
        status = {
            "conditions": [_condition(request, at, still)],
            "share": f"{at.left if at is not None else WHOLE}%" if not request.invalid else "",
        }
        draft = Draft("Drain", request.name, status=status)
        observed = reader.get(OBSERVED, ("Drain", request.name))
        yield row(draft, observed, unit=request.name, ownership=KINDS["Drain"])


def _offered(reader: Reader, cluster: ClusterName) -> Iterator[tuple[ServiceName, list[Backend]]]:
    """The backends that serve, of every service that crosses clusters, by the name that people call it."""
    for service in {each.service for each in reader.all(ENDPOINT_SETS)}:
        found = backends.compute(reader, service, cluster=cluster, which="multicluster", cache={})
        serving = [each for each in found if each.healthy and each.condition <= EndpointCondition.TERMINATING]
        if serving:
            yield ServiceName(serving[0].import_of or service), serving


def _still_called(found: list[Backend], drained: Drained, about: Drained) -> bool:
    """Whether what a drain means is called nevertheless, as nothing else is there; not during its ramp."""
    return any(about.left(each) == 0 for each in undrained(found, drained))


def _condition(request: DrainRequest, at: Draining | None, still: list[ServiceName]) -> Condition:
    def found(status: bool, reason: str, message: str) -> Condition:
        return condition("Drained", status, reason=reason, message=message, generation=request.generation)

    if request.invalid:
        return found(False, "Invalid", request.invalid)
    if at is None:
        return found(False, "Ended", f"it ended at {request.drain.ends}")
    if at.left:
        return found(False, "Ramping", f"{at.left}% of its share of new calls is left")
    if still:
        named = ", ".join(sorted(still)[:SHOWN]) + (f" and {len(still) - SHOWN} more" if len(still) > SHOWN else "")
        return found(False, "NothingElse", f"nothing else is ready for {named}: calls of it go on")
    closed = ", and connections are closed" if at.closing else ""
    return found(True, "Drained", f"no new call goes there{closed}")
