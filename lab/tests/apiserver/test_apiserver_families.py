"""Services of two families: the same table of writes and answers for our server and for a real one."""
# ruff: noqa: E501  (the servers' own words)

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from clusters.apiserver_world import TOKEN, ApiServer, until
from clusters.kube_apiserver import KubeApiServer
from machine import programs
from peers.etcd_server import running

from isthmus.etcd import binary
from isthmus_lab.apiserver.ipfamilies import family_of

DUAL = "10.96.0.0/16,fd00:10:96::/112"
SIX_FIRST = "fd00:10:96::/112,10.96.0.0/16"
SINGLE = "10.96.0.0/16"
SELECTOR = {"selector": {"a": "b"}}
ONE, PREFER, REQUIRE = ({"ipFamilyPolicy": each} for each in ("SingleStack", "PreferDualStack", "RequireDualStack"))
FOUR, SIX, BOTH, TURNED = ({"ipFamilies": each.split(",")} for each in ("IPv4", "IPv6", "IPv4,IPv6", "IPv6,IPv4"))


class Write(NamedTuple):
    """A Service that is created (POST) or changed (merge patch), and the result: families, policy, addresses."""

    verb: str
    name: str
    spec: dict[str, Any]
    result: str


def made(name: str, result: str, *specs: dict[str, Any], **spec: Any) -> Write:
    body: dict[str, Any] = {"ports": [{"port": 80}], **SELECTOR}
    for each in (*specs, spec):
        body |= each
    return Write("POST", name, body, result)


def changed(name: str, result: str, *specs: dict[str, Any], **spec: Any) -> Write:
    return Write("PATCH", name, {key: value for each in (*specs, spec) for key, value in each.items()}, result)


WRITES = {
    DUAL: [
        made("plain", "IPv4 SingleStack IPv4"),
        made("six", "IPv6 SingleStack IPv6", SIX),
        made("prefer", "IPv4+IPv6 PreferDualStack IPv4+IPv6", PREFER),
        made("turned", "IPv6+IPv4 PreferDualStack IPv6+IPv4", PREFER, SIX),
        made("require", "IPv6+IPv4 RequireDualStack IPv6+IPv4", REQUIRE, TURNED),
        made("asked", "IPv6+IPv4 PreferDualStack IPv6+IPv4", PREFER, clusterIP="fd00:10:96::77"),
        made("bare", "IPv4+IPv6 RequireDualStack None", clusterIP="None", selector={}),
        made("headless", "IPv4 SingleStack None", clusterIP="None"),
        made("both", "IPv4+IPv6 PreferDualStack None", PREFER, clusterIP="None"),
        made(
            "wrong",
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
            BOTH,
        ),
        made(
            "wrong",
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple cluster IPs are specified",
            clusterIP="10.96.0.77",
            clusterIPs=["10.96.0.77", "fd00:10:96::78"],
        ),
        made(
            "wrong",
            'spec.clusterIPs: Invalid value: ["IPv4","IPv4"]: may specify no more than one IP for each IP family',
            PREFER,
            clusterIP="10.96.0.77",
            clusterIPs=["10.96.0.77", "10.96.0.78"],
        ),
        made(
            "wrong",
            'spec.clusterIPs: Invalid value: ["IPv4"]: must be empty when `clusterIP` is not specified',
            PREFER,
            clusterIPs=["10.96.0.77"],
        ),
        made(
            "wrong",
            'spec.clusterIPs: Invalid value: ["IPv4"]: first value must match `clusterIP`',
            PREFER,
            clusterIP="10.96.0.78",
            clusterIPs=["10.96.0.77"],
        ),
        made(
            "wrong",
            'spec.clusterIPs[0]: Invalid value: "IPv4": expected an IPv6 value as indicated by `ipFamilies[0]`',
            SIX,
            clusterIP="10.96.0.77",
        ),
        made(
            "wrong",
            'spec.ipFamilies[0]: Unsupported value: "IPv5": supported values: "IPv4", "IPv6"',
            ipFamilies=["IPv5"],
        ),
        made("wrong", 'spec.ipFamilies[1]: Duplicate value: "IPv4"', REQUIRE, ipFamilies=["IPv4", "IPv4"]),
        made(
            "wrong",
            'spec.ipFamilyPolicy: Unsupported value: "Both": supported values: "PreferDualStack", "RequireDualStack", "SingleStack"',
            ipFamilyPolicy="Both",
        ),
        made(
            "wrong",
            'spec.clusterIPs: Invalid value: ["None","IPv4"]: \'None\' must be the first and only value',
            PREFER,
            clusterIP="None",
            clusterIPs=["None", "10.96.0.77"],
        ),
        changed(
            "plain",
            "spec.ipFamilyPolicy: Invalid value: \"SingleStack\": must be 'RequireDualStack' or 'PreferDualStack' when multiple IP families are specified",
            BOTH,
        ),
        changed(
            "plain",
            'spec.clusterIPs[0]: Invalid value: "IPv4": expected an IPv6 value as indicated by `ipFamilies[0]`',
            SIX,
        ),
        changed("plain", "IPv4+IPv6 RequireDualStack IPv4+IPv6", REQUIRE),
        changed(
            "plain",
            "spec.ipFamilyPolicy: Invalid value: \"RequireDualStack\": must be 'SingleStack' to release the secondary IP family",
            FOUR,
        ),
        changed(
            "plain",
            '[spec.clusterIPs[0]: Invalid value: "IPv4": expected an IPv6 value as indicated by `ipFamilies[0]`, spec.clusterIPs[1]: Invalid value: "IPv6": expected an IPv4 value as indicated by `ipFamilies[1]`]',
            TURNED,
        ),
        changed(
            "plain",
            'spec.clusterIPs: Invalid value: ["IPv4","IPv6"]: first value must match `clusterIP`',
            clusterIPs=["10.96.0.99", "fd00:10:96::99"],
        ),
        changed("plain", "IPv4 SingleStack IPv4", ONE),
        changed("plain", "IPv4+IPv6 PreferDualStack IPv4+IPv6", PREFER),
        changed("plain", "IPv4 SingleStack IPv4", ONE, FOUR),
        changed("prefer", "IPv4+IPv6 PreferDualStack IPv4+IPv6", sessionAffinity="ClientIP"),
        changed("headless", "IPv6+IPv4 PreferDualStack None", PREFER, TURNED),
        changed("headless", "IPv6 SingleStack None", ONE, SIX),
        changed(
            "require",
            'spec.clusterIPs[0]: Invalid value: "IPv6": expected an IPv4 value as indicated by `ipFamilies[0]`',
            ONE,
            FOUR,
        ),
    ],
    SIX_FIRST: [
        made("plain", "IPv6 SingleStack IPv6"),
        made("prefer", "IPv6+IPv4 PreferDualStack IPv6+IPv4", PREFER),
        made("bare", "IPv6+IPv4 RequireDualStack None", clusterIP="None", selector={}),
    ],
    SINGLE: [
        made("plain", "IPv4 SingleStack IPv4"),
        made("prefer", "IPv4 PreferDualStack IPv4", PREFER),
        made("bare", "IPv4+IPv6 RequireDualStack None", clusterIP="None", selector={}),
        made("bare6", "IPv6 SingleStack None", ONE, SIX, clusterIP="None", selector={}),
        made(
            "wrong",
            'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services',
            REQUIRE,
        ),
        made("wrong", 'spec.ipFamilies[1]: Invalid value: "IPv6": not configured on this cluster', PREFER, BOTH),
        made("wrong", 'spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster', SIX),
        made(
            "wrong", 'spec.ipFamilies[0]: Invalid value: "IPv6": not configured on this cluster', SIX, clusterIP="None"
        ),
        made(
            "wrong",
            'spec.clusterIPs[0]: Invalid value: ["IPv6"]: IPv6 is not configured on this cluster',
            PREFER,
            clusterIP="fd00:10:96::77",
        ),
        changed(
            "plain",
            'spec.ipFamilyPolicy: Invalid value: "RequireDualStack": this cluster is not configured for dual-stack services',
            REQUIRE,
        ),
        changed("plain", "IPv4 PreferDualStack IPv4", PREFER),
    ],
}


