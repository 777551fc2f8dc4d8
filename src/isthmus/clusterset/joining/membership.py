"""Two clusters join: one creates a token, the other accepts it, and each may read the other's etcd from then on.

    invite    a guest's user that may write one key, a token with it, and waiting for the offer
    join      a user for the inviting cluster, the offer, and waiting for access
    leave     the peer's file and user are removed

Nothing is half done: a join without an answer removes what it made. A token is valid once and until it expires; what
an invitation leaves whose process was killed, the next ``invite`` or ``certs`` removes.
"""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, structs

from isthmus.clusterset import peers, pki
from isthmus.clusterset.errors import JoinError, PkiError
from isthmus.clusterset.joining import mirrored, rights, tokens
from isthmus.clusterset.joining.tokens import Entry, Offer, Token, Trust
from isthmus.clusterset.pki import Folder
from isthmus.clusterset.records import keys
from isthmus.config import ClusterSection, ClustersetSection, EtcdSection
from isthmus.etcd import Credentials, Denied, EtcdError, KeyValue, Session, Tls, access
from isthmus.model.addresses import is_range
from isthmus.model.names import ClusterName, etcd_name, valid_cluster
from isthmus.reflector import Expired, Transient

LOOK_EVERY = 0.5
SHORTEST = 20
"""Fewest characters that a peer's password may have."""


class OwnCluster(Struct, frozen=True, kw_only=True):
    """The cluster that a command acts for: its configuration and its folder of keys."""

    cluster: ClusterSection
    clusterset: ClustersetSection
    etcd: EtcdSection
    folder: Folder
    domain: str = ""
    """Domain of the clusterset, in certificates of nodes and gateways; empty if it has none."""

    @property
    def name(self) -> ClusterName:
        """Its name."""
        return ClusterName(self.cluster.name)

    @property
    def directory(self) -> Path:
        """Folder of its peers' files."""
        return Path(self.clusterset.directory)

    def session(self, *, user: str = access.ROOT, timeout: float = 10.0) -> Session:
        """A session with the own etcd; an empty user: while its authentication is off. ``timeout``: seconds a call."""
        path, pair = self.folder.path, user if user in pki.CLIENTS else "admin"
        tls = Tls(str(path / "ca.crt"), str(path / f"{pair}.crt"), str(path / f"{pair}.key"))
        credentials = Credentials(user, self.folder.password(user)) if user else None
        return Session(self.etcd.endpoints, tls=tls, credentials=credentials, timeout=timeout)

    def store(self, name: str) -> OwnCluster:
        """The cluster with one of its etcds alone."""
        return structs.replace(self, etcd=structs.replace(self.etcd, endpoints=self.etcd.stores()[name], replicas=()))

    def stores(self) -> list[OwnCluster]:
        """The cluster with each of its etcds alone."""
        return [self.store(name) for name in self.etcd.stores()]

    def entry(self, advertise: tuple[str, ...]) -> Entry:
        """Return the endpoints and keys by which other clusters reach its etcd; JoinError unless https.

        Three cases: at the addresses that are given; through its gateways, where it has any; at the configured ones.
        """
        gateways = self.cluster.gateways if self.domain and not advertise else ()
        endpoints = advertise or tuple(f"https://{each}" for each in gateways) or self.etcd.endpoints
        if bad := [each for each in endpoints if urlsplit(each).scheme != "https"]:
            raise JoinError(f"{bad[0]}: want https://…: clusters exchange secrets when they join")
        door = self.folder.pair("peer")
        return Entry(
            cluster=self.name,
            id=self.cluster.id,
            endpoints=endpoints,
            ca=self.folder.bundle,
            certificate=door.certificate,
            key=door.key,
            pod_ranges=self.cluster.pod_ranges,
            server_name=etcd_name(self.name, self.domain) if gateways else "",
        )

    def write_mirrored(self) -> None:
        """Write the files by which agents read the mirror's copies, if the configuration names their directory."""
        mirrored.write(self.name, self.clusterset, self.etcd, self.folder)


