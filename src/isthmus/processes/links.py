"""ClusterLinks in the process that keeps the keys: objects and Secrets in, Secrets, users, certificates and status out.

A pass reads the two Secrets of links, decides (:mod:`isthmus.clusterset.links`), and writes, in an order in which each
interrupted prefix is safe: a key is kept before its request is displayed. Of a deleted link, the file is removed first,
then the peer's user, and last what is kept, from which a later process learns that the others must be removed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from isthmus import bounds, kube, logs
from isthmus.clusterset import Issuer, Keeper, PkiError, Reader, SigningRequest, joining, links, peers, pki, remote_user
from isthmus.config import Config
from isthmus.etcd import EtcdError
from isthmus.kube.objects.core import CONFIG_MAP, SERVICE, Service
from isthmus.kube.objects.links import CLUSTER_LINK
from isthmus.model.addresses import reserved
from isthmus.model.hosts import joined
from isthmus.model.links import Link, LinkCondition, LinkStatus
from isthmus.model.names import ClusterName
from isthmus.model.tables import LINKS
from isthmus.reflector import Expired, Transient
from isthmus.sources import links as source
from isthmus.sources import secret_files
from isthmus.statedb import Backoff, Database, Retry
from isthmus.times import timestamp

DAY: Final = 86_400.0
RETRY: Final = Backoff(0.2, 5.0)
ETCD_SERVICE: Final = "isthmus-etcd-peers"
OWN_ETCD: Final = "isthmus-etcd"
MAX_MESSAGE: Final = 500
"""Characters of a condition's message: a peer's etcd may answer with anything."""
ADMIT_TIMEOUT: Final = 5.0
"""Seconds for each call to an own etcd, which should hold up the other links no longer."""
AT_ONCE: Final = 32
"""Peers' etcds that are looked into at a time."""

log = logs.get("links")


