"""A process that does not do its work is green nowhere: not for probes, metrics, ``status`` nor ``diagnose``."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from clusters.fake_apiserver import FakeApiServer, Reply, Request, running, status
from labs.lab_running import invoked
from machine.full_disk import SmallDisk
from msgspec.structs import replace
from peers.clusterset_peers import Peers, announce
from peers.etcd_server import EtcdServer, free_ports

from isthmus.admin.query import QueryError, Socket
from isthmus.clusterset import certificates
from isthmus.config import (
    AdminSection,
    ClusterSection,
    ClustersetSection,
    Config,
    EtcdSection,
    KubernetesSection,
    MonitorSection,
    NodeSection,
)
from isthmus.etcd import Session
from isthmus.processes import agent, operator

LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"


class Seen:
    """A process, as each of those who look at it sees it."""

    def __init__(self, config: Config) -> None:
        self._config = config

    async def readyz(self) -> tuple[int, str]:
        return await asyncio.to_thread(self._asked, "readyz")

    async def problems(self) -> list[str]:
        try:
            found = await asyncio.to_thread(Socket(Path(self._config.admin.socket)).status)
        except QueryError:
            return []
        assert found["ready"] == (
            not found["problems"] and not any(each["pending"] for each in found["tables"].values())
        )
        return list(found["problems"])

    async def warnings(self) -> list[str]:
        return list((await asyncio.to_thread(Socket(Path(self._config.admin.socket)).status))["warnings"])

    async def metrics(self) -> str:
        return (await asyncio.to_thread(self._asked, "metrics"))[1]

    async def command(self, name: str) -> tuple[int, str]:
        done = await asyncio.to_thread(invoked, [name, "--socket", self._config.admin.socket])
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    async def until(self, what: str) -> None:
        """Wait until a problem has this text."""
        async with asyncio.timeout(120):
            while not any(what in each for each in await self.problems()):  # noqa: ASYNC110 of a process
                await asyncio.sleep(0.05)

    async def ready(self) -> None:
        async with asyncio.timeout(120):
            while (await self.readyz())[0] != 200:  # noqa: ASYNC110 of a process
                await asyncio.sleep(0.05)

    async def shows(self, what: str, *, ready: bool = False, diagnosed: str = "") -> None:
        """Everybody sees the problem, whose text this is a part of; it is ready only where that is asked for.

        ``diagnosed``: what ``diagnose`` has in the place of it.
        """
        await self.until(what)
        code, text = await self.readyz()
        assert (code, what in text) == (200 if ready else 503, True), text
        assert not await self.has("problems 0.0")
        for command, part in (("status", what), ("diagnose", diagnosed or what)):
            code, text = await self.command(command)
            assert (code, part in text) == (1, True), text

    async def diagnosed(self) -> list[str]:
        """Codes of the cluster's faults."""
        done = await asyncio.to_thread(invoked, ["diagnose", "-o", "json", "--socket", self._config.admin.socket])
        return [hop["code"] for hop in json.loads(done.stdout)["cluster"] if hop["state"] == "fault"]

    async def has(self, sample: str) -> bool:
        return sample in await self.metrics()

    def answers(self) -> bool:
        try:
            return bool(self._asked("livez")[0])
        except OSError:
            return False

    def _asked(self, path: str) -> tuple[int, str]:
        try:
            with urlopen(f"http://{self._config.monitor.listen}/{path}", timeout=60) as answer:
                return answer.status, answer.read().decode()
        except HTTPError as error:
            with error:
                return error.code, error.read().decode()


@asynccontextmanager
async def process(main: Callable[[Config], Awaitable[None]], config: Config) -> AsyncIterator[Seen]:
    task = asyncio.ensure_future(main(config))
    try:
        async with asyncio.timeout(60):
            while not Path(config.admin.socket).exists():
                assert not task.done(), task.exception()
                await asyncio.sleep(0.02)
        seen = Seen(config)
        async with asyncio.timeout(60):
            while not await asyncio.to_thread(seen.answers):  # noqa: ASYNC110 of a process
                await asyncio.sleep(0.02)
        yield seen
        assert not task.done(), task.exception()
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with running() as made:
        made.served["/apis/multicluster.x-k8s.io/v1beta1"] = ["serviceimports", "serviceexports"]
        made.served["/apis/discovery.k8s.io/v1"] = ["endpointslices"]
        made.served["/apis/coordination.k8s.io/v1"] = ["leases"]
        yield made


@pytest.fixture
def config(tmp_path: Path, server: FakeApiServer) -> Config:
    file = tmp_path / "kubeconfig"
    file.write_text(
        "current-context: c\n"
        "contexts: [{name: c, context: {cluster: c, user: u}}]\n"
        "users: [{name: u, user: {token: secret}}]\n"
        f"clusters: [{{name: c, cluster: {{server: '{server.url}'}}}}]\n"
    )
    return Config(
        cluster=ClusterSection(name="c1", id=1),
        node=NodeSection(name="n1"),
        kubernetes=KubernetesSection(kubeconfig=str(file)),
        etcd=EtcdSection(endpoints=(f"http://127.0.0.1:{free_ports(1)[0]}",)),
        admin=AdminSection(socket=str(tmp_path / "process.sock")),
        monitor=MonitorSection(listen=f"127.0.0.1:{free_ports(1)[0]}"),
    )


