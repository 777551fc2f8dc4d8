"""Two islands on loopback: c1's node with its Envoy, c2's gateway with another one, and c2's pods."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from pathlib import Path
from random import randrange
from types import MappingProxyType
from typing import Any, Final
from unittest.mock import patch

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from meshes.envoy_world import EnvoyWorld, envoy_world
from meshes.route_world import C1, C2, RouteWorld
from msgspec.structs import replace
from peers.etcd_server import free_ports

from isthmus.clusterset import certificates
from isthmus.clusterset.certificates import Pair
from isthmus.gateway import accounts, exports, naming
from isthmus.gateway import islands as calling
from isthmus.gateway.access_log import AccessLog
from isthmus.gateway.exports import GatewaySettings
from isthmus.gateway.listeners import NodeSettings
from isthmus.gateway.refusals import Refusals
from isthmus.gateway.secrets import Identity, Secrets
from isthmus.mcs.words import IMPORTERS
from isthmus.model import tables
from isthmus.model.balancing import FrontendKey
from isthmus.model.clusters import Cluster
from isthmus.model.hosts import Endpoint as Address
from isthmus.model.mcs import OwnExport
from isthmus.model.names import ClusterName, ServiceName, derived
from isthmus.model.services import Endpoint, EndpointSet, Export, Port, Protocol
from isthmus.processes.start import tables_of
from isthmus.proxy.tracing import Tracing
from isthmus.statedb import Database, Derivations

DOMAIN: Final = "clusterset.local"
C3: Final = ClusterName("c3")
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Pod:
    """A server, and the connections it has seen."""

    def __init__(self) -> None:
        self.seen = 0
        self.host = "127.0.0.1"
        self.port = 0

    async def start(self, serve: Serve, stack: AsyncExitStack, *, host: str = "127.0.0.1", port: int = 0) -> Pod:
        async def counted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.seen += 1
            try:
                with suppress(OSError, asyncio.IncompleteReadError):
                    await serve(reader, writer)
            finally:
                writer.close()

        server = await asyncio.start_server(counted, host, port, backlog=1024)
        self.host = host
        self.port = server.sockets[0].getsockname()[1]
        stack.push_async_callback(server.wait_closed)
        stack.callback(server.close)
        return self


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A server that speaks first."""
    writer.write(b"hello\n")
    await writer.drain()
    await reader.read()