async def guard(home: OwnCluster) -> None:
    """Users and roles of the own etcd; authentication is on from then on. Idempotent."""
    for store in home.stores():
        async with store.session() as root:
            if not await access.enabled(root):
                await _enable_authentication(store)
            await _ensure_users(store, root)
            await sweep(root)
    home.write_mirrored()


async def _enable_authentication(home: OwnCluster) -> None:
    """Turn authentication on."""
    async with home.session(user="") as unauthenticated:
        await access.ensure_role(unauthenticated, access.ROOT, ())
        await access.ensure_user(unauthenticated, access.ROOT, home.folder.password(access.ROOT), access.ROOT)
        await access.enable(unauthenticated)


async def _ensure_users(home: OwnCluster, root: Session) -> None:
    """Create what is missing, set every password, and publish the trust bundle last: it shows that all was done."""
    for role, grants in rights.roles(home.name).items():
        await access.ensure_role(root, role, grants)
    for user, (password, role) in _users(home).items():
        await access.ensure_user(root, user, password, role)
    await root.put(keys.trust(home.name), _trust(home))


def _users(home: OwnCluster) -> dict[str, tuple[str, str]]:
    """Password and role of each user whose password the folder has, but for root."""
    own = {"operator": rights.WRITER, "mirror": rights.MIRROR, "local": rights.LOCAL}
    users = {user: (home.folder.password(user), role) for user, role in own.items()}
    return users | {user: (password, rights.REMOTE) for user, password in home.folder.readers().items()}


def _trust(home: OwnCluster) -> bytes:
    """Value of the key by which peers learn the trust bundle."""
    door = home.folder.pair("peer")
    return msgspec.json.encode(Trust(ca=home.folder.bundle, certificate=door.certificate, key=door.key))


async def intact(home: OwnCluster, root: Session, users: Collection[str]) -> bool:
    """True if the etcd has these users, and the trust bundle, which :func:`restore` writes last."""
    return await _trust_is_published(home, root) and await access.users(root) >= set(users)


async def _trust_is_published(home: OwnCluster, root: Session) -> bool:
    stored = await root.get(keys.trust(home.name))
    return stored is not None and stored.value == _trust(home)


async def restore(
    home: OwnCluster, root: Session, *, peers: Collection[ClusterName] = (), changed: Collection[str] = ()
) -> list[str]:
    """Create the users and roles that the etcd lacks and publish the trust bundle; returns the users that were made.

    Unlike :func:`guard` it sets no password of a user that exists, unless it is one of ``changed``: that would end the
    user's tokens. So it may be called at any time. ``peers``: clusters whose users authenticate by a certificate of
    that name, and by no password.
    """
    made = []
    if not await access.enabled(root):
        await _enable_authentication(home)
        made.append(access.ROOT)
    for role, grants in rights.roles(home.name).items():
        await access.ensure_role(root, role, grants)
    existing = await access.users(root)
    unknown = {rights.remote_user(peer): (secrets.token_urlsafe(24), rights.REMOTE) for peer in peers}
    for user, (password, role) in (unknown | _users(home)).items():
        if user not in existing or user in changed:
            await access.ensure_user(root, user, password, role)
            made.append(user)
    if not await _trust_is_published(home, root):
        await root.put(keys.trust(home.name), _trust(home))
    return made


async def grant(home: OwnCluster, passwords: Mapping[ClusterName, str], granted: dict[ClusterName, str]) -> None:
    """Let these peers read the own etcd, by these passwords, and no other peer. ``granted``: what was set before, which
    follows what is set."""
    new = {peer: password for peer, password in passwords.items() if granted.get(peer) != password}
    for store in home.stores():
        async with store.session() as root:
            for peer, password in new.items():
                await access.ensure_user(root, rights.remote_user(peer), password, rights.REMOTE)
            for user in await access.users(root):
                name = ClusterName(user.removeprefix(rights.remote_user(ClusterName(""))))
                if name != user and name not in passwords:
                    await access.drop_user(root, user)
    granted.clear()
    granted.update(passwords)


async def sweep(root: Session) -> None:
    """Remove guests whose invitation has expired."""
    good = {kv.key.removeprefix(keys.INVITATIONS) for kv in (await root.list(keys.INVITATIONS)).kvs}
    for user in await access.users(root):
        number = user.removeprefix(rights.guest(""))
        if number != user and number not in good:
            await _remove_guest(root, number)


