"""One session against this server and a real one: they differ where the documentation lists it, and nowhere else."""

from __future__ import annotations

import json
import ssl
from typing import Any

import aiohttp
import pytest
from clusters.apiserver_session import KNOWN, TABLE, Step, differences, normal, steps
from clusters.apiserver_world import TOKEN, ApiServer
from clusters.kube_apiserver import KubeApiServer

AS_TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


async def answer(session: aiohttp.ClientSession, url: str, step: Step) -> dict[str, Any]:
    """The code and the body of an answer, made comparable."""
    path = step.path.removesuffix(TABLE).removesuffix(TABLE.replace("?", "&"))
    headers = {"Accept": AS_TABLE} if path != step.path else {}
    if step.body is not None:
        headers["Content-Type"] = step.type
    data = json.dumps(step.body) if step.body is not None else None
    async with session.request(step.method, url + path, data=data, headers=headers) as reply:
        raw = await reply.read()
        try:
            body = json.loads(raw)
        except ValueError:
            body = raw.decode()
        return {"code": reply.status, "body": normal(body)}


async def replay(url: str, token: str) -> dict[str, dict[str, Any]]:
    """The answers of a server to the whole session."""
    connector = aiohttp.TCPConnector(ssl=ssl._create_unverified_context())
    headers = {"Authorization": f"Bearer {token}", "User-Agent": "session/1"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        try:
            return {step.about: await answer(session, url, step) for step in steps()}
        finally:
            await connector.close(abort_ssl=True)


@pytest.mark.kube
async def test_a_session_is_answered_as_by_the_real_server(
    own_server: ApiServer, kube_apiserver: KubeApiServer
) -> None:
    await kube_apiserver.ready()
    ours = await replay(own_server.url, TOKEN)
    theirs = await replay(kube_apiserver.url, "admin")
    found = {about: list(differences(ours[about], theirs[about])) for about in ours}
    unknown = {about: lines for about, lines in found.items() if lines and about not in KNOWN}
    assert not unknown, json.dumps(unknown, indent=2)
    assert {about for about in KNOWN if not found[about]} == set(), "no difference any more: strike them out"


def test_every_step_of_the_session_has_a_name_of_its_own() -> None:
    names = [step.about for step in steps()]
    assert len(names) == len(set(names)) > 100
