"""Agent and name server do their work with the capabilities that deploy/ gives them, and are not privileged."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from datapath_worlds.bpf_world import World

pytestmark = pytest.mark.bpf

DEPLOY = Path(__file__).parents[2] / "deploy" / "agent"
AGENT = """
import socket, sys
from isthmus.config import DatapathSection, DnsSection
from isthmus.datapath import Datapath
from isthmus.netlink import sock_diag
section = DatapathSection(cgroup=sys.argv[1], pin=sys.argv[2], max_entries=1024, grace=0.0)
datapath = Datapath.open(section, DnsSection(cluster_dns=("10.96.0.10",)))
callers = datapath.callers()
callers.renew({"10.7.0.1": None})
links = datapath.pod_links()
links.look()
gone = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
gone.connect(("127.0.0.1", 9))
[found] = sock_diag.connected(socket.IPPROTO_UDP)
missing = [] if len(list(datapath.maps.items("callers"))) == 1 else ["no callers"]
missing += [] if (links.stats().interfaces, links.stats().failed) == (1, {}) else [repr(links.stats())]
missing += [] if sock_diag.destroy(found) else ["not destroyed"]
print(", ".join(missing) or "ok")
"""
NODE = """
ip link set lo up
unshare --net sleep 60 >/dev/null 2>&1 &
pod=$!
while [ "$(readlink /proc/$pod/ns/net)" = "$(readlink /proc/self/ns/net)" ]; do :; done
ip link add pod0 type veth peer name eth0 netns $pod
ip link set pod0 up
"$@"
code=$?
kill $pod
exit $code
"""
DNS = """
import asyncio, socket, sys
from isthmus import uplinks
from isthmus.datapath.alive import Alive
from isthmus.dns import dialing
async def main():
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    server.bind(("127.0.0.1", 53))
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        uplinks.drop_from(listener, [2])
    with dialing.opened("127.0.0.1", socket.SOCK_DGRAM) as own:
        assert own.getsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY) == dialing.OWN_QUESTION
    alive = await Alive.open(sys.argv[2])
    assert alive.tie(server)
    alive.renew(1)
    print("ok")
asyncio.run(main())
"""


def container(name: str) -> dict[str, Any]:
    objects = [each for file in ("agent.yaml", "dns.yaml") for each in yaml.safe_load_all((DEPLOY / file).read_text())]
    pods = [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "DaemonSet"]
    [found] = [each for pod in pods for each in pod["containers"] if each["name"] == name]
    context: dict[str, Any] = found["securityContext"]
    return context


def capabilities(name: str) -> list[str]:
    context = container(name)["capabilities"]
    assert context["drop"] == ["ALL"]
    return [each.lower() for each in context["add"]]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("privileges"))
    try:
        yield made
    finally:
        made.close()


def run(world: World, program: str, having: list[str]) -> str:
    """What the program prints, or why it failed, as root with these capabilities, in a namespace of its own.

    The namespace is that of a node with a link to a pod.
    """
    given = ",".join(["-all", *(f"+{each}" for each in having)])
    limits = ["setpriv", f"--bounding-set={given}", f"--inh-caps={given}", "--no-new-privs"]
    command = [
        "unshare",
        "--net",
        "sh",
        "-c",
        NODE,
        "sh",
        *limits,
        sys.executable,
        "-c",
        program,
    ]
    done = subprocess.run([*command, str(world.cgroup), world.pin], capture_output=True, text=True, check=False)
    return done.stdout.strip() or done.stderr.strip()[-300:]


@pytest.mark.slow
def test_the_agent_works_with_what_deploy_gives_it(world: World) -> None:
    given = [each for each in capabilities("agent") if each != "sys_resource"]  # for kernels before 5.11 alone
    assert run(world, AGENT, given) == "ok"
    for each in given:
        assert run(world, AGENT, [other for other in given if other != each]) != "ok", f"{each} is not needed"


@pytest.mark.slow
def test_the_name_server_works_with_what_deploy_gives_it_and_needs_its_port(world: World) -> None:
    world.open().close()
    given = capabilities("dns")
    assert run(world, DNS, given) == "ok"
    assert "Permission denied" in run(world, DNS, [each for each in given if each != "net_bind_service"])


@pytest.mark.parametrize("name", ["agent", "dns"])
def test_no_container_of_ours_is_privileged(name: str) -> None:
    context = container(name)
    assert "privileged" not in context
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
