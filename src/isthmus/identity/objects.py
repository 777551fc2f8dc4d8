"""Makes the CallerIdentity objects of the own cluster's numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from isthmus.desired import Draft, Ownership, row
from isthmus.desired.ownership import Ownerships
from isthmus.kube.objects.identities import CALLER_IDENTITY
from isthmus.model.identities import Identity
from isthmus.model.names import ServiceName
from isthmus.model.objects import Object
from isthmus.model.tables import OBSERVED
from isthmus.statedb import Reader

KINDS: Final[Ownerships] = {"CallerIdentity": Ownership(CALLER_IDENTITY, selector="")}


def wanted(reader: Reader, identities: Iterable[Identity]) -> Iterator[Object]:
    """Yield the object of each number; a number's status says since when no pod has its account."""
    for identity in identities:
        name = ServiceName(f"/{identity.number}")  # of no namespace
        draft = Draft(
            "CallerIdentity",
            name,
            {"spec": {"namespace": identity.namespace, "serviceAccount": identity.service_account}},
            status={"unusedSince": identity.unused_since},
        )
        observed = reader.get(OBSERVED, ("CallerIdentity", name))
        yield row(draft, observed, unit=name, ownership=KINDS["CallerIdentity"])
