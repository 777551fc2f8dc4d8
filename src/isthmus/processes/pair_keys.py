"""Keys of signatures between clusters: makes them, publishes the public ones, and distributes secrets to nodes.

The keeper of keys makes an X25519 pair, and later the next one, in the Secret ``isthmus-keys`` that it alone reads. It
hands the public halves to the operator, which publishes them. It reads those of peers in their own etcds, with the
files that the cluster has for them, so that a writer of ConfigMaps in this cluster cannot replace one. From both it
derives the secrets of a few days in the Secret ``isthmus-pair-keys``, which agents read.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Final

from isthmus import bounds, kube, logs, statefile
from isthmus.clusterset import AUTHORITY_ROTATION, PUBLIC_KEY, Folder, Keeper, Next, PkiError, Signing, links, peers
from isthmus.config import Config
from isthmus.identity import keys, pairs, schedule
from isthmus.identity.epoch_keys import EpochKeys, KeySet
from isthmus.identity.schedule import Schedule
from isthmus.model.names import ClusterName
from isthmus.running import Tasks
from isthmus.sources import secret_files
from isthmus.sources.secret_files import SecretFiles
from isthmus.statedb import Backoff, Retry

PRIVATE_KEY: Final = "signing.key"
PAIR_KEYS: Final = "isthmus-pair-keys"
REQUESTED: Final = "signing"
"""Field of a person in the ConfigMap of rotations: the time before which a pair must have been made to be replaced."""
EPOCH: Final = date(1970, 1, 1).toordinal()
RETRY: Final = Backoff(0.2, 5.0)
EVERY: Final = 30.0
"""Seconds between looks at peers' public keys and at the date. Until the next look, calls of a peer whose key changed
are not verified."""
FILES_EVERY: Final = 1.0
"""Seconds between an agent's looks at its files."""
AT_ONCE: Final = 32
"""Peers' etcds that are read at a time."""

log = logs.get("identity")


class OwnPair:
    """Makes the cluster's X25519 pair, and the next one. ``now`` is the Unix time.

    ``every``: seconds for which a pair is used; 0 replaces it only when that is requested.
    """

    def __init__(self, *, every: float, now: Callable[[], float] = time.time) -> None:
        self.problem = ""
        self._every = every
        self._now = now
        self._schedule: Schedule | None = None

    def __repr__(self) -> str:
        return f"<OwnPair: {self.sentence()}>"

    def sentence(self) -> str:
        """Describe the pair's state."""
        if self._schedule is None:
            return "no pair"
        if not self._schedule.next:
            return "one pair"
        return f"another pair is used from {date.fromordinal(EPOCH + self._schedule.day)}, 00:00 UTC"

    def ensure(self, folder: Folder, requests: Mapping[str, str]) -> list[str]:
        """Make the pair that a folder of keys lacks, and the next one when it is due; returns the files that were made.

        ``requests``: the ConfigMap of rotations. Every pair made before its :data:`REQUESTED` is replaced once.
        """
        now, made = self._now(), []
        if not (folder.path / PRIVATE_KEY).exists():
            folder.save(PRIVATE_KEY, schedule.encode(schedule.new(now)))
            made.append(PRIVATE_KEY)
        try:
            before = private_keys(folder)
        except PkiError:  # a problem of PairKeys, and of no other key
            return made
        after = before.settled(now)
        if after.due(requested=self._requested(requests), every=self._every, now=now):
            after = after.begun(now)
        self._schedule = after
        if after.too_far(now) and not self.problem:
            self.problem = f"{self.sentence()}: a clock was wrong; request another one as docs/identity.md has it"
        for name, each in ((PRIVATE_KEY, after), (PUBLIC_KEY, after.public())):
            if after != before or not (folder.path / name).exists() or _keys(folder, name) != each:
                folder.save(name, schedule.encode(each))
                made.append(name)
        return made

    def _requested(self, requests: Mapping[str, str]) -> float:
        self.problem = ""
        try:
            return bounds.timestamp(text).timestamp() if (text := requests.get(REQUESTED)) else 0.0
        except bounds.OutOfBounds as error:
            self.problem = f"the pair of signatures is not rotated: {AUTHORITY_ROTATION}, data.{REQUESTED}: {error}"
            return 0.0


