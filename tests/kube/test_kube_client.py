"""The verbs, over real sockets: what goes over the wire, and what becomes of every way to say no."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from clusters.fake_apiserver import FakeApiServer, Reply, refusing, reset, running, status
from machine.certificates import Authority

from isthmus import kube
from isthmus.kube.access import Access
from isthmus.kube.objects.core import NAMESPACE, SERVICE
from isthmus.kube.objects.mcs import SERVICE_IMPORT
from isthmus.kube.transport import Transport
from isthmus.reflector import Expired, Transient

ECHO = "/api/v1/namespaces/demo/services/echo"
MCS = "/apis/multicluster.x-k8s.io"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[kube.Client]:
    async with kube.Client(Transport(Access(server=server.url))) as client:
        yield client


async def test_an_object_is_read_into_its_thin_struct(server: FakeApiServer, client: kube.Client) -> None:
    server.put(ECHO, spec={"clusterIP": "10.96.0.9", "clusterIPs": ["10.96.0.9"], "news": {"unknown": [1]}})
    service = await client.get(SERVICE, "echo", "demo")
    assert (service.metadata.namespace, service.metadata.name) == ("demo", "echo")
    assert service.spec.cluster_ips == ["10.96.0.9"]


async def test_a_list_is_paged(server: FakeApiServer, client: kube.Client) -> None:
    server.page_limit = 2
    for n in range(5):
        server.put(f"/api/v1/namespaces/ns{n}", kind="Namespace")
    listed = await client.list(NAMESPACE)
    assert [each.metadata.name for each in listed] == [f"ns{n}" for n in range(5)]
    assert [r.query for r in server.asked] == [
        {"limit": "500"},
        {"limit": "500", "continue": "105/2"},
        {"limit": "500", "continue": "105/4"},
    ]


async def test_pages_that_run_out_are_followed_by_one_whole_list(server: FakeApiServer, client: kube.Client) -> None:
    server.page_limit = 2
    for n in range(5):
        server.put(f"/api/v1/namespaces/ns{n}")
    server.fail(status(410, "Expired"), on=lambda request: "continue" in request.query)
    assert len(await client.list(NAMESPACE)) == 5
    assert [r.query for r in server.asked][-1] == {}


async def test_an_object_that_cannot_be_read_costs_itself_only(
    server: FakeApiServer, client: kube.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    server.put(ECHO)
    server.put("/api/v1/namespaces/demo/services/bad", spec={"ports": [{"port": "eighty"}]})
    listed = await client.list(SERVICE)
    assert [each.metadata.name for each in listed] == ["echo"]
    [line] = [line for line in capsys.readouterr().err.splitlines() if "cannot be read" in line]
    assert "demo/bad" in line
    assert "$.spec.ports[0].port" in line


async def test_selectors_are_sent(server: FakeApiServer, client: kube.Client) -> None:
    await client.list(SERVICE, "demo", label_selector="a=b", field_selector="metadata.name=x")
    assert server.asked[0].path == "/api/v1/namespaces/demo/services"
    assert server.asked[0].query == {"limit": "500", "labelSelector": "a=b", "fieldSelector": "metadata.name=x"}


async def test_apply_says_who_and_what(server: FakeApiServer, client: kube.Client) -> None:
    await client.apply(SERVICE, "demo", "echo", {"spec": {"type": "ClusterIP"}}, field_manager="isthmus-operator")
    [request] = server.asked
    assert (request.method, request.path) == ("PATCH", ECHO)
    assert request.headers["content-type"] == "application/apply-patch+yaml"
    assert request.query == {"fieldManager": "isthmus-operator", "force": "true"}
    assert json.loads(request.body) == {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "echo", "namespace": "demo"},
        "spec": {"type": "ClusterIP"},
    }


async def test_the_status_is_a_path_of_its_own(server: FakeApiServer, client: kube.Client) -> None:
    server.put(ECHO)
    await client.patch(SERVICE, "demo", "echo", {"status": {"x": 1}}, subresource="status")
    assert server.asked[0].path == f"{ECHO}/status"
    assert server.asked[0].headers["content-type"] == "application/merge-patch+json"


async def test_create_replace_and_delete(server: FakeApiServer, client: kube.Client) -> None:
    made = await client.create(SERVICE, "demo", {"metadata": {"name": "echo"}})
    with pytest.raises(kube.AlreadyExists, match="POST services demo: 409 AlreadyExists"):
        await client.create(SERVICE, "demo", {"metadata": {"name": "echo"}})
    with pytest.raises(kube.Conflict, match="PUT services demo/echo: 409"):
        await client.replace(SERVICE, "demo", "echo", {"metadata": {"resourceVersion": "1"}})
    with pytest.raises(kube.Conflict):
        await client.delete(SERVICE, "demo", "echo", uid="of another")
    assert await client.delete(SERVICE, "demo", "echo", uid=made.metadata.uid) is True
    assert await client.delete(SERVICE, "demo", "echo") is False
    with pytest.raises(kube.NotFound, match="GET services demo/echo: 404 NotFound"):
        await client.get(SERVICE, "echo", "demo")


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (status(403, "Forbidden"), kube.Forbidden),
        (status(422, "Invalid"), kube.Invalid),
        (status(409, "Conflict"), kube.Conflict),
        (status(401, "Unauthorized"), kube.Unauthorized),
        (status(410, "Expired"), Expired),
        (status(429, "TooManyRequests"), kube.Unreachable),
        (status(500, "InternalError"), kube.Unreachable),
        (Reply(503, b"<html>no backend</html>"), kube.Unreachable),
        (status(504, "Timeout", "Too large resource version: 9, current: 2"), Expired),
        (Reply(404, b"404 page not found\n"), kube.NotServed),
        (Reply(418, b""), kube.KubeError),
        (Reply(200, b"[1, 2"), kube.Unreachable),
    ],
    ids=lambda value: str(getattr(value, "code", "")),
)
async def test_every_no_has_its_own_error(
    server: FakeApiServer, client: kube.Client, reply: Reply, error: type[Exception]
) -> None:
    server.fail(reply)
    with pytest.raises(error) as caught:
        await client.get(SERVICE, "echo", "demo")
    assert type(caught.value) is error
    assert str(caught.value).startswith("GET services demo/echo: ")


async def test_nobody_there_is_transient() -> None:
    with refusing() as url:
        async with kube.Client(Transport(Access(server=url))) as client:
            with pytest.raises(Transient, match=r"GET services demo/echo: http://127.0.0.1:\d+: Connection refused"):
                await client.get(SERVICE, "echo", "demo")


async def test_a_reset_is_transient(server: FakeApiServer, client: kube.Client) -> None:
    async def fault(request: object, writer: asyncio.StreamWriter) -> None:
        reset(writer)

    server.fail(fault)
    server.fail(fault)
    with pytest.raises(Transient, match="GET services demo/echo: "):
        await client.get(SERVICE, "echo", "demo")


async def test_an_answer_that_breaks_off_is_transient(server: FakeApiServer, client: kube.Client) -> None:
    async def fault(request: object, writer: asyncio.StreamWriter) -> None:
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"metadata":')
        await writer.drain()
        writer.close()

    server.fail(fault)
    with pytest.raises(Transient):
        await client.get(SERVICE, "echo", "demo")


async def test_a_token_file_is_read_again_when_the_server_refuses_us(server: FakeApiServer, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old\n")
    server.token = "old"
    server.put(ECHO)
    async with kube.Client(Transport(Access(server=server.url, token_file=file))) as client:
        await client.get(SERVICE, "echo", "demo")
        server.token = "new"
        with pytest.raises(kube.Unauthorized):
            await client.get(SERVICE, "echo", "demo")
        file.write_text("new\n")
        await client.get(SERVICE, "echo", "demo")
        file.unlink()
        server.token = "newest"
        with pytest.raises(kube.Unauthorized):
            await client.get(SERVICE, "echo", "demo")
    assert [r.headers["authorization"].split()[1] for r in server.asked[:4]] == ["old", "old", "old", "new"]


async def test_the_version_that_the_server_has_is_used_everywhere(server: FakeApiServer, client: kube.Client) -> None:
    server.served = {f"{MCS}/v1alpha1": ["serviceimports"]}
    body = {"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport"}
    await client.apply(SERVICE_IMPORT, "demo", "echo", body, field_manager="test")
    await client.get(SERVICE_IMPORT, "echo", "demo")
    path = f"{MCS}/v1alpha1/namespaces/demo/serviceimports/echo"
    assert server.verbs() == [f"GET {MCS}/v1beta1", f"GET {MCS}/v1alpha1", f"PATCH {path}", f"GET {path}"]
    assert json.loads(server.asked[2].body)["apiVersion"] == "multicluster.x-k8s.io/v1alpha1"


async def test_the_newest_version_is_preferred(server: FakeApiServer, client: kube.Client) -> None:
    server.served = {f"{MCS}/v1alpha1": ["serviceimports"], f"{MCS}/v1beta1": ["serviceimports"]}
    assert (await client.served(SERVICE_IMPORT)).api_version == "multicluster.x-k8s.io/v1beta1"


async def test_a_kind_that_is_not_served_says_what_to_do(server: FakeApiServer, client: kube.Client) -> None:
    server.served = {f"{MCS}/v1beta1": ["serviceexports"]}
    with pytest.raises(kube.NotServed, match=r"serviceimports.multicluster.x-k8s.io: .* CustomResourceDefinition"):
        await client.list(SERVICE_IMPORT)
    server.served[f"{MCS}/v1beta1"].append("serviceimports")
    assert await client.list(SERVICE_IMPORT) == []


async def test_a_watch_that_is_given_up_leaves_no_connection_that_waits_for_the_servers_farewell(
    tmp_path: Path,
) -> None:
    """TLS ends a connection by an alert of either side; this server sends none."""
    authority = Authority(tmp_path)
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(*authority.sign("server"))
    of_client = ssl.create_default_context(cafile=str(authority.cert))
    listener = socket.create_server(("127.0.0.1", 0))
    asked, given_up = threading.Event(), threading.Event()

    def serve() -> bool:
        """Whether the client ends the connection by itself."""
        with listener, listener.accept()[0] as raw, of_server.wrap_socket(raw, server_side=True) as tls:
            tls.recv(65_536)
            tls.sendall(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            asked.set()
            given_up.wait(60)
            tls.settimeout(10)
            try:
                while socket.socket.recv(tls, 65_536):  # as it comes, not deciphered
                    pass
            except TimeoutError:
                return False
            except OSError:
                pass
            return True

    transport = Transport(Access(server=f"https://127.0.0.1:{listener.getsockname()[1]}", tls=of_client))
    serving = asyncio.create_task(asyncio.to_thread(serve))

    async def watch() -> None:
        async with transport.stream("/watch", params={}, silence=60, what="watch") as chunks:
            async for _ in chunks:
                pass

    watching = asyncio.create_task(watch())
    assert await asyncio.to_thread(asked.wait, 60)
    await asyncio.sleep(0.2)
    watching.cancel()
    await asyncio.wait([watching])
    await asyncio.sleep(0.2)  # TLS says its farewell, and waits for the server's
    await transport.close()
    given_up.set()
    assert await serving