class Islands:
    """c1's node calls c2's gateway. ``authorities`` are those of the clusters, each trusted for its own."""

    def __init__(
        self,
        directory: Path,
        stack: AsyncExitStack,
        *,
        host: str = "127.0.0.1",
        gateway: Mapping[str, Any] = MappingProxyType({}),
        **node: Any,
    ) -> None:
        """``host``: of the gateway. ``gateway``: more fields of its :class:`GatewaySettings`. ``node``: options of
        :func:`calling_node`."""
        self.directory = directory
        self.stack = stack
        self.authorities = {name: certificates.authority(f"isthmus clusterset {name}") for name in (C1, C2, C3)}
        self.trust = directory / "trust"
        self.trust.mkdir(parents=True)
        for name, pair in self.authorities.items():
            (self.trust / f"{name}.ca.crt").write_bytes(pair.certificate)
        self.gateways = [Address(host, port) for port in free_ports(1)]
        self.node_of = calling_node(directory / "node", **node)
        self.gateway_of = GatewaySettings(C2, DOMAIN, tuple(self.gateways), directory / "gateway", **gateway)
        self.rows = RouteWorld(*self.node_of.addresses, island=self.node_of, tracing=self.node_of.tracing)
        declared = [exports.derived(self.gateway_of)]
        self.gateway_db = Database(*tables_of(declared, tables.PEER_POLICIES, tables.XDS_REFUSED, tables.XDS_SERVED))
        self.gateway_derivations = Derivations(self.gateway_db, *declared)
        self._envoys: list[EnvoyWorld] = []
        self.node: EnvoyWorld
        self.gateway: EnvoyWorld
        self.gateway_secrets: Secrets
        self.node_secrets: Secrets
        self.later = 0.0
        """Seconds by which the clock of both processes' secrets is ahead."""
        self.refusals = Refusals(DOMAIN, lambda: self.gateway_secrets.members)

    def identity(self, name: ClusterName, path: str, *, by: Pair | None = None, **more: Any) -> Identity:
        """A certificate of a cluster's authority, or of another one, in files."""
        role = path.strip("/")
        hosts = (f"{name}.{DOMAIN}",) if path == naming.GATEWAY else ()
        uri = f"spiffe://{name}.{DOMAIN}{path}"
        return self.saved(certificates.issue(by or self.authorities[name], role, hosts=hosts, identity=uri, **more))

    def named(self, by: Pair, *uris: str, server: bool = False) -> Identity:
        """A certificate of an authority that names several identities, which ours never does."""
        signer = serialization.load_pem_private_key(by.key, password=None)
        issuer, key, now = (
            x509.load_pem_x509_certificate(by.certificate),
            ec.generate_private_key(ec.SECP256R1()),
            utc(),
        )
        assert isinstance(signer, ec.EllipticCurvePrivateKey)
        usage = certificates.SERVER if server else certificates.CLIENT
        made = (
            x509.CertificateBuilder()
            .subject_name(issuer.subject)
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.KeyUsage(True, *[False] * 8), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(each) for each in uris]), critical=False
            )
            .sign(signer, hashes.SHA256())
        )
        return self.saved(Pair(certificates.pem(made), certificates.key_pem(key)))

    def saved(self, pair: Pair) -> Identity:
        """A pair in files of its own."""
        folder = self.directory / "pairs" / f"{randrange(1 << 60)}"
        folder.mkdir(parents=True)
        (folder / "tls.crt").write_bytes(pair.certificate)
        (folder / "tls.key").write_bytes(pair.key)
        return Identity(folder / "tls.crt", folder / "tls.key")

    async def start(self) -> None:
        """The node and the gateway."""
        self.gateway_secrets = self._secrets(self.gateway_of, self.gateway_db, C2, naming.GATEWAY)
        await self.start_node()
        self.renew()
        log = asyncio.create_task(AccessLog(self.gateway_of.directory, self.refusals.count).run())
        self.stack.push_async_callback(cancelled, log)
        self.put_gateway(tables.CLUSTERS, Cluster(name=C2, own=True))
        self.gateway = await self.envoy(self.gateway_of.directory, self.gateway_db)
        at = tuple(str(each) for each in self.gateways)
        self.rows.put(tables.CLUSTERS, Cluster(name=C2, network="two", gateways=at, verifies=self.node_of.accounts))

    async def start_node(self) -> None:
        """The node alone. Here the gateways that it dials are on loopback, which a node refuses of a peer."""
        self.stack.enter_context(patch("isthmus.loadbalancer.gateways.reserved", lambda host: ""))
        self.node_secrets = self._secrets(self.node_of, self.rows.db, C1, naming.NODE)
        self.node_secrets.renew()
        self.rows.put(tables.CLUSTERS, Cluster(name=C1, own=True, network="one"))
        self.node = await self.envoy(self.node_of.directory, self.rows.db)

    async def envoy(self, directory: Path, db: Database) -> EnvoyWorld:
        """One that ends with this."""
        self._envoys.append(
            await self.stack.enter_async_context(envoy_world(directory, db=db, traced=self.node_of.tracing is not None))
        )
        return self._envoys[-1]

    async def close(self) -> None:
        """End the Envoys, all at once: each takes a second."""
        await asyncio.gather(*(each.close() for each in self._envoys))

    def _secrets(self, of: NodeSettings | GatewaySettings, db: Database, cluster: ClusterName, path: str) -> Secrets:
        return Secrets(
            db,
            of.directory,
            apart=calling.trusted_apart if path == naming.NODE else exports.trusted_apart,
            identity=self.identity(cluster, path),
            trust=self.trust,
            domain=DOMAIN,
            clock=lambda: time.monotonic() + self.later,
        )

    def renew(self) -> None:
        """As both processes do it twice a second."""
        self.node_secrets.renew()
        self.gateway_secrets.renew()
        self.rows.derive()
        while self.gateway_derivations.step():
            pass

    def put_gateway(self, table: Any, *rows: Any) -> None:
        with self.gateway_db.write() as txn:
            for row in rows:
                txn.put(table, row)
        while self.gateway_derivations.step():
            pass

    async def pod(self, serve: Serve = greet) -> Pod:
        return await Pod().start(serve, self.stack)

    def export(self, name: str, *pods: Pod, importers: str | None = None, **fields: Any) -> None:
        """What c2 exports, as its gateway sees it."""
        notes = ((IMPORTERS, importers),) if importers is not None else ()
        found = Export(cluster=C2, name=ServiceName(name), created="", ports=(Port("", 80),), annotations=notes)
        self.put_gateway(tables.OWN_EXPORTS, OwnExport(name=ServiceName(name), export=replace(found, **fields)))
        self.put_gateway(tables.ENDPOINT_SETS, self.endpoints(name, *pods))
        self.renew()

    def export_pods(self, name: str, pods: dict[str, Pod], *, importers: str | None = None, **fields: Any) -> None:
        """What c2 exports headless: pods by hostname, each at the number that it listens at."""
        self.export(name, *pods.values(), importers=importers, type="Headless", **fields)
        found = self.endpoints(name)
        named = tuple(Endpoint(pod.host, (Port("", pod.port),), hostname=host) for host, pod in pods.items())
        self.put_gateway(tables.ENDPOINT_SETS, replace(found, endpoints=named))
        self.renew()

    def put_hidden(self, name: str, *pods: Pod) -> None:
        """A Service of c2 that is not exported."""
        self.put_gateway(tables.OWN_EXPORTS, OwnExport(name=ServiceName(name), reason="NoService"))
        self.put_gateway(tables.ENDPOINT_SETS, self.endpoints(name, *pods))

    async def shown(self, at: Address | None = None) -> bytes:
        """The certificate that the gateway, or one at another address, shows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        sni = naming.health_sni(C2, DOMAIN)
        _, writer = await asyncio.open_connection(*(at or self.gateways[0]), ssl=context, server_hostname=sni)
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.transport.abort()
        return found

    def endpoints(self, name: str, *pods: Pod) -> EndpointSet:
        each = tuple(Endpoint(f"127.0.0.{n}", (Port("", pod.port),)) for n, pod in enumerate(pods, 1))
        return EndpointSet(service=ServiceName(name), cluster=C2, source="kubernetes", part="slice", endpoints=each)

    def imported(self, name: str, *, count: int = 1, own: list[str] | None = None, app_protocol: str = "") -> None:
        """The import in c1, with what c2's record has of it: addresses that another pod has here."""
        clusters: dict[str, Any] = {"c2": [f"10.1.0.{n + 1}:8080" for n in range(count)]}
        self.rows.imported(name, app_protocol=app_protocol, **(clusters | ({"c1": own} if own else {})))

    async def target(self, name: str) -> tuple[str, int]:
        """Where the plan sends calls of an import to c2, once Envoy serves it."""
        async with asyncio.timeout(90):
            while True:
                self.rows.derive()
                for plan in self.rows.db.snapshot().by(tables.PLANS, "service", derived(ServiceName(name))):
                    for group in plan.groups:
                        for each in group.targets:
                            if each.cluster == C2:
                                return each.address, each.port
                await asyncio.sleep(0.02)

    async def call_pod(self, name: str, host: str, pod: Pod) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection as a pod of c1 has it that calls one of c2's pods by its name, once Envoy serves that."""
        return await asyncio.open_connection(*await self.pod_target(name, host, pod.port))

    async def pod_target(self, name: str, host: str, port: int, protocol: Protocol = "TCP") -> tuple[str, int]:
        """Where a call of one of c2's pods by its name is sent, once Envoy serves that."""
        async with asyncio.timeout(90):
            while True:
                self.rows.derive()
                now = self.rows.db.snapshot()
                [answer] = {row.answers for row in now.by(tables.NAMES, "name", f"{host}.c2.{name}")}
                row = now.get(tables.FRONTENDS, FrontendKey(answer[0], port, protocol))
                plan = now.get(tables.PLANS, row.plan) if row is not None else None
                for each in [target for group in (plan.groups if plan else ()) for target in group.targets]:
                    return each.address, each.port
                await asyncio.sleep(0.02)

    async def call(self, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection as a pod of c1 has it, once the gateway is found healthy."""
        at = await self.target(name)
        return await asyncio.open_connection(*at)

    async def healthy(self) -> None:
        """Wait until the node's Envoy has found the gateway healthy."""
        async with asyncio.timeout(90):
            while (await self.node_stats("cluster.island.*membership_healthy")).get(  # noqa: ASYNC110 of another process
                "cluster.island c2.membership_healthy"
            ) != 1:
                await asyncio.sleep(0.05)

    async def node_stats(self, pattern: str) -> dict[str, int]:
        return await stats(self.node, pattern)

    async def handshake(
        self,
        identity: Identity | None,
        sni: str | None,
        *,
        caller: str | None = None,
        account: tuple[str, str] | None = None,
        timeout: float = 60.0,
        **options: Any,
    ) -> bytes:
        """What the gateway gives a caller with this certificate: the first bytes, or nothing where it is refused.

        ``caller``: the member that it calls as; by default the one that the certificate names. ``account``: namespace
        and service account that it names.
        """
        context = calling_with(identity, caller, account)
        for key, value in options.items():
            setattr(context, key, value)
        at = self.gateways[0]
        try:
            async with asyncio.timeout(timeout):
                reader, writer = await asyncio.open_connection(*at, ssl=context, server_hostname=sni or "")
                try:
                    return await reader.read(64)
                finally:
                    writer.transport.abort()  # no shutdown of TLS that would outlast the test
        except (OSError, ssl.SSLError, TimeoutError):
            return b""


def calling_node(
    directory: Path,
    *,
    connect_timeout: float = 10.0,
    preconnect: bool = False,
    listen: str = "",
    pod_ports: int = 100,
    tracing: Tracing | None = None,
    accounts: bool = False,
) -> NodeSettings:
    """That of c1. ``connect_timeout``: of gateways, s; by default that of a busy machine.

    ``listen``: where its Envoy listens, if not at an address that nothing else has.
    """
    return NodeSettings(
        cluster=C1,
        domain=DOMAIN,
        directory=directory,
        addresses=(listen or f"127.{randrange(1, 255)}.{randrange(255)}.{randrange(1, 255)}",),
        first_port=randrange(10_000, 28_000) if listen else 19_100,
        ports=4_000,
        connect_timeout=connect_timeout,
        pod_ports=pod_ports,
        pod_addresses=(IPv4Network("241.0.0.0/8"),),
        preconnect=preconnect,
        tracing=tracing,
        accounts=accounts,
    )


def calling_with(
    identity: Identity | None, caller: str | None = None, account: tuple[str, str] | None = None
) -> ssl.SSLContext:
    """TLS of a caller with this certificate; ``caller``: the member that it calls as, by default the one in it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if identity is not None:
        context.load_cert_chain(identity.certificate, identity.key)
        named = x509.load_pem_x509_certificate(identity.certificate.read_bytes()).extensions
        names = named.get_extension_for_class(x509.SubjectAlternativeName).value
        uri = names.get_values_for_type(x509.UniformResourceIdentifier)[0]
        caller = naming.cluster_of(uri, DOMAIN) if caller is None else caller
    if caller:
        named_account = [accounts.passed(*account)] if account is not None else []
        context.set_alpn_protocols([naming.protocol(ClusterName(caller), DOMAIN), *named_account])
    return context


def client_hello(context: ssl.SSLContext, sni: str) -> bytes:
    """What a caller sends first."""
    sent = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname=sni).do_handshake()
    return sent.read()


async def cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def stats(envoy: EnvoyWorld, pattern: str) -> dict[str, int]:
    """Numbers of an Envoy."""
    from isthmus.proxy.process import Admin

    for path in envoy.directory.glob("admin-*.sock"):
        if found := await Admin(path).stats(pattern):
            return found
    return {}


def expired(pair_of: Islands, name: ClusterName) -> Identity:
    """A node's certificate that has ended."""
    return pair_of.identity(name, naming.NODE, days=1, now=datetime.now(UTC) - timedelta(days=3))


def utc() -> datetime:
    return datetime.now(UTC)


@asynccontextmanager
async def islands(directory: Path, **options: Any) -> AsyncIterator[Islands]:
    """Both, started; ended with everything in it."""
    async with AsyncExitStack() as stack:
        world = Islands(directory, stack, **options)
        await world.start()
        stack.push_async_callback(world.close)
        yield world


async def until(ask: Callable[[], Awaitable[object]], want: object) -> None:
    """Ask until the answer is as wanted."""
    got = None
    try:
        async with asyncio.timeout(60):
            while (got := await ask()) != want:  # noqa: ASYNC110 of another process
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"want {want}, got {got}") from None


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection by RST."""
    found: socket.socket = writer.get_extra_info("socket")
    found.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    writer.transport.abort()