def is_lease(request: Request) -> bool:
    return request.path.startswith(LEASE)


@contextmanager
def refusing(server: FakeApiServer, refusal: Reply, on: Callable[[Request], bool]) -> Iterator[None]:
    """Refuse every such request, not only the next one."""

    def again(request: Request) -> bool:
        if not on(request):
            return False
        server.fail(refusal, on=again)
        return True

    server.fail(refusal, on=again)
    yield
    server.faults.clear()


async def test_an_operator_whose_role_binding_is_gone_shows_that_it_can_never_lead(
    server: FakeApiServer, config: Config
) -> None:
    forbidden = status(403, "Forbidden", "leases is forbidden: no RBAC policy matched", name="isthmus-operator")
    with refusing(server, forbidden, is_lease):
        async with process(operator.main, config) as seen:
            await seen.shows("it cannot lead: GET leases kube-system/isthmus-operator: 403 Forbidden")
            assert await seen.has("isthmus_operator_leader 0.0")


async def test_an_operator_whose_token_is_refused_shows_that_it_can_never_lead(
    server: FakeApiServer, config: Config
) -> None:
    server.token = "another"
    async with process(operator.main, config) as seen:
        await seen.shows(f"the API server {server.url} does not accept our credentials: 401 Unauthorized")


async def test_a_process_that_is_not_told_its_name_because_of_its_token_shows_that(
    server: FakeApiServer, config: Config
) -> None:
    server.token = "another"
    async with process(agent.main, replace(config, cluster=ClusterSection(id=1))) as seen:
        await seen.shows(f"the API server {server.url} does not accept our credentials: 401 Unauthorized")


async def test_an_operator_that_stands_by_is_ready_and_shows_who_leads(server: FakeApiServer, config: Config) -> None:
    renew = {"holderIdentity": "other-1", "leaseDurationSeconds": 600, "renewTime": "2026-01-01T00:00:00.000000Z"}
    server.put(f"{LEASE}/isthmus-operator", spec=renew)
    async with process(operator.main, config) as seen:
        await seen.ready()
        code, text = await seen.command("status")
        assert (code, "standing_by: other-1 leads" in text) == (0, True), text


@pytest.mark.parametrize("days", [-400, 3])
async def test_a_clock_that_is_off_by_days_is_named(
    server: FakeApiServer, config: Config, monkeypatch: pytest.MonkeyPatch, days: int
) -> None:
    from isthmus.kube import transport

    monkeypatch.setattr(transport, "time", SimpleNamespace(time=lambda: time.time() + days * 86_400))
    async with process(operator.main, config) as seen:
        await seen.shows(
            f"this machine's clock is {abs(days)} days {'ahead of' if days > 0 else 'behind'} the API server's"
        )


async def test_an_agent_whose_api_server_is_away_shows_that_with_one_reason(
    server: FakeApiServer, config: Config
) -> None:
    async with process(agent.main, config) as seen:
        await seen.ready()
        server.cut_off.add("secret")
        for writer in list(server.connections):
            writer.transport.abort()
        away = f"the API server {server.url} cannot be reached: "
        await seen.shows(away, diagnosed="✗ process API server of c1: c1/agent works from the last known state")
        assert len(await seen.problems()) == 1
        assert await seen.has('isthmus_agent_source_connected{source="kubernetes/services"} 0.0')
        server.cut_off.clear()
        await seen.ready()
        assert await seen.problems() == []


async def test_an_agent_whose_api_server_hangs_shows_that(
    server: FakeApiServer, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    from isthmus.kube import client

    monkeypatch.setattr(client, "PROBE_EVERY", 0.1)
    monkeypatch.setattr(client, "PROBE_TIMEOUT", 1.0)
    async with process(agent.main, config) as seen:
        await seen.ready()
        server.hangs = lambda request: True
        await seen.shows(f"the API server {server.url} does not answer")


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (status(429, "TooManyRequests"), "apiserver-throttles"),
        (status(500, "InternalError", "etcdserver: request timed out"), "apiserver-fails"),
        (status(503, "ServiceUnavailable"), "apiserver-fails"),
        (Reply(502, b"<html>a proxy's page"), "apiserver-fails"),
        (status(403, "Forbidden"), "right-missing"),
        (status(404, "NotFound"), "definition-missing"),
    ],
    ids=str,
)
async def test_an_api_server_that_refuses_lists_is_diagnosed_by_its_status(
    server: FakeApiServer, config: Config, answer: Reply, code: str
) -> None:
    async with process(agent.main, config) as seen:
        await seen.ready()
        assert await seen.diagnosed() == []
        with refusing(server, answer, on=lambda request: request.path.endswith("/services")):
            for writer in list(server.connections):  # and so every watch
                writer.transport.abort()
            async with asyncio.timeout(60):
                while await seen.diagnosed() != [code]:  # noqa: ASYNC110 of a process
                    await asyncio.sleep(0.1)


