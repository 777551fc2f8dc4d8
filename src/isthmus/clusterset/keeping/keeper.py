"""The loops of the process that keeps a cluster's keys.

    keys    Secret → folder → the next step of a rotation, certificates that are missing, about to end or for other
            hosts → Secret → roles' Secrets
    users   users, roles and the trust bundle, whenever an etcd lacks them: at its start, and after it lost its data
    upkeep  what refuses writes is cured (maintenance)

The first works without an etcd and the others without an API server, once the folder is complete. The others run for
each of the cluster's etcds, so that one that is away holds up no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Final

from msgspec import Struct

from isthmus import kube, logs
from isthmus.clusterset import joining, pki
from isthmus.clusterset.errors import PkiError
from isthmus.clusterset.joining import OwnCluster
from isthmus.clusterset.joining.rights import remote_user
from isthmus.clusterset.keeping import roles, vault
from isthmus.clusterset.keeping.issuing import Issuer
from isthmus.clusterset.keeping.maintenance import Upkeep
from isthmus.clusterset.keeping.rotating import Rotation
from isthmus.clusterset.keeping.vault import Stored, Vault
from isthmus.clusterset.pki import Folder
from isthmus.config import KeysSection
from isthmus.etcd import EtcdError, Session, access
from isthmus.reflector import Expired, Transient
from isthmus.running import Tasks
from isthmus.statedb import Backoff, Retry

DAY: Final = 86_400.0
RETRY: Final = Backoff(0.2, 5.0)
ETCD_RETRY: Final = Backoff(0.1, 1.0)
"""Pauses between calls to the own etcd; short, since an etcd that lost its users is open until they are restored."""

log = logs.get("keys")


class KeeperTimings(Struct, frozen=True, gc=False, kw_only=True):
    """Seconds of a keeper. Processes run with the defaults."""

    keys_every: float = 10.0
    """Interval of looks at Secrets, Services' addresses and ends of certificates. A load balancer's address is covered
    within it; a certificate has a third of its life left when it is renewed."""
    etcd_every: float = 1.0
    """Interval of looks at the etcd: as long as it has no users it admits every certificate of its authority."""


TIMINGS: Final = KeeperTimings()


class Keeper:
    """Keeps the keys of one cluster. :meth:`run` never returns.

    ``loaded`` is set once the folder is complete and kept; ``rotation.readers`` are peers that authenticate to the own
    etcd by a certificate, and so have no password in the folder. To change them replace the mapping: users of new ones
    are made within a second, and those that were in it before and are not in it any more are removed. ``also`` makes
    further files that the folder lacks, and returns their names; it is given what is requested of rotations.
    """

    def __init__(
        self,
        client: kube.Client,
        home: OwnCluster,
        section: KeysSection,
        *,
        namespace: str,
        also: Callable[[Folder, Mapping[str, str]], list[str]] | None = None,
        timings: KeeperTimings = TIMINGS,
    ) -> None:
        self.home = home
        self.loaded = asyncio.Event()
        self.rotation = Rotation(client, home, section, namespace=namespace, published=self._published)
        self.outcome = "has not run"
        self._etcds = {name: _Etcd() for name in home.etcd.stores()}
        self._section = section
        self._also = also
        self._issuer = Issuer(client, namespace, section, use="roles")
        self._offered = b""
        """An authority that an issuer was seen to sign by, for a peer."""
        self._vault = Vault(client, namespace)
        self._timings = timings
        self._version = ""
        """Resource version of the Secret that the folder is a copy of; empty if it is a copy of none."""
        self._wake = asyncio.Event()
        self._keys_problem = "the Secret of keys was not read yet"

    def __repr__(self) -> str:
        return f"<Keeper of {self.home.name}: {self.outcome}>"

    def problems(self) -> list[str]:
        """Reasons why keys or users are not as they should be, a sentence each.

        An etcd that is away is no problem while another one has them.
        """
        away = [each.problem for each in self._etcds.values()]
        upkeep = [each.upkeep.problem for each in self._etcds.values()]
        problems = (
            self._keys_problem,
            *(self._issuer.problems() if self.loaded.is_set() else ()),
            *(away if all(away) else ()),
            *upkeep,
            self.rotation.problem,
        )
        return [*dict.fromkeys(filter(None, problems))]

    def warnings(self) -> list[str]:
        """Etcds whose users are not kept, while those of others are."""
        away = {name: each.problem for name, each in self._etcds.items() if each.problem}
        return [f"etcd {name}: {why}" for name, why in away.items()] if len(away) < len(self._etcds) else []

    def _published(self) -> str:
        """Digest of the trust bundle that every etcd was last seen to have; empty if they differ."""
        [digest, *others] = {each.published for each in self._etcds.values()}
        return "" if others else digest

    @property
    def issuing(self) -> bool:
        """True if an issuer signs. Where it replaces an own authority that is being rotated, once that has ended."""
        return bool(self._section.issuer) and not self.home.folder.signs

    def offer(self, authority: bytes) -> None:
        """Take up an authority by which the issuer has signed for a peer, if it is another one."""
        if authority != self.home.folder.authority:
            self._offered = authority
            self.wake()

    def wake(self) -> None:
        """Look at the keys at once."""
        self._wake.set()

    async def run(self) -> None:
        """Keep keys and users, for ever."""
        async with Tasks() as tasks:
            tasks.start("keys", self._keep_keys)
            for name, etcd in self._etcds.items():
                tasks.start(f"users of {name}", partial(self._keep_users, name, etcd))
                tasks.start(f"upkeep of {name}", partial(self._keep_small, name, etcd))

    async def _keep_keys(self) -> None:
        retry = Retry(RETRY)
        while True:
            self._wake.clear()
            try:
                changed = await self.look()
            except (kube.KubeError, PkiError, Expired) as error:
                self._version = ""
                self._keys_problem = f"keys are not kept: {error}"
                log.warning("keys are not kept", why=str(error), attempt=retry.failed())
                await retry.pause()
                continue
            retry.succeeded()
            self._keys_problem = ""
            if changed:
                log.info("keys written", what=changed)
            self.loaded.set()
            try:
                async with asyncio.timeout(self._timings.keys_every):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def look(self) -> list[str]:
        """One pass over the keys; returns the files that were made and the Secrets that were written."""
        stored = await self._load()
        hosts = await self._vault.hosts(self._section.hosts)
        steps = await self.rotation.advance()
        made = await self._ensure(hosts)
        made += self._also(self.home.folder, self.rotation.requests) if self._also is not None else []
        await self._save(stored)
        if self.issuing and (missing := roles.missing(self.home.folder)):
            raise PkiError(f"not issued yet: {', '.join(missing)}; {'; '.join(self._issuer.reasons.values())}")
        shared = await self._vault.share(self.home.folder.contents())
        await self.rotation.settle()
        return [*steps, *made, *shared]

    async def _load(self) -> Stored | None:
        """Make the folder a copy of the Secret; ``None`` if there is none and one may be made.

        Three cases without it, or without the authority in it: one that was deleted or emptied is made again of the
        folder; where roles have keys, an authority exists that we do not have; else this is a new cluster.
        """
        stored = await self._vault.read()
        authority = vault.ISSUERS if self._section.issuer else vault.AUTHORITY
        if stored is None or not stored.files.keys() >= authority:
            if not self.loaded.is_set() and (existing := await self._vault.shared()):
                raise vault.refusal(existing, lacks=stored is not None)
            if self._section.issuer and stored is not None and not self.loaded.is_set():
                self.home.folder.replace(stored.files)  # keys whose certificates an issuer has not signed yet
            return stored
        if stored.version != self._version:
            self.home.folder.replace(stored.files)
        return stored

    async def _ensure(self, hosts: Collection[str]) -> list[str]:
        home = self.home
        if self.issuing:
            offered, self._offered = self._offered, b""
            lifetime = self._section.lifetime / DAY
            pairs = pki.specs(home.name, hosts, days=lifetime, domain=home.domain, lasting=lifetime)
            fresh = not self.loaded.is_set() and not await self._vault.shared()
            return await roles.ensure(home.folder, pairs, self._issuer, fresh=fresh, offered=offered)
        if home.folder.issuers_next:  # the option was taken back
            home.folder.abandon()
        return home.folder.ensure(home.name, hosts, days=self._section.lifetime / DAY, domain=home.domain)

    async def _save(self, stored: Stored | None) -> None:
        """Keep what is new in the folder. Conflict: another process wrote the Secret, which is read again."""
        files = self.home.folder.contents()
        if stored is None:
            await self._vault.create(files)
        elif files != stored.files:
            await self._vault.update(stored, files)
        else:
            self._version = stored.version
            return
        kept = await self._vault.read()
        self._version = kept.version if kept is not None and kept.files == files else ""

    async def _keep_users(self, name: str, etcd: _Etcd) -> None:
        await self.loaded.wait()
        retry = Retry(ETCD_RETRY)
        async with self.home.store(name).session() as root:
            while True:
                try:
                    await self._restore(name, etcd, root)
                except (Transient, Expired, EtcdError, PkiError) as error:
                    etcd.problem = f"users of the own etcd are not kept: {error}"
                    etcd.current, etcd.published = False, ""
                    log.warning("users of the own etcd are not kept", why=str(error), attempt=retry.failed())
                    await retry.pause()
                    continue
                retry.succeeded()
                etcd.problem = ""
                await asyncio.sleep(self._timings.etcd_every)

    async def _keep_small(self, name: str, etcd: _Etcd) -> None:
        await self.loaded.wait()
        async with self.home.store(name).session() as root:
            await etcd.upkeep.run(root)

    async def _restore(self, name: str, etcd: _Etcd, root: Session) -> None:
        """Create what the etcd lacks. Two reads show whether it does, unless the peers have changed.

        The users themselves are read, too: the user of a removed link is dropped, and the link may be made again before
        this loop runs.
        """
        home = self.home.store(name)
        peers, passwords = tuple(self.rotation.readers), home.folder.readers()
        desired = {remote_user(peer): "" for peer in peers} | passwords
        if etcd.current and etcd.granted == desired and await joining.intact(home, root, desired):
            etcd.published = pki.digest(home.folder.bundle)
            return
        before = etcd.granted  # still the users that a failed pass, or one before an outage, left there
        changed = [user for user in before.keys() & passwords.keys() if before[user] != passwords[user]]
        made = await joining.restore(home, root, peers=peers, changed=changed)
        for user in before.keys() - desired.keys():
            await access.drop_user(root, user)
        etcd.granted, etcd.current = desired, True
        self.outcome = f"the etcd has its users, {len(desired)} of them of peers"
        if made:
            log.info("users of the own etcd made", etcd=name, users=made)


class _Etcd:
    """State of one of the cluster's etcds."""

    def __init__(self) -> None:
        self.upkeep = Upkeep()
        self.granted: dict[str, str] = {}
        """Users of peers that it had at last, each with its password, empty without one."""
        self.current = False
        """True while it answers, so that its users and trust bundle need only be compared."""
        self.published = ""
        """Digest of the trust bundle that it was last seen to have."""
        self.problem = ""
