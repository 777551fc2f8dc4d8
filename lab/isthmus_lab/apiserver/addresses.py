"""Addresses of Services: who has which is in the Services themselves, so nothing has to be kept or repaired.

Addresses are drawn at random from the range beyond its first part, which is for those who ask for a certain one, so an
address is not soon reused by another. A drawn address is reserved until the write that uses it has come back.
"""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from isthmus import bounds
from isthmus_lab.apiserver import errors, ipfamilies
from isthmus_lab.apiserver.errors import Problem
from isthmus_lab.apiserver.objects import Object, items, name_of, nested

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
NODE_PORTS = range(30000, 32768)


class Addresses:
    """Gives out cluster addresses and node ports."""

    def __init__(self, networks: Sequence[Network], *, choose: random.Random | None = None) -> None:
        self._networks = {f"IPv{network.version}": network for network in networks}
        self._random = choose or random.Random()
        self._reserved: set[str | int] = set()

    @contextmanager
    def allocated(self, service: Object, existing: Iterable[Object], *, before: Object | None = None) -> Iterator[None]:
        """Fill in the families and addresses a Service lacks; while the block runs they are reserved.

        ``before`` is its spec as it was. Raises an ApiError where an address asked for is taken or outside of the
        range, or a family is not the cluster's.
        """
        existing = list(existing)
        reserved: list[str | int] = [
            *self._cluster_ips(service, existing, before or {}),
            *self._node_ports(service, existing),
        ]
        self._reserved.update(reserved)
        try:
            yield
        finally:
            self._reserved.difference_update(reserved)

    def first(self) -> str:
        """The address of the Service ``kubernetes``."""
        network = next(iter(self._networks.values()))
        return str(network[1])

    def _cluster_ips(self, service: Object, existing: list[Object], before: Object) -> list[str]:
        spec = service["spec"]
        if spec["type"] == "ExternalName":
            return []
        if problems := ipfamilies.decide(spec, before, list(self._networks)):
            raise errors.invalid("Service", "", name_of(service), problems)
        if spec.get("clusterIP") == "None":
            return []
        used = {ip for other in existing for ip in nested(other, "spec", "clusterIPs", default=())}
        asked = list(spec.get("clusterIPs") or ())
        own = before.get("clusterIPs") or ()  # which another write of the same Service may hold just now
        for address in asked:
            self._check(service, address, used if address in own else used | self._reserved)
        addresses = [*asked, *(self._draw(family, used) for family in spec["ipFamilies"][len(asked) :])]
        spec["clusterIP"], spec["clusterIPs"] = addresses[0], addresses
        return addresses

    def _check(self, service: Object, address: str, used: Container[str | int]) -> None:
        field = "spec.clusterIPs"
        parsed = bounds.ip(address, field=field)
        if not any(parsed in network for network in self._networks.values()):
            reason = f"failed to allocate IP {address}: the provided network does not match the current range"
            raise _refused(service, Problem(field, "Invalid value", reason, [address]))
        if address in used:
            reason = f"failed to allocate IP {address}: provided IP is already allocated"
            raise _refused(service, Problem(field, "Invalid value", reason, [address]))

    def _draw(self, family: str, used: set[str]) -> str:
        network = self._networks[family]
        size = min(network.num_addresses, 1 << 16)
        first = min(max(16, size // 16), 256)
        for low, high in ((first, size - 1), (1, first)):
            for _ in range(64):
                address = str(network[self._random.randrange(low, high)])
                if address not in used and address not in self._reserved:
                    return address
            for offset in range(low, high):
                if (address := str(network[offset])) not in used and address not in self._reserved:
                    return address
        raise errors.ApiError(500, "InternalError", f"no address is left in {network}")

    def _node_ports(self, service: Object, existing: list[Object]) -> list[int]:
        if service["spec"]["type"] not in ("NodePort", "LoadBalancer"):
            return []
        used = {
            port["nodePort"] for other in existing for port in items(other, "spec", "ports") if port.get("nodePort")
        }
        ports: list[int] = []
        for index, port in enumerate(items(service, "spec", "ports")):
            number: Any = port.get("nodePort")
            if number and (number in used or number not in NODE_PORTS):
                valid = f"{NODE_PORTS.start}-{NODE_PORTS.stop - 1}"
                in_use = number in used
                reason = (
                    "provided port is already allocated"
                    if in_use
                    else f"provided port is not in the valid range. The range of valid ports is {valid}"
                )
                raise _refused(service, Problem(f"spec.ports[{index}].nodePort", "Invalid value", reason, number))
            if not number:
                free = [p for p in NODE_PORTS if p not in used and p not in self._reserved and p not in ports]
                number = port["nodePort"] = self._random.choice(free)
            ports.append(number)
        return ports


def _refused(service: Object, problem: Problem) -> errors.ApiError:
    return errors.invalid("Service", "", name_of(service), [problem])
