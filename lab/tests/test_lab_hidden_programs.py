"""Containers find their programs whatever their mounts hide: the lab's own, and those that ``--image`` names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from labs.lab_running import Running

from isthmus_lab.node.sandbox import hidden_part
from isthmus_lab.own_programs import ON_HOST

SHOP = """
import http.server, pathlib, sys
sys.path.insert(0, str(pathlib.Path(__file__).parent / "lib"))
import goods
pathlib.Path(__file__).with_name("made").write_text("in this container")
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(goods.TEXT)
http.server.HTTPServer(("", 8080), Handler).serve_forever()
"""
PARENTS = sorted({str(Path(*path.parts[:2])) for path in ON_HOST} - {"/usr"})
"""Top directories of the checkout and of the interpreter, but for that of every program of a container."""


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/r/tmp/shop/bin/serve", "/r/tmp/shop"),
        ("/r/tmp/serve", "/r/tmp/serve"),
        ("/r/tmp/data/x/serve", "/r/tmp/data/x"),
        ("/r/srv/serve", None),
        ("/r/tmp", None),
    ],
)
def test_what_a_mount_hides_of_a_program_is_shown_as_a_whole(path: str, part: str | None) -> None:
    found = hidden_part(Path(path), [Path("/r/tmp"), Path("/r/tmp/data"), Path("/r/run")])
    assert found == (part and Path(part))


@pytest.fixture(scope="module")
def shops() -> Iterator[list[Path]]:
    """A program with a module beside it below each directory that is a container's own."""
    with ExitStack() as folders:
        folder = [TemporaryDirectory(prefix="shop, a:", dir=each) for each in ("/tmp", "/mnt", "/run")]
        shops = [Path(folders.enter_context(each), "app", "shop.py") for each in folder]
        for shop in shops:
            (shop.parent / "lib").mkdir(parents=True)
            shop.write_text(SHOP)
            (shop.parent / "lib" / "goods.py").write_text(f"TEXT = {bytes(shop)!r}")
        yield shops


def pod(name: str, image: str, *volumes: str) -> dict[str, Any]:
    """A pod whose container has volumes at these paths, and is ready when it answers."""
    probe = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1, "timeoutSeconds": 30}
    container = {
        "name": "main",
        "image": image,
        "ports": [{"containerPort": 8080}],
        "readinessProbe": probe,
        "volumeMounts": [{"name": f"v{n}", "mountPath": path} for n, path in enumerate(volumes)],
    }
    spec = {
        "containers": [container],
        "volumes": [{"name": f"v{n}", "emptyDir": {}} for n in range(len(volumes))],
        "terminationGracePeriodSeconds": 5,
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


@pytest.mark.lab
def test_programs_are_found_whatever_volumes_and_own_directories_a_container_has(
    clusters: Running, until: Callable[..., Any], shops: list[Path]
) -> None:
    names = ["shop-tmp", "shop-mnt", "shop-run"]
    for name, shop in zip(names, shops, strict=True):
        clusters.cli("image", "add", f"acme/{name}=python3 {shlex.quote(str(shop))}")
    clusters.cli("image", "add", "--stand-in", "acme/published")
    pods = [
        *(pod(name, f"acme/{name}") for name in names),
        *(pod(f"{name}-volume", f"acme/{name}", "/tmp") for name in names),
        pod("echo-tmp", "isthmus/echo", "/tmp"),
        pod("echo-parents", "isthmus/echo", *PARENTS),
        pod("published-tmp", "acme/published", "/tmp"),
        pod("published-parents", "acme/published", *PARENTS),
    ]
    clusters.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(pods))

    until(lambda: clusters.count_ready() == len(pods), what="all are ready")
    for name, shop in zip(names, shops, strict=True):
        for each in (name, f"{name}-volume"):
            assert clusters.exec(f"default/{each}", "curl -sm30 localhost:8080") == str(shop)
            made = shlex.quote(str(shop.with_name("made")))
            assert clusters.exec(f"default/{each}", f"cat {made}") == "in this container", "its changes are its own"
        assert not shop.with_name("made").exists()
    assert clusters.exec("default/echo-tmp", "ls -A /tmp /run /mnt").split() == ["/mnt:", "/run:", "/tmp:"]
    assert json.loads(clusters.exec("default/echo-parents", "curl -sm30 localhost:8080"))["protocol"] == "HTTP"


@pytest.mark.lab
def test_a_program_below_what_labs_keep_is_shown_to_no_container(clusters: Running, until: Callable[..., Any]) -> None:
    kept = clusters.lab.directory / "serve"
    kept.write_text("#!/bin/sh\nsleep 100\n")
    kept.chmod(0o755)
    clusters.cli("image", "add", f"acme/kept={kept}")
    clusters.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(pod("kept", "acme/kept")))

    assert until(lambda: [line for line in clusters.cli("status").stdout.splitlines() if "kept" in line])
    until(lambda: "not on this host" in clusters.kubectl("get", "events", "-o", "jsonpath={.items[*].message}"))