async def _remove_guest(root: Session, number: str) -> None:
    """Remove a guest: user, role, offer and invitation."""
    await access.drop_user(root, rights.guest(number))
    await access.drop_role(root, rights.guest(number))
    await root.delete(keys.offer(number))
    await root.delete(keys.invitation(number))


class Invitation:
    """A valid invitation; made by :func:`invitation`."""

    def __init__(self, home: OwnCluster, root: Session, token: Token, *, clock: Callable[[], float]) -> None:
        self._home = home
        self._root = root
        self._token = token
        self._clock = clock

    def __repr__(self) -> str:
        return f"<Invitation {self._token.number} of {self._home.name}>"

    @property
    def word(self) -> str:
        """The token, to be taken to the other cluster."""
        return tokens.pack(self._token)

    async def accepted(self) -> ClusterName:
        """Accept the first offer and return its cluster; JoinError if none arrives in time or it is unacceptable."""
        try:
            async with asyncio.timeout(self._token.expires - self._clock()):
                await self._wait_for_offer()
        except TimeoutError:
            raise JoinError("no cluster joined before the token expired; invite again") from None
        await access.drop_user(self._root, rights.guest(self._token.number))
        offer = await self._root.get(keys.offer(self._token.number))
        if offer is None or offer.version != 1:
            raise JoinError("the token was used twice: it has leaked; invite again, and keep it secret")
        return await _accept(self._home, self._root, tokens.read_offer(offer.value))

    async def _wait_for_offer(self) -> None:
        """Return when there is an offer."""
        key = keys.offer(self._token.number)
        while True:
            try:
                listing = await self._root.read(key)
                if listing.kvs:
                    return
                async for batch in self._root.watch(key, listing.revision + 1, store=listing.store, exact=True):
                    if batch.events:
                        return
            except (Transient, Expired):
                await asyncio.sleep(LOOK_EVERY)


@asynccontextmanager
async def invitation(
    home: OwnCluster, *, lifetime: int, advertise: tuple[str, ...] = (), clock: Callable[[], float] = time.time
) -> AsyncIterator[Invitation]:
    """Invite one cluster for ``lifetime`` seconds; afterwards nothing of the invitation stays."""
    _require_one_etcd(home)
    entry = home.entry(advertise)
    number, password = secrets.token_hex(8), secrets.token_urlsafe(24)
    async with home.session() as root:
        await sweep(root)
        lease = await root.grant_lease(lifetime)
        await root.put(keys.invitation(number), b"", lease=lease.id)
        try:
            await access.ensure_role(root, rights.guest(number), rights.guest_rights(number))
            await access.ensure_user(root, rights.guest(number), password, rights.guest(number))
            token = Token(entry=entry, number=number, password=password, expires=math.floor(clock()) + lifetime)
            yield Invitation(home, root, token, clock=clock)
        finally:
            await _remove_guest(root, number)
            await lease.revoke()


async def _accept(home: OwnCluster, root: Session, offer: Offer) -> ClusterName:
    """Accept a peer: a user for it in the own etcd, its file in the directory of peers."""
    entry = offer.entry
    check(home, entry)
    if min(len(offer.password), len(offer.wanted)) < SHORTEST:
        raise JoinError(f"the offer of cluster {entry.cluster} has a password shorter than {SHORTEST} characters")
    await _admit(home, root, entry.cluster, offer.wanted)
    _save(home, entry, offer.password)
    home.write_mirrored()
    return entry.cluster


async def join(
    home: OwnCluster,
    word: str,
    *,
    advertise: tuple[str, ...] = (),
    patience: float = 60.0,
    clock: Callable[[], float] = time.time,
) -> ClusterName:
    """Join the cluster that gave this token, and give its name; JoinError where it did not grant access."""
    _require_one_etcd(home)
    token = tokens.unpack(word)
    inviter = token.entry
    if token.expires < clock():
        raise JoinError(f"the token of cluster {inviter.cluster} has expired; ask for another one")
    check(home, inviter)
    own = home.entry(advertise)
    offer = Offer(entry=own, password=secrets.token_urlsafe(24), wanted=secrets.token_urlsafe(24))
    async with home.session() as root:
        await _admit(home, root, inviter.cluster, offer.password)
        try:
            peer = _save(home, inviter, offer.wanted)
            await _send_offer(offer, token, peer)
            await _wait_for_access(peer, patience)
        except BaseException:
            peers.forget(home.directory, inviter.cluster)
            await _expel(home, root, inviter.cluster)
            raise
    home.write_mirrored()
    return inviter.cluster