class Pki:
    """An authority, and what it issued."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._authority = certificates.authority("c1")
        self.ca = self._save("ca.crt", self._authority.certificate)

    def issue(self, name: str, *, left: timedelta, hosts: tuple[str, ...] = ()) -> tuple[str, str]:
        """A certificate that has so long left, and its key, as files."""
        made = certificates.issue(
            self._authority, name, hosts=hosts, days=30, now=datetime.now(UTC) - timedelta(days=30) + left
        )
        return self._save(f"{name}.crt", made.certificate), self._save(f"{name}.key", made.key)

    def _save(self, name: str, content: bytes) -> str:
        (self._folder / name).write_bytes(content)
        return str(self._folder / name)


TOMORROW, NEXT_WEEK, LATER = timedelta(days=1), timedelta(days=8), timedelta(days=25)


async def test_an_own_client_certificate_that_ends_tomorrow_is_a_problem_before_it_ends(
    config: Config, tmp_path: Path
) -> None:
    pki = Pki(tmp_path)
    certificate, key = pki.issue("operator", left=TOMORROW)
    section = EtcdSection(config.etcd.endpoints, ca_file=pki.ca, cert_file=certificate, key_file=key)
    async with process(operator.main, replace(config, etcd=section)) as seen:
        await seen.until("cannot publish")
        [ends] = [each for each in await seen.problems() if certificate in each]
        assert f"the certificate {certificate} ends at " in ends
        assert f'isthmus_operator_own_certificate_end_timestamp_seconds{{name="{certificate}"}}' in await seen.metrics()


async def test_the_certificate_that_the_own_etcd_shows_is_a_problem_before_it_ends(
    server: FakeApiServer, config: Config, tmp_path: Path
) -> None:
    pki = Pki(tmp_path)
    client, key = pki.issue("operator", left=LATER)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*pki.issue("etcd", left=TOMORROW, hosts=("127.0.0.1",)))
    server.put(f"{LEASE}/isthmus-operator", spec={"holderIdentity": "other-1", "leaseDurationSeconds": 600})
    etcd = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0, ssl=context)
    async with etcd:
        url = f"https://127.0.0.1:{etcd.sockets[0].getsockname()[1]}"
        section = EtcdSection((url,), ca_file=pki.ca, cert_file=client, key_file=key)
        async with process(operator.main, replace(config, etcd=section)) as seen:
            await seen.shows(f"the certificate {url} ends at ", ready=True)  # it can take over until tomorrow


async def test_an_own_certificate_that_ends_next_week_is_a_warning(
    server: FakeApiServer, config: Config, tmp_path: Path
) -> None:
    pki = Pki(tmp_path)
    certificate, key = pki.issue("operator", left=NEXT_WEEK)
    server.put(f"{LEASE}/isthmus-operator", spec={"holderIdentity": "other-1", "leaseDurationSeconds": 600})
    section = EtcdSection(config.etcd.endpoints, ca_file=pki.ca, cert_file=certificate, key_file=key)
    async with process(operator.main, replace(config, etcd=section)) as seen:
        await seen.ready()
        assert certificate in (await seen.readyz())[1]
        assert await seen.problems() == []
        [warning] = await seen.warnings()
        assert certificate in warning
        code, text = await seen.command("status")
        assert (code, f"warning: the certificate {certificate} ends at" in text) == (0, True), text


async def test_a_client_certificate_of_the_kubeconfig_is_looked_at_too(config: Config, tmp_path: Path) -> None:
    pki = Pki(tmp_path)
    pki.issue("admin", left=TOMORROW)
    file = Path(config.kubernetes.kubeconfig)
    text = file.read_text().replace(
        "{token: secret}", "{token: secret, client-certificate: admin.crt, client-key: admin.key}"
    )
    file.write_text(text.replace("http://", "https://"))
    async with process(operator.main, config) as seen:
        await seen.until("of user 'u' in ")


async def test_a_full_state_disk_is_a_problem_of_the_agent(
    server: FakeApiServer, config: Config, shared_etcd: EtcdServer, small_disk: SmallDisk, tmp_path: Path
) -> None:
    server.served["/apis/isthmus.io/v1alpha1"] = ["peerpolicies"]
    known = Peers(tmp_path / "peers", shared_etcd.endpoint)
    known.add("c2")
    section = ClustersetSection(directory=str(known.folder), state=str(small_disk.path))
    small_disk.fill()
    async with Session([shared_etcd.endpoint]) as etcd:
        await shared_etcd.ready(etcd)
        await etcd.delete_prefix("")
        await announce(etcd, "c2", 2)
        async with process(agent.main, replace(config, clusterset=section)) as seen:
            await seen.shows("the last known state of cluster c2 cannot be kept: ")
            await seen.shows("No space left on device")