def private_keys(folder: Folder) -> Schedule:
    """The private keys of a folder; PkiError if its file holds none."""
    try:
        return schedule.decode(folder.read(PRIVATE_KEY))
    except ValueError as error:
        raise PkiError(f"{folder.path / PRIVATE_KEY}: {error}; delete it for a new one") from None


def _keys(folder: Folder, name: str) -> Schedule | None:
    with suppress(ValueError):
        return schedule.decode(folder.read(name))
    return None


def published(config: Config) -> Signing:
    """The own field ``signing``: the public keys beside the operator's certificate, and that the nodes verify.

    An etcd without TLS has no file of keys beside it, and the cluster then has none.
    """
    if config.etcd.ca_file:
        with suppress(statefile.Unusable, ValueError):
            content = statefile.contents(Path(config.etcd.ca_file).with_name(PUBLIC_KEY))
            public = schedule.decode((content or b"").strip())
            following = Next(_text(public.next), public.day) if public.next else None
            return Signing(key=_text(public.key), verifies=True, next=following)
    return Signing(verifies=True)


def _text(key: bytes) -> str:
    return base64.b64encode(key).decode()


class PairKeys:
    """Keeps the Secret ``isthmus-pair-keys``. :meth:`run` never returns. ``now`` is the Unix time."""

    def __init__(
        self, client: kube.Client, keeper: Keeper, config: Config, *, now: Callable[[], float] = time.time
    ) -> None:
        self._client = client
        self._keeper = keeper
        self._own = ClusterName(config.cluster.name)
        self._namespace = config.kubernetes.namespace
        self._now = now
        self._files = keeper.home.folder.path.parent / "pairs"
        self._made: dict[ClusterName, tuple[tuple[Schedule, Schedule, int], bytes]] = {}
        """File of each peer, and the keys and the day from which it was made."""
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._problem = ""

    def __repr__(self) -> str:
        return f"<PairKeys of {self._own}: {self._problem or f'{len(self._made)} peers'}>"

    def problems(self) -> list[str]:
        """Reasons why secrets of signatures are not kept, a sentence each."""
        return [self._problem] if self._problem else []

    async def run(self) -> None:
        """Keep it, for ever."""
        await self._keeper.loaded.wait()
        retry = Retry(RETRY)
        while True:
            try:
                await self.look()
            except (kube.KubeError, PkiError) as error:
                self._problem = f"keys of signatures are not kept: {error}"
                log.warning("keys of signatures are not kept", why=str(error), attempt=retry.failed())
                await retry.pause()
                continue
            retry.succeeded()
            self._problem = ""
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Read peers' public keys, and write the secrets of the days around now that follow from them."""
        stored = await links.link_secrets.read(self._client, self._namespace, PAIR_KEYS)
        before = EpochKeys()
        before.update(stored.files)
        public_keys = await self._peers_keys(before.peer_keys())
        private = private_keys(self._keeper.home.folder)
        made = {}
        for name, key in public_keys.items():
            try:
                made[name] = self._file(name, private, key)
            except ValueError:  # what the Secret had for a peer that is away can be no key: somebody wrote it there
                log.warning("a peer's key cannot be used", cluster=name)
            await asyncio.sleep(0)  # hundreds of peers take a part of a second
        self._made = made
        files = {str(name): content for name, (_, content) in self._made.items()}
        changed = sorted(name for name, content in files.items() if stored.files.get(name) != content)
        drop = stored.files.keys() - files.keys()
        await links.link_secrets.write(self._client, self._namespace, PAIR_KEYS, stored, put=files, drop=drop)
        if changed or drop:
            log.info("secrets of signatures written", peers=changed, dropped=sorted(drop))

    async def _peers_keys(self, before: Mapping[ClusterName, Schedule]) -> dict[ClusterName, Schedule]:
        """Public keys of the peers that have one. Of a peer whose etcd cannot be read, that of before."""
        content = await links.link_secrets.read(self._client, self._namespace, links.link_secrets.PEERS)
        secret_files.write(self._files, content.files)
        directory = peers.Directory(str(self._files), own=self._own).read()
        read = dict(zip(directory, await asyncio.gather(*map(self._read, directory.values())), strict=True))
        latest = {name: before.get(name) if signing is None else _decoded(signing) for name, signing in read.items()}
        return {name: public for name, public in latest.items() if public is not None}

    async def _read(self, peer: peers.Peer) -> Signing | None:
        async with self._slots:
            return await links.signing(peer) if not peer.problem else None

    def _file(
        self, peer: ClusterName, private: Schedule, public: Schedule
    ) -> tuple[tuple[Schedule, Schedule, int], bytes]:
        now = self._now()
        inputs = (private, public, keys.day_of(keys.epoch_at(now)))
        made = self._made.get(peer)
        if made is not None and made[0] == inputs:
            return made
        return inputs, pairs.encode(pairs.pair(private, public, own=self._own, peer=peer, now=now))


