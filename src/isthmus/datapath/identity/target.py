"""Writes rows of proven callers to the maps: a target of a reconciler for each kind of row, and the keys.

A guard is in force as soon as it is written, so whoever drives these writes a policy's permits before its guards. An
entry precedes the gate that makes programs look for it. Entries stay in force while no agent runs; keys do not: callers
sign by the key of the epoch, and one that was not written is unknown.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from isthmus import logs
from isthmus.datapath.core.clock import BootTime
from isthmus.datapath.core.ids import Ids
from isthmus.datapath.core.maps import Maps
from isthmus.datapath.core.shapes import CGROUP, ID, address, port
from isthmus.datapath.core.shapes import text as name_text
from isthmus.datapath.identity import codecs
from isthmus.datapath.identity.entries import Entries, Unresolved
from isthmus.datapath.identity.interfaces import groups_by_uid, pod_interfaces
from isthmus.datapath.services.callers import Identities
from isthmus.datapath.services.codecs import PROTOCOLS
from isthmus.model.names import ServiceName
from isthmus.model.signing import AddressIdentity, Guard, HostSource, Permit, Refusal, SignedTo, Source
from isthmus.model.tables import ADDRESS_IDENTITIES, GUARDS, HOST_SOURCES, PERMITS, SIGNED_TO, SOURCES

RENEW: Final = 10.0
"""Seconds between two looks at which interfaces lead to the pods."""
FRESH: Final = 0.5
"""Seconds for which a look counts."""
EPOCH_SECONDS: Final = 60
"""EPOCH_NS of bpf/sign_maps.h."""
MOST_DRIFT: Final = 1.0
"""Seconds by which the kernel's epochs may differ from ours. They are written again beyond, and otherwise not: a
program that reads a number while the other is written is an epoch off."""
GATE: Final = ID.pack(0)
CLOSED: Final = bytes(codecs.SIGNING.size)
SHIFT, SHIFT_511 = 16, 15
"""Bits of an identity below its cluster's id, in clustersets of 255 and of 511 clusters."""
NAME_BYTES: Final = codecs.POLICY.size - 1

Keys = Mapping[tuple[int, int], bytes]
"""Keys by cluster id and number."""

log = logs.get("identity")


class Recent:
    """Numbers by name that a look at the whole node finds, for many rows that ask within a moment."""

    def __init__(self, look: Callable[[], Mapping[str, int]], clock: Callable[[], float]) -> None:
        self._look = look
        self._clock = clock
        self._found: Mapping[str, int] = {}
        self._looked = -FRESH

    def __repr__(self) -> str:
        return f"<Recent: {len(self._found)}>"

    def numbers(self) -> Mapping[str, int]:
        """The numbers of a look that is not older than FRESH."""
        if self._clock() - self._looked >= FRESH:
            self._found, self._looked = self._look(), self._clock()
        return self._found