def _require_one_etcd(home: OwnCluster) -> None:
    """JoinError where an offer would arrive in one of several etcds."""
    if home.etcd.replicas:
        raise JoinError("tokens need one etcd, and etcd.replicas names several: join by links (isthmus connect)")


async def _admit(home: OwnCluster, root: Session, peer: ClusterName, password: str) -> None:
    """Create a peer's user, and keep its password for an etcd that loses its data."""
    await access.ensure_user(root, rights.remote_user(peer), password, rights.REMOTE)
    home.folder.save(f"{rights.remote_user(peer)}.password", password.encode())


async def _expel(home: OwnCluster, root: Session, peer: ClusterName) -> bool:
    """Remove a peer's user and its password; True if the user existed."""
    if valid_cluster(peer):
        home.folder.forget_reader(rights.remote_user(peer))
    return await access.drop_user(root, rights.remote_user(peer))


async def _send_offer(offer: Offer, token: Token, peer: peers.Peer) -> None:
    """Write the one key that the guest's role permits."""
    tls = Tls(peer.ca_file, peer.cert_file, peer.key_file, peer.server_name)
    guest = Credentials(rights.guest(token.number), token.password)
    async with Session(peer.endpoints, tls=tls, credentials=guest) as session:
        try:
            await session.put(keys.offer(token.number), msgspec.json.encode(offer))
        except Denied:
            raise JoinError(f"cluster {peer.name} does not know the token: used or expired; ask for another") from None
        except (Transient, EtcdError) as error:
            raise JoinError(f"cluster {peer.name} cannot be reached: {error}") from None


async def _wait_for_access(peer: peers.Peer, patience: float) -> None:
    """Return when the peer grants us its keys; JoinError after ``patience`` seconds."""
    reason = ""
    try:
        async with asyncio.timeout(patience), peer.session() as session:
            while True:
                try:
                    await session.get(keys.trust(peer.name))
                except Transient as failed:
                    reason = str(failed)
                else:
                    return
                await asyncio.sleep(LOOK_EVERY)
    except TimeoutError:
        failure = f"cluster {peer.name} did not grant access within {patience:.0f} s ({reason})"
        raise JoinError(f"{failure}; see what its 'isthmus clusters invite' printed, and begin again there") from None


async def leave(home: OwnCluster, name: ClusterName) -> None:
    """Stop following a cluster, and take its access here away."""
    existed = valid_cluster(name) and peers.forget(home.directory, name)
    home.write_mirrored()
    user = False
    for store in home.stores():
        async with store.session() as root:
            user = await _expel(home, root, name) or user
    if not existed and not user:
        raise JoinError(f"no cluster '{name}' has joined: it has neither a file in {home.directory} nor a user here")


async def refresh(home: OwnCluster) -> list[ClusterName]:
    """Trust the authorities that peers publish now; returns the peers whose authorities changed."""
    changed = []
    for peer in peers.Directory(str(home.directory), own=home.name).read().values():
        async with peer.session() as session:
            published = await session.get(keys.trust(peer.name))
        if published is not None and _update_trust(home, peer, published):
            changed.append(peer.name)
    home.write_mirrored()
    return changed


async def check_next(home: OwnCluster, *, timeout: float = 10.0) -> None:
    """JoinError where the etcd takes our certificates, but not those of the authority that is to sign next.

    Three cases: it answers, and is tried; it hangs, which decides nothing; it does not run, so no connection breaks.
    """
    try:
        async with home.session(timeout=timeout) as root:
            await root.status()
    except Transient as error:
        if await _listens(home.etcd.endpoints):
            raise JoinError(f"the etcd does not answer now ({error}); try again, or stop it first") from None
        return
    if not await trusts_next(home):
        failure = "the etcd does not trust the new authority: it reads --trusted-ca-file only when it starts"
        raise JoinError(f"{failure}; restart it, then again: rotate-ca switch")