def _decoded(signing: Signing) -> Schedule | None:
    if not signing.key:
        return None
    following = signing.next or Next("", 0)
    return Schedule(key=base64.b64decode(signing.key), next=base64.b64decode(following.key), day=following.day)


class NodeKeys:
    """The agent's part: files of secrets in, keys of the present epochs out. ``now`` is the Unix time."""

    def __init__(self, config: Config, *, now: Callable[[], float] = time.time) -> None:
        self._config = config
        self._directory = Path(config.identity.directory)
        self._now = now
        self._keys = EpochKeys()
        self._seen: object = None
        self._stamps: Mapping[Path, tuple[int, ...]] | None = None
        """Stamps of the files at the last look; ``None`` if one could not be read."""
        self.files = SecretFiles(self._directory)
        """The sink of the Secret's reflector."""

    def __repr__(self) -> str:
        return f"<NodeKeys of {self._directory}: {self._keys!r}>"

    def problems(self) -> list[str]:
        """Reasons why keys are missing or old, a sentence each."""
        unread = [f"keys of signatures are not read anew: {why}"] if (why := self.files.problem) else []
        return [*unread, *self._keys.problems(self._now())]

    def follow(self, client: kube.Client, tasks: Tasks) -> None:
        """Keep the directory as the Secret is, if one is configured."""
        if name := self._config.identity.secret:
            namespace = self._config.kubernetes.namespace
            reflector = secret_files.reflector(client, namespace, name, self.files, name="kubernetes/pair keys")
            tasks.start(reflector.name, reflector.run)

    async def run(self, put: Callable[[KeySet], None], ids: Callable[[], Mapping[ClusterName, int]]) -> None:
        """Call ``put`` with the keys of a moment whenever they are others, for ever.

        ``ids`` returns the cluster ids of the peers to sign for and to verify: of none that is refused or distrusted.
        """
        await self._first_read()
        put(current := self.look(numbers := dict(ids())))
        while True:
            await asyncio.sleep(FILES_EVERY)
            before, numbers = numbers, dict(ids())
            changed = self._read() or numbers != before
            if changed or not current.until - keys.EPOCH_SECONDS <= self._now() < current.until:
                put(current := self._keys.current(self._now(), numbers))

    async def _first_read(self) -> None:
        """Wait for the Secret: the files of a new pod come after it, and no keys would replace those in the kernel."""
        if not self._config.identity.secret:
            return
        try:
            async with asyncio.timeout(self._config.sync.timeout):
                await self.files.read.wait()
        except TimeoutError:
            log.warning("going on without the secrets of signatures", secret=self._config.identity.secret)

    def look(self, ids: Mapping[ClusterName, int]) -> KeySet:
        """Read the files, and return the keys of now."""
        self._read()
        return self._keys.current(self._now(), ids)

    def _read(self) -> bool:
        """Read the files if one may be another than at the last look; True if some are."""
        paths = self._directory.iterdir() if self._directory.is_dir() else ()
        stamps = {path: statefile.stamp(path) for path in paths if not path.name.startswith(".")}
        if stamps == self._stamps:
            return False
        files: dict[str, bytes] = {}
        unreadable: dict[str, str] = {}
        for path in sorted(stamps):
            try:
                content = statefile.contents(path)
            except statefile.Unusable as error:
                unreadable[path.name] = str(error)
            else:
                files |= {path.name: content} if content is not None else {}
        self._stamps = stamps if not unreadable else None  # what cannot be read is tried again
        if (files, unreadable) == self._seen:
            return False
        self._seen = files, unreadable
        self._keys.update(files, unreadable)
        return True