class IdentityTarget:
    """The maps of signed SYNs, with a target of a reconciler for each kind of row.

    ``interfaces`` returns the interfaces that lead to pods by address, ``groups`` the ids of pods' cgroups by UID.
    """

    def __init__(
        self,
        maps: Maps,
        interfaces: Callable[[], Mapping[str, int]],
        *,
        groups: Callable[[], Mapping[str, int]] = dict,
        shift: int = SHIFT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._maps = maps
        self._interfaces = Recent(interfaces, clock)
        self._groups = Recent(groups, clock)
        self._shift = shift
        self._clock = clock
        self._boot = BootTime(monotonic=clock)
        self._policies: dict[ServiceName, int] = {
            ServiceName(name_text(codecs.POLICY.unpack(value)[0])): ID.unpack(key)[0]
            for key, value in maps.items("policies")
        }
        self._ids = Ids(self._policies.values())
        gate = codecs.SIGNING.named(self._gate())
        self._began, self._number = gate["began"], gate["key_number"]
        """Start of the epoch of a key, in ns of this clock, and the key's number; 0 without keys. Those of an earlier
        process hold until :meth:`put_keys`."""
        self.sources = Entries(maps, "sources", SOURCES.key, self._source, written=self._follow)
        self.host_sources = Entries(maps, "host_callers", HOST_SOURCES.key, self._host_source, written=self._follow)
        self.signed_to = Entries(maps, "signed_to", SIGNED_TO.key, _signed_to, written=self._follow)
        self.addresses = Entries(
            maps, "caller_addresses", ADDRESS_IDENTITIES.key, _caller_address, written=self._follow
        )
        self.permits = Entries(maps, "allowed", PERMITS.key, self._permit, written=self._follow)
        self.guards = Entries(maps, "guarded", GUARDS.key, self._guard, written=self._follow, choose=_strictest)

    def __repr__(self) -> str:
        return f"<IdentityTarget: {self.sources!r}, {self.signed_to!r}, {self.guards!r}, {self.permits!r}>"

    def put_keys(self, sign: Keys, verify: Keys, *, number: int = 0, passed: float = 0.0) -> Sequence[str]:
        """Make the maps hold exactly these keys of 16 bytes, by cluster and number. Returns failures.

        ``sign`` has the keys for calls to a cluster, ``verify`` those for calls from it. ``number`` is that of the key
        of the present epoch, which began ``passed`` seconds ago; the kernel goes on to the next ones by its own clock.
        """
        began = round((self._clock() - passed) * 1e9)
        drift = abs((began - self._began) / 1e9 - (number - self._number) % 256 * EPOCH_SECONDS)
        if sign or verify:
            if not self._began or drift > MOST_DRIFT:
                self._began, self._number = began, number
        else:
            self._began = self._number = 0
        failures = [*self._make("verify_keys", _entries(verify)), *self._make("sign_keys", _entries(sign))]
        self._renew_gate()
        return failures

    def put_own_ranges(self, ranges: Collection[str]) -> Sequence[str]:
        """Make these the ranges whose SYNs no guard looks at: pods and nodes of the own cluster. Returns failures."""
        return self._make("own_ranges", {codecs.range_key(each): ID.pack(1) for each in ranges})

    def refusals(self) -> list[Refusal]:
        """The refusals that the kernel has counted."""
        names = {number: name for name, number in self._policies.items()}
        rows = []
        for key, value in self._maps.items("refusals"):
            policy, identity, reason = codecs.REFUSAL_KEY.unpack(key)
            count, last = codecs.REFUSAL.unpack(value)
            if named := codecs.REASONS.get(reason):
                rows.append(
                    Refusal(
                        policy=names.get(policy, ServiceName("")),
                        identity=identity,
                        reason=named,
                        count=count,
                        last=self._boot.current() + last / 1e9,
                    )
                )
        return rows

    async def clear(self) -> None:
        """Remove every entry: nothing is signed and nothing is guarded."""
        for entries in (self.guards, self.addresses, self.signed_to, self.sources, self.host_sources, self.permits):
            await entries.prune(())
        self.put_keys({}, {})
        self.put_own_ranges(())
        self._make("refusals", {})

    async def renew(self) -> None:
        """Write sources and guards again, by the interfaces that lead to their pods now, and by their cgroups."""
        if self.host_sources.rows:
            await self.host_sources.update(list(self.host_sources.rows.values()))
        if self.sources.rows or self.guards.rows:
            await self.sources.update(list(self.sources.rows.values()))
            await self.guards.update(list(self.guards.rows.values()))

    async def keep(self) -> None:
        """Renew, for ever."""
        while True:
            await asyncio.sleep(RENEW)
            await self.renew()

    def _make(self, name: str, wanted: Mapping[bytes, bytes]) -> list[str]:
        """Make a map hold exactly these entries. Returns failures."""
        current = dict(self._maps.items(name))
        put = self._maps.put(name, [(key, value) for key, value in wanted.items() if current.get(key) != value])
        dropped = self._maps.drop(name, [key for key in current if key not in wanted])
        return [*put.values(), *dropped.values()]

    def _source(self, row: Source) -> dict[bytes, bytes]:
        """An entry for each address, and one for the interface: it makes any other address a spoofed one."""
        interface = self._interface(row.addresses, row.pod)
        value = codecs.SOURCE.pack(row.identity, interface)
        own = (codecs.ANY_ADDRESS, *map(address, row.addresses))
        return {codecs.SOURCE_KEY.pack(interface, each): value for each in own}

    def _host_source(self, row: HostSource) -> dict[bytes, bytes]:
        if not (group := self._groups.numbers().get(row.uid)):
            raise Unresolved(f"{row.pod} has no cgroup with its UID on this node")
        return {CGROUP.pack(group): codecs.HOST_CALLER.pack(group, row.identity, 0)}

    def _guard(self, row: Guard) -> dict[bytes, bytes]:
        """An entry for the port, and one that says that some port of the interface is guarded."""
        policy, protocol = self._policy(row.policy), PROTOCOLS[row.protocol]
        flags = codecs.AUDIT * row.audit | codecs.ADDRESS * row.by_address
        interface = self._interface((row.address,), row.address)
        wheres = [(port(number), protocol, 0) for number in (codecs.ANY_PORT, row.port)]
        return {
            codecs.GUARDED_KEY.pack(interface, *where): codecs.GUARDED.pack(policy, flags, interface, *where)
            for where in wheres
        }

    def _permit(self, row: Permit) -> dict[bytes, bytes]:
        return {codecs.ALLOWED_KEY.pack(self._policy(row.policy), row.identity): ID.pack(row.identity)}

    def _interface(self, addresses: Sequence[str], pod: str) -> int:
        leading = self._interfaces.numbers()
        interfaces = {leading[each] for each in addresses if each in leading}
        if len(interfaces) != 1:
            raise Unresolved(f"not one interface of this node leads to {pod}, but {len(interfaces)}")
        return interfaces.pop()

    def _policy(self, name: ServiceName) -> int:
        """Number of a policy, a new one if it has none."""
        if number := self._policies.get(name):
            return number
        encoded = name.encode()
        if len(encoded) > NAME_BYTES:
            raise Unresolved(f"name of a policy is longer than {NAME_BYTES} bytes: {name}")
        number = self._ids.take()
        if failures := self._maps.put("policies", [(ID.pack(number), codecs.POLICY.pack(encoded))]):
            self._ids.release([number])
            raise Unresolved(failures[0])
        self._policies[name] = number
        return number

    def _forget_policies(self) -> None:
        """Release the numbers of policies without rows, once every entry of an earlier process is pruned."""
        if not (self.permits.pruned and self.guards.pruned):
            return
        used = {row.policy for row in self.permits.rows.values()} | {row.policy for row in self.guards.rows.values()}
        obsolete = {name: number for name, number in self._policies.items() if name not in used}
        if obsolete and not self._maps.drop("policies", [ID.pack(number) for number in obsolete.values()]):
            self._forget_refusals({*obsolete.values()})
            self._ids.release(list(obsolete.values()))
            for name in obsolete:
                del self._policies[name]

    def _forget_refusals(self, policies: Collection[int]) -> None:
        """Remove the refusals of policies that are gone, so that the next policies with their numbers begin at zero."""
        counted = [key for key, _ in self._maps.items("refusals")]
        self._maps.drop("refusals", [key for key in counted if codecs.REFUSAL_KEY.named(key)["policy"] in policies])

    def _follow(self) -> None:
        """Follow a change of entries with the gate and the names of policies."""
        self._renew_gate()
        self._forget_policies()

    def _gate(self) -> bytes:
        """The gate in the kernel."""
        return dict(self._maps.items("signing")).get(GATE, CLOSED)

    def _renew_gate(self) -> None:
        """Make programs look where there is something, after it was written."""
        flags = codecs.SIGNS * bool(len(self.signed_to)) | codecs.GUARDS * bool(len(self.guards))
        flags |= codecs.HOST * bool(len(self.host_sources))
        current = self._gate()
        flags |= codecs.DATAGRAMS * any(row.protocol == "UDP" for row in self.guards.rows.values())
        if not self.guards.pruned:  # entries of an earlier process
            flags |= codecs.SIGNING.named(current)["flags"] & codecs.DATAGRAMS
        value = codecs.SIGNING.pack(flags, self._shift, self._began, self._number, 0)
        if value != current and (flags or codecs.SIGNING.named(current)["flags"]):
            self._maps.put("signing", [(GATE, value)])


def identity_target(
    maps: Maps, cgroup: Path, *, shift: int = SHIFT, owners: Callable[[], Identities] = dict
) -> IdentityTarget:
    """The target for the pods below a cgroup."""
    return IdentityTarget(
        maps, lambda: pod_interfaces(maps, cgroup, owners), groups=lambda: groups_by_uid(cgroup), shift=shift
    )


def _entries(keys: Keys) -> dict[bytes, bytes]:
    return {codecs.EPOCH_KEY_ID.pack(*each): codecs.EPOCH_KEY.pack(key, *each) for each, key in keys.items()}


def _caller_address(row: AddressIdentity) -> dict[bytes, bytes]:
    raw = address(row.address)
    return {codecs.CALLER_ADDRESS_KEY.pack(raw): codecs.CALLER_ADDRESS.pack(raw, row.number)}


def _signed_to(row: SignedTo) -> dict[bytes, bytes]:
    raw = address(row.address)
    return {codecs.SIGNED_TO_KEY.pack(raw): codecs.SIGNED_TO.pack(raw, row.cluster_id)}


def _strictest(key: bytes, values: Sequence[bytes]) -> bytes:
    """The guard of a port: the last written; of ANY_PORT the one under which most is refused."""
    if codecs.GUARDED_KEY.named(key)["port"] != port(codecs.ANY_PORT):
        return values[-1]

    def strictness(value: bytes) -> tuple[bool, bool]:
        flags = codecs.GUARDED.named(value)["flags"]
        return not flags & codecs.AUDIT, not flags & codecs.ADDRESS

    return max(values, key=strictness)