async def trusts_next(home: OwnCluster) -> bool:
    """True if the etcd admits a certificate of the authority that is to sign next."""
    with home.folder.of_next("admin") as tls:
        async with Session(home.etcd.endpoints, tls=tls) as session:
            try:
                await session.status()
            except Denied:
                return True
            except Transient:
                return False
    return True


async def _listens(endpoints: tuple[str, ...]) -> bool:
    """True if a program listens at one of these addresses, or may: only refused connections exclude it."""
    for endpoint in endpoints:
        url = urlsplit(endpoint)
        try:
            async with asyncio.timeout(5.0):
                _, writer = await asyncio.open_connection(url.hostname, url.port)
        except ConnectionRefusedError:
            continue
        except (OSError, TimeoutError):
            return True
        writer.close()
        return True
    return False


def _update_trust(home: OwnCluster, peer: peers.Peer, published: KeyValue) -> bool:
    """Save the authorities that a peer publishes; False where they are the ones saved. JoinError for unusable ones."""
    try:
        trust = msgspec.json.decode(published.value, type=Trust)
        ca, certificate, key = pki.checked(trust.ca), pki.checked(trust.certificate), pki.checked_key(trust.key)
    except (msgspec.MsgspecError, PkiError) as error:
        raise JoinError(f"the authorities that cluster {peer.name} publishes cannot be used: {error}") from None
    if ca == Path(peer.ca_file).read_bytes() and certificate == Path(peer.cert_file).read_bytes():
        return False
    peers.save(home.directory, peer, ca=ca, certificate=certificate, key=key)
    return True


def check(home: OwnCluster, entry: Entry) -> None:
    """JoinError where a cluster cannot join."""
    name, most = entry.cluster, home.clusterset.max_connected_clusters
    if not valid_cluster(name):
        raise JoinError(f"'{name}' cannot be a cluster's name")
    if name == home.name:
        raise JoinError(f"both clusters are called {name}; each needs a name of its own")
    if not 0 < entry.id <= most:
        raise JoinError(f"cluster {name} has the id {entry.id}: want 1 to {most}")
    if entry.id == home.cluster.id:
        raise JoinError(f"cluster {name} has our id {entry.id}; each needs an id of its own")
    for other, peer in peers.Directory(str(home.directory), own=home.name).read().items():
        if peer.id == entry.id and other != name:
            raise JoinError(
                f"cluster {name} has the id {entry.id}, with which cluster {other} joined; each needs an id of its own"
            )
    if not entry.endpoints or any(urlsplit(each).scheme != "https" for each in entry.endpoints):
        raise JoinError(f"cluster {name} names no https addresses of its etcd")
    if entry.server_name and entry.server_name != (expected := etcd_name(name, home.domain)):
        failure = f"cluster {name} calls its etcd '{entry.server_name}', which is '{expected}' here"
        raise JoinError(f"{failure}; gateway.domain has to be the same in all clusters")
    if (home.directory / name).exists():
        raise JoinError(f"cluster {name} has joined already; to join it anew: isthmus clusters leave {name}")


def _declared(entry: Entry) -> tuple[str, ...]:
    if bad := [each for each in entry.pod_ranges if not is_range(each)]:
        raise JoinError(f"cluster {entry.cluster} declares {bad[0]!r}, which is no range of addresses")
    return entry.pod_ranges


def _save(home: OwnCluster, entry: Entry, password: str) -> peers.Peer:
    user = rights.remote_user(home.name)
    peer = peers.Peer(
        name=entry.cluster,
        endpoints=entry.endpoints,
        username=user,
        password=password,
        id=entry.id,
        pod_ranges=_declared(entry),
        server_name=entry.server_name,
    )
    try:
        certificate = pki.checked(entry.certificate)
        key = pki.checked_key(entry.key)
        return peers.save(home.directory, peer, ca=pki.checked(entry.ca), certificate=certificate, key=key)
    except (PkiError, OSError) as error:
        raise JoinError(f"cluster {entry.cluster}: {error}") from None
