"""Finds the established connections that a policy with ``established: cut`` forbids. Pure.

Only the peer's address identifies the caller of a connection. So a connection is cut only if the records of exactly one
other cluster map that address to an account which the policy in force does not allow; unknown addresses stay. Rules
match as if every cluster had the labels that they name: labels vanish while a cluster is unknown, and no connection
must end for that.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from isthmus.identity.allow import accounts_allowed, allows
from isthmus.model.addresses import range_of
from isthmus.model.export_policies import ExportPolicy
from isthmus.model.names import ClusterName
from isthmus.model.tables import CALLER_ADDRESSES, EXPORT_POLICIES, GUARDS, IDENTITIES, OWN_RANGES
from isthmus.statedb import Reader

Forbidden = Callable[[str, int, str], bool]
"""(address of the pod, its port, address of the peer) → True if the connection is to be cut."""


def cuts(reader: Reader) -> bool:
    """True if a guard of this node cuts connections, and every source has been read: an address may have two."""
    return bool(reader.by(GUARDS, "cut", True)) and reader.initialized(OWN_RANGES, GUARDS, CALLER_ADDRESSES)


def forbidden(reader: Reader, cluster: ClusterName) -> Forbidden:
    """Return the function that judges connections of the node's pods, by one snapshot of all rows."""
    guards = {(row.address, row.port): row.policy for row in reader.by(GUARDS, "cut", True) if row.protocol == "TCP"}
    rows = list(reader.all(OWN_RANGES))
    ranges = tuple(each for row in rows for each in row.ranges)
    machines = {each for row in rows for each in row.addresses}
    policies = {name: _lenient(reader.get(EXPORT_POLICIES, name)) for name in {*guards.values()}}
    judged: dict[tuple[str, str], bool] = {}

    def judge(address: str, port: int, peer: str) -> bool:
        name = guards.get((address, port))
        if name is None or not ranges or (policy := policies[name]) is None or not policy.cut or policy.audit:
            return False
        if (name, peer) not in judged:
            own = peer in machines or range_of(peer, ranges)
            judged[name, peer] = not own and _refuses(reader, policy, peer, cluster)
        return judged[name, peer]

    return judge


def _lenient(policy: ExportPolicy | None) -> ExportPolicy | None:
    """The policy as if every cluster had the labels that its rules name."""
    return replace(policy, allow=tuple(replace(rule, labels=()) for rule in policy.allow)) if policy else None


def _refuses(reader: Reader, lenient: ExportPolicy, peer: str, cluster: ClusterName) -> bool:
    """True if an address is of one account, of another cluster, that the policy does not allow."""
    addresses = reader.by(CALLER_ADDRESSES, "address", peer)
    if len(addresses) != 1:
        return False
    identity = reader.get(IDENTITIES, (addresses[0].cluster, addresses[0].number))
    if identity is None or identity.cluster == cluster:
        return False
    allowed = accounts_allowed(lenient, identity.cluster, {})
    return not allows(allowed, identity.namespace, identity.service_account)
