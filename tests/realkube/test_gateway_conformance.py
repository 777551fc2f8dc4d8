"""The Gateway API's conformance suite gives the report that docs/ publishes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from machine import programs
from meshes import gateway_conformance as conformance

pytestmark = [
    pytest.mark.kube,
    pytest.mark.lab,
    pytest.mark.timeout(conformance.SECONDS + 300),
    pytest.mark.needs("kube-controller-manager", "envoy", *conformance.PROGRAMS),
]


def test_a_service_import_is_a_backend_of_a_route(tmp_path: Path) -> None:
    """A test in the style of the suite, which has none for ServiceImports (gateway-api#4789)."""
    with conformance.lab() as lab:
        output = conformance.run_imports(lab, tmp_path)
    assert conformance.results(output) == {"MeshServiceImport": "PASS"}, conformance.failures(output)


CALL = """
ip link set lo up
GRPC_ECHO_SERVER=1 HTTP_PORT=7070 "$1" >/dev/null 2>&1 &
for _ in $(seq 100); do
    "$2" grpc://127.0.0.1:7070/ -H X-Who:me -H Host:echo.example && break
    sleep 0.1
done
kill $!
"""


def test_the_suites_client_sends_the_headers_of_a_grpc_request() -> None:
    """Tests of Gateway API 1.7 match gRPC requests by header; the network is one of its own."""
    server, client = programs.path("gateway-echo"), programs.path("gateway-client")
    command = ["unshare", "--net", "sh", "-c", CALL, "call", server, client]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    assert {"StatusCode=200", "Host=echo.example", "RequestHeader=X-Who:me"} <= set(lines), lines


def test_the_mesh_profiles_hold_as_published(tmp_path: Path) -> None:
    with conformance.lab() as lab:
        report, output = conformance.run(lab, tmp_path)
    published = yaml.safe_load(conformance.PUBLISHED.read_text())
    for of_a_day in (report, published):
        del of_a_day["date"], of_a_day["implementation"]
        of_a_day["profiles"].sort(key=lambda profile: profile["name"])  # the suite reports them in any order
    assert conformance.results(output) == conformance.published(), conformance.failures(output)
    assert report == published
