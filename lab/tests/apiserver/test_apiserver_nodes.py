"""Logs and exec: passed on to the pod's node, here a stand-in that speaks the kubelet's side."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest
from aiohttp import web
from clusters.apiserver_world import Client, Kubectl, Node, Object

STDOUT, STDERR, STATUS, CLOSE = b"\x01", b"\x02", b"\x03", b"\xff\x00"


class Kubelet:
    """Answers exec by echoing, logs by saying what was asked."""

    async def logs(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(f"{request.path} {request.query_string}\n".encode())
        return response

    async def exec(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(protocols=["v5.channel.k8s.io"])
        await socket.prepare(request)
        command = request.query.getall("command")
        await socket.send_bytes(STDOUT + " ".join(command).encode() + b"\n")
        if "input" in request.query:
            async for message in socket:
                if message.data == CLOSE:
                    break
                await socket.send_bytes(STDOUT + message.data[1:].upper())
        await socket.send_bytes(STDERR + b"done\n")
        code = int(command[-1]) if command[-1].isdigit() else 0
        await socket.send_bytes(STATUS + json.dumps(outcome(code)).encode())
        await socket.close()
        return socket


def outcome(code: int) -> Object:
    if not code:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    failed = {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
    return failed | {"message": f"command terminated with exit code {code}"}


@pytest.fixture
async def pod(client: Client, node: Node) -> AsyncIterator[str]:
    """A pod that runs on a node that answers."""
    kubelet = Kubelet()
    app = web.Application()
    app.router.add_get("/containerLogs/{ns}/{pod}/{container}", kubelet.logs)
    app.router.add_get("/exec/{ns}/{pod}/{container}", kubelet.exec)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    address = {"type": "InternalIP", "address": "127.0.0.1"}
    endpoints = {"kubeletEndpoint": {"Port": port}}
    await client.patch(f"nodes/{node.name}/status", {"status": {"addresses": [address], "daemonEndpoints": endpoints}})
    await client.made("pods", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "x"}]}})
    await client.until("pods/p", lambda body: body["status"]["phase"] == "Running")
    try:
        yield "p"
    finally:
        await runner.cleanup()


async def test_exec_runs_a_command_with_input_and_exit_code(kubectl: Kubectl, pod: str) -> None:
    assert await kubectl("exec", pod, "--", "say", "it") == "say it\n"
    assert await kubectl("exec", "-i", pod, "--", "cat", stdin="hello") == "cat\nHELLO"
    output = await kubectl("exec", pod, "--", "exit", "3", fails=True)
    assert "command terminated with exit code 3" in output


async def test_logs_are_the_nodes(kubectl: Kubectl, client: Client, pod: str) -> None:
    output = await kubectl("logs", pod, "--tail=5", "--previous")
    assert output == f"/containerLogs/{client.namespace}/p/main previous=true&tailLines=5\n"
    wrong = await kubectl("logs", pod, "-c", "other", fails=True)
    assert "container other is not valid for pod p" in wrong


async def test_a_node_that_does_not_answer_is_named(client: Client, node: Node) -> None:
    await client.made("pods", {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main", "image": "x"}]}})
    await client.until("pods/p", lambda body: body["status"]["phase"] == "Running")
    silent = await client.get("pods/p/log")
    assert (silent.status, node.name in silent.body["message"]) == (501, True)
    address = {"type": "InternalIP", "address": "127.0.0.1"}
    endpoints = {"kubeletEndpoint": {"Port": 1}}
    await client.patch(f"nodes/{node.name}/status", {"status": {"addresses": [address], "daemonEndpoints": endpoints}})
    gone = await client.get("pods/p/log")
    assert (gone.status, node.name in gone.body["message"]) == (502, True)