class LinkTimings(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds. Processes run with the defaults."""

    every: float = 5.0
    """Between passes without a change of a link."""
    look_every: float = 30.0
    """Between looks into the etcd of a peer that was reached."""
    retry_every: float = 2.0
    """Between looks into the etcd of a peer that was not."""
    patience: float = 2.0
    """For which a pass waits for the etcds of peers; what answers later counts in the next one."""


TIMINGS: Final = LinkTimings()


class _Looked(NamedTuple):
    files: Mapping[str, bytes]
    time: float
    look: links.Look


class Links:
    """Serves the links of one cluster. :meth:`run` never returns."""

    def __init__(
        self, client: kube.Client, db: Database, keeper: Keeper, config: Config, *, timings: LinkTimings = TIMINGS
    ) -> None:
        self._client = client
        self._db = db
        self._keeper = keeper
        self._config = config
        self._namespace = config.kubernetes.namespace
        self._timings = timings
        self._own = own(config)
        self._files = keeper.home.folder.path.parent / "links"
        self._looked: dict[ClusterName, _Looked] = {}
        self._looking: dict[ClusterName, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._problem = ""
        self._issuer = Issuer(client, self._namespace, config.keys, use="peers")

    def __repr__(self) -> str:
        return f"<Links of {self._own.name}: {self._problem or 'served'}>"

    def problems(self) -> list[str]:
        """Reasons why links are not served, a sentence each."""
        return [*([self._problem] if self._problem else ()), *self._issuer.problems()]

    async def run(self) -> None:
        """Serve, for ever: at once when a link changes, and every few seconds."""
        await self._keeper.loaded.wait()
        await self._db.until(lambda snapshot: snapshot.initialized(LINKS))
        async with asyncio.TaskGroup() as tasks:
            await self._serve_changes(tasks)

    async def _serve_changes(self, tasks: asyncio.TaskGroup) -> None:
        changes, retry = self._db.changes(LINKS), Retry(RETRY)
        while True:
            snapshot, _ = changes.next()
            try:
                await self.serve([*snapshot.all(LINKS)], tasks)
            except (kube.KubeError, PkiError, EtcdError, Transient, Expired) as error:
                self._problem = f"links are not served: {error}"
                log.warning("links are not served", why=str(error), attempt=retry.failed())
                await retry.pause()
                continue
            retry.succeeded()
            self._problem = ""
            try:
                async with asyncio.timeout(min(self._timings.every, self._config.keys.lifetime / 8)):
                    await changes.wait()
            except TimeoutError:
                pass

    async def serve(self, rows: Collection[Link], tasks: asyncio.TaskGroup) -> None:
        """One pass over all links."""
        await self._publish_info()
        stored = await self._read(links.link_secrets.LINKS)
        published = await self._read(links.link_secrets.PEERS)
        kept, manual = links.link_secrets.kept(stored.files), links.manual_peers(published.files)
        linked = links.linked(published.files)
        copies = {name: published.files.get(f"{name}.key", b"") for name in linked}
        usable = {row.name: _usable(row, kept.get(row.name), copies.get(row.name, b"")) for row in rows}
        if new := {name: each for name, each in usable.items() if each != kept.get(name)}:
            log.info("keys of links replaced", links=sorted(new))
            await self._write(links.link_secrets.LINKS, stored, put=links.link_secrets.kept_files(new))
            stored = await self._read(links.link_secrets.LINKS)
            kept = links.link_secrets.kept(stored.files)
        refused = links.refusals(self._own, rows, manual)
        issued = await self._issued([row for row in rows if row.name not in refused])
        outcomes = {row.name: self._outcome(row, refused.get(row.name), kept[row.name], issued) for row in rows}
        looks = await self._looks({name: each.files for name, each in outcomes.items() if each.files}, tasks)
        removed = (kept.keys() | linked) - outcomes.keys()
        # What was put into the Secret of peers by hand stays.
        await self._write(
            links.link_secrets.PEERS,
            published,
            put={file: text for each in outcomes.values() for file, text in each.files.items()},
            drop=[file for name in linked for file in peers.names_of_files(name)],
        )
        if self._config.clusterset.through_mirror:
            await self._write_mirrored()
        for row in rows:
            await self._write_status(row, outcomes[row.name], looks.get(row.name))
        await self._admit(outcomes, looks, [name for name in (*removed, *refused) if name not in manual])
        renewed = {name: self._renewed(each.kept, looks.get(name)) for name, each in outcomes.items()}
        await self._write(
            links.link_secrets.LINKS,
            stored,
            put=links.link_secrets.kept_files(renewed),
            drop=[file for name in removed for file in links.link_secrets.names_of_kept(name)],
        )

    async def _issued(self, rows: Iterable[Link]) -> dict[ClusterName, str] | None:
        """Certificates of peers by the issuer, those of before included; ``None`` if the own authority signs."""
        if not self._keeper.issuing:
            return None
        folder = self._keeper.home.folder
        current, due = {}, {}
        for row in rows:
            user = remote_user(row.name)
            if not row.request or not links.is_issuable(row.request, user):
                continue
            if links.is_for(row.status.certificate, row.request, user):
                current[row.name] = row.status.certificate
            if not links.holds(row.status.certificate, folder.authority, row.request, user, issuers=True):
                due[str(row.name)] = SigningRequest(csr=row.request, subject=user)
        for name, issued in (await self._issuer.certificates(due)).items():
            if issued.authority == folder.authority:
                current[ClusterName(name)] = issued.certificate.decode()
            else:  # it counts once that authority is trusted everywhere
                self._keeper.offer(issued.authority)
        return current

    def _outcome(
        self,
        row: Link,
        refusal: links.LinkError | None,
        kept: links.Kept,
        issued: Mapping[ClusterName, str] | None,
    ) -> links.Outcome:
        outcome = links.outcome(
            self._own,
            row,
            refusal,
            kept,
            self._keeper.home.folder.signer if issued is None else issued.get(row.name, ""),
            before=row.status.certificate,
            days=self._config.keys.lifetime / DAY,
        )
        if issued is None or refusal is not None or not row.request or outcome.certificate:
            return outcome
        reason = self._issuer.reasons.get(row.name, "its authority is not trusted everywhere yet")
        return msgspec.structs.replace(outcome, unissued=f"the issuer has not signed spec.request: {reason}")

    def _renewed(self, kept: links.Kept, look: links.Look | None) -> links.Kept:
        if look is None or look.reason:
            return kept
        return links.renewed(self._own, kept, certificate=look.certificate, authorities=look.authorities)

    async def _read(self, secret: str) -> links.link_secrets.Files:
        return await links.link_secrets.read(self._client, self._namespace, secret)

    async def _write(
        self, secret: str, before: links.link_secrets.Files, *, put: Mapping[str, bytes], drop: Iterable[str] = ()
    ) -> None:
        await links.link_secrets.write(self._client, self._namespace, secret, before, put=put, drop=drop)

    async def _write_mirrored(self) -> None:
        """Make the Secret of agents behind a mirror follow from that of peers, those that joined by hand included."""
        published = await self._read(links.link_secrets.PEERS)
        before = await self._read(links.link_secrets.MIRRORED)
        endpoints = self._config.clusterset.mirror_endpoints or local_endpoints(
            self._config, await self._service(OWN_ETCD)
        )
        access = joining.local_access(self._keeper.home.folder, endpoints)
        files = joining.copies(self._own.name, published.files, access, before.files)
        await self._write(links.link_secrets.MIRRORED, before, put=files, drop=before.files)

    async def _service(self, name: str) -> Service | None:
        try:
            return await self._client.get(SERVICE, name, self._namespace)
        except kube.NotFound:
            return None

    async def _admit(
        self,
        outcomes: Mapping[ClusterName, links.Outcome],
        looks: Mapping[ClusterName, links.Look],
        removed: Collection[ClusterName],
    ) -> None:
        """Let accepted peers read our etcds, and no others that links named.

        An etcd that is away gets the certificates with a later pass. Rights are taken from all or tried again: the
        keys of a removed link are kept until then.
        """
        signed = {name: each.certificate for name, each in outcomes.items() if each.certificate}
        self._keeper.rotation.readers = {
            name: _reader(certificate, looks.get(name)) for name, certificate in signed.items()
        }
        if not signed and not removed:
            return
        # What the Secret of peers has by now, which every process of this cluster follows.
        accepted = {name: _accepted(each.kept) for name, each in outcomes.items() if each.files}
        expelled = [name for name in removed if name not in signed]
        failures = []
        for store in self._keeper.home.stores():
            try:
                async with store.session(timeout=ADMIT_TIMEOUT) as root:
                    await links.publish(root, self._own.name, signed, accepted)
                    await links.expel(root, self._own.name, expelled)
            except (EtcdError, Transient, Expired) as error:
                failures.append(error)
        if failures and (expelled or len(failures) == len(self._config.etcd.stores())):
            raise failures[0]

    async def _looks(
        self, peer_files: Mapping[ClusterName, Mapping[str, bytes]], tasks: asyncio.TaskGroup
    ) -> dict[ClusterName, links.Look]:
        """Look into the etcds of peers, of each now and then, and at once with other files.

        Returns what was read by the present files. A peer that does not answer in time delays no other: its look
        continues beside the following passes.
        """
        secret_files.write(self._files, {file: text for files in peer_files.values() for file, text in files.items()})
        directory, now = peers.Directory(str(self._files), own=self._own.name).read(), time.monotonic()
        self._looked = {name: each for name, each in self._looked.items() if name in peer_files}
        for name, files in peer_files.items():
            if name in directory and name not in self._looking and self._is_due(name, files, now):
                self._looking[name] = tasks.create_task(self._look(directory[name], files, now))
        if self._looking:
            await asyncio.wait(self._looking.values(), timeout=self._timings.patience)
        return {name: each.look for name, each in self._looked.items() if each.files == peer_files.get(name)}

    async def _look(self, peer: peers.Peer, files: Mapping[str, bytes], now: float) -> None:
        try:
            async with self._slots:
                look = await links.look(peer, self._own.name)
            self._looked[peer.name] = _Looked(files, now, look)
        finally:
            del self._looking[peer.name]

    def _is_due(self, name: ClusterName, files: Mapping[str, bytes], now: float) -> bool:
        last = self._looked.get(name)
        if last is None or last.files != files:
            return True
        # A certificate must not end between two looks: the peer renews it when a third of its life is left.
        every = self._timings.retry_every if last.look.reason else self._timings.look_every
        return now - last.time >= min(every, self._config.keys.lifetime / 8)

    async def _write_status(self, row: Link, outcome: links.Outcome, look: links.Look | None) -> None:
        conditions = conditions_of(row, outcome, look)
        status = LinkStatus(conditions=conditions, request=outcome.request, certificate=outcome.certificate)
        if status == row.status:
            return
        body = {
            "observedGeneration": row.generation,
            "conditions": [encoded(each) for each in conditions],
            "request": status.request,
            "certificate": status.certificate,
        }
        try:
            await self._client.apply(
                CLUSTER_LINK, "", row.name, {"status": body}, field_manager="isthmus-keys", subresource="status"
            )
        except kube.NotFound:
            log.info("link has gone", name=row.name)

    async def _publish_info(self) -> None:
        """Keep the ConfigMap that ``isthmus connect`` reads in the other clusters' name."""
        service = await self._service(ETCD_SERVICE)
        data = source.info_data(info(self._config, service, bundle=self._keeper.home.folder.bundle.decode()))
        try:
            current = (await self._client.get(CONFIG_MAP, source.INFO, self._namespace)).data
        except kube.NotFound:
            current = None
        if current != data:
            body = {"metadata": {"labels": links.link_secrets.PART}, "data": data}
            await self._client.apply(CONFIG_MAP, self._namespace, source.INFO, body, field_manager="isthmus-keys")


def own(config: Config) -> links.Own:
    """The own cluster as links see it."""
    cluster = config.cluster
    hosts = [urlsplit(each).hostname or "" for each in config.etcd.endpoints]
    return links.Own(
        name=ClusterName(cluster.name),
        id=cluster.id,
        max_id=config.clusterset.max_connected_clusters,
        domain=config.gateway.domain,
        pod_ranges=cluster.pod_ranges,
        service_ranges=cluster.service_ranges,
        node_ranges=cluster.node_ranges,
        loopback=any(each == "localhost" or reserved(each) == "loopback" for each in hosts),
    )


def info(config: Config, service: Service | None, *, bundle: str) -> source.Info:
    """Facts about this cluster that the others need."""
    cluster = config.cluster
    return source.Info(
        name=ClusterName(cluster.name),
        id=cluster.id,
        domain=config.gateway.domain,
        ca_bundle=bundle,
        pod_ranges=cluster.pod_ranges,
        network=cluster.network,
        gateways=cluster.gateways,
        endpoints=tuple(endpoints(config, service)),
    )


def endpoints(config: Config, service: Service | None) -> list[str]:
    """URLs of the own etcd for clusters that use no gateway: its load balancer's addresses, else the configured
    ones, unless those are names that the own cluster alone resolves."""
    balancer = service.status.load_balancer if service is not None else None
    hosts = [each.ip or each.hostname or "" for each in (balancer.ingress if balancer is not None else None) or ()]
    ports = [each.port for each in (service.spec.ports if service is not None else None) or ()][:1]
    if urls := [f"https://{joined(host, port)}" for host in filter(None, hosts) for port in ports]:
        return urls
    return [each for each in config.etcd.endpoints if not _is_internal(urlsplit(each).hostname or "")]


def local_endpoints(config: Config, service: Service | None) -> tuple[str, ...]:
    """URLs of the own etcd for agents: the addresses of its Service, since nodes do not ask the cluster's DNS."""
    if service is None:
        return config.etcd.endpoints
    addresses = service.spec.cluster_ips or [service.spec.cluster_ip]
    ports = [each.port for each in service.spec.ports or ()][:1]
    urls = [f"https://{joined(host, port)}" for host in addresses if host not in ("", "None") for port in ports]
    return tuple(urls) or config.etcd.endpoints


def _is_internal(host: str) -> bool:
    try:
        bounds.ip(host)
    except bounds.OutOfBounds:
        return host != "localhost" and (host.endswith((".svc", ".cluster.local")) or "." not in host)
    return False


def _reader(certificate: str, look: links.Look | None) -> Reader:
    confirmed = look.accepted if look is not None else links.Accepted()
    return Reader(
        certificate=certificate.encode(), holds_bundle=confirmed.authorities, holds_certificate=confirmed.certificate
    )


def _accepted(kept: links.Kept) -> links.Accepted:
    return links.Accepted(pki.digest(kept.authorities), pki.digest(kept.certificate))


def _usable(row: Link, kept: links.Kept | None, copy: bytes) -> links.Kept:
    """Kept state of a link, with a new key for a new link, and for one whose file was deleted."""
    return links.Kept(key=links.new_key()) if kept is None else links.usable(row, kept, copy=copy)


def conditions_of(row: Link, outcome: links.Outcome, look: links.Look | None) -> tuple[LinkCondition, ...]:
    """Conditions of a link in its present generation; ``look`` is ``None`` until the peer's etcd has been read."""
    accepted, ready = ("True", "Accepted", "it counts"), _ready(row, outcome, look)
    if (refusal := outcome.refusal) is not None:
        accepted, ready = ("False", refusal.reason, str(refusal)), ("False", "NotAccepted", "see Accepted")
    return (_condition("Accepted", accepted, row), _condition("Ready", ready, row))


def _ready(row: Link, outcome: links.Outcome, look: links.Look | None) -> tuple[str, str, str]:
    if (fault := outcome.fault) is not None:
        return ("False", fault.reason, str(fault))
    if not row.request:
        return ("False", "WaitingForPeer", links.NO_REQUEST)
    if outcome.unissued:
        return ("False", "NotIssued", outcome.unissued)
    if not outcome.files:
        return ("False", "WaitingForPeer", links.NO_CERTIFICATE)
    if look is None:
        return ("False", "Unreachable", "its etcd was not read yet")
    if look.reason:
        return ("False", look.reason, look.message)
    return ("True", "Connected", "its etcd is read, and its request is signed")


def _condition(kind: str, parts: tuple[str, str, str], row: Link) -> LinkCondition:
    status, reason, text = parts
    message = " ".join(text.split())[:MAX_MESSAGE]
    last = next((each for each in row.status.conditions if each.type == kind), None)
    kept = last.time if last is not None and last.status == status else ""
    return LinkCondition(
        type=kind,
        status=status,
        reason=reason,
        message=message,
        generation=row.generation,
        time=kept or timestamp(),
    )


def encoded(condition: LinkCondition) -> dict[str, Any]:
    """Encode a condition for the API server."""
    return {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "observedGeneration": condition.generation,
        "lastTransitionTime": condition.time,
    }