def outcome(body: dict[str, Any]) -> str:
    """Result of a server as text, with families in place of addresses."""
    if body["kind"] == "Status":
        message = body["message"].partition(" is invalid: ")[2] or body["message"]
        return re.sub(r'"[0-9a-f:.]+"', lambda found: f'"{family_of(found[0][1:-1])}"', message)
    spec = body["spec"]
    ips = "+".join(family_of(ip) or ip for ip in spec["clusterIPs"])
    return f"{'+'.join(spec['ipFamilies'])} {spec['ipFamilyPolicy']} {ips}"


async def answers(url: str, token: str, writes: list[Write]) -> list[str]:
    """A server's answer to each."""
    connector = aiohttp.TCPConnector(ssl=ssl._create_unverified_context())
    headers = {"Authorization": f"Bearer {token}"}
    found = []
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        for write in writes:
            path = f"{url}/api/v1/namespaces/default/services"
            body: dict[str, Any] = {"spec": write.spec}
            kind = "application/merge-patch+json"
            if write.verb == "POST":
                body["metadata"], kind = {"name": write.name}, "application/json"
            else:
                path += f"/{write.name}"
            sent = {"data": json.dumps(body), "headers": {"Content-Type": kind}}
            async with session.request(write.verb, path, **sent) as reply:  # type: ignore[arg-type]
                found.append(outcome(await reply.json()))
        await connector.close(abort_ssl=True)
    return found


@pytest.fixture
def small(tmp_path: Path) -> Iterator[ApiServer]:
    """Our server, not started yet."""
    with running(binary.find(), tmp_path / "etcd") as etcd:
        server = ApiServer(etcd, tmp_path / "apiserver")
        try:
            yield server
        finally:
            server.kill()


@pytest.mark.parametrize("ranges", WRITES)
async def test_families_and_addresses_are_given_and_refused_as_in_the_table(small: ApiServer, ranges: str) -> None:
    small.start(f"--service-cidr={ranges}")
    until(small.ready)
    found = await answers(small.url, TOKEN, WRITES[ranges])
    assert found == [write.result for write in WRITES[ranges]]


@pytest.mark.kube
@pytest.mark.parametrize("ranges", WRITES)
async def test_a_real_server_agrees_with_the_table(tmp_path: Path, ranges: str) -> None:
    path = Path(programs.path("kube-apiserver"))
    with running(binary.find(), tmp_path / "etcd") as etcd:
        first = "fd00::1" if ranges == SIX_FIRST else "127.0.0.1"
        flags = [f"--service-cluster-ip-range={ranges}", f"--advertise-address={first}"]
        server = KubeApiServer(path, tmp_path / "server", etcd, *flags)
        server.start()
        try:
            await server.ready()
            found = await answers(server.url, "admin", WRITES[ranges])
        finally:
            server.kill()
    assert found == [write.result for write in WRITES[ranges]]
