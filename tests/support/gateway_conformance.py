"""The Gateway API's conformance suite against a lab: its mesh profiles, on kube-apiserver with the real definitions.

The suite runs a client in pods of the image gateway-api/echo-advanced by exec over SPDY, and reads what it prints. Here
the image is echo-basic, of the suite's own module, with a client of ours (tests/kubetools/gateway/client). All of it is
built by ``make kube-tools``; ``make gateway-report`` writes the report that docs/ has.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import programs
import yaml
from lab_running import Running, lab_name

from isthmus_lab import removal
from isthmus_lab.layout import Lab

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
PUBLISHED: Final = DOCS / "gateway-api-conformance.yaml"
PAGE: Final = DOCS / "proxy.md"
PROGRAMS: Final = ("gateway-conformance", "gateway-echo", "gateway-client")
PROFILES: Final = ("MESH-HTTP", "MESH-GRPC")
FEATURES: Final = (
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteParentRefPort",
    "HTTPRouteResponseHeaderModification",
    "MeshClusterIPMatching",
    "MeshConsumerRoute",
    "MeshHTTPRouteBackendRequestHeaderModification",
    "MeshHTTPRouteNamedRouteRule",
    "MeshHTTPRouteQueryParamMatching",
    "MeshHTTPRouteRedirectPath",
    "MeshHTTPRouteRedirectPort",
    "MeshHTTPRouteRewritePath",
    "MeshHTTPRouteSchemeRedirect",
)
"""Extended features that are claimed; the core ones follow from the profiles."""
IMPLEMENTATION: Final = {
    "organization": "isthmus",
    "project": "isthmus",
    "url": "https://isthmus.io",
    "version": "main",
}
SECONDS: Final = 900
"""All of the suite at most; it takes 150 on two busy cores."""
CONSISTENCY: Final = 120
"""Seconds in which a request has to be answered as wanted, four times the suite's own: a machine may stand still."""
ECHO: Final = """\
ln -s {client} /usr/local/bin/client
export POD_NAME=$(hostname)
GRPC_ECHO_SERVER=1 HTTP_PORT=7070 {echo} &
HTTP_PORT=8080 exec {echo}
"""


@contextmanager
def lab() -> Iterator[Running]:
    """A lab of one cluster with kube-apiserver, the standard channel's definitions, and the echo image."""
    running = Running(Lab(lab_name("g"), 1, 1))
    script = ECHO.format(client=programs.path("gateway-client"), echo=programs.path("gateway-echo"))
    image = f"gateway-api/echo-advanced=sh -c {shlex.quote(script)} echo"
    definitions = programs.BUILT / "gateway-crds"
    try:
        running.cli("up", "--clusters", "1", "--apiserver", "real", "--image", image)
        apply = ("apply", "--server-side", "--force-conflicts")
        running.kubectl(*apply, *(f"--filename={each}" for each in sorted(definitions.glob("*_*routes.yaml"))))
        running.kubectl(*apply, "-f", str(definitions / "gateway.networking.k8s.io_referencegrants.yaml"))
        yield running
    finally:
        removal.remove(running.lab)


def run(running: Running, directory: Path) -> tuple[dict[str, Any], str]:
    """The suite's report, and all that it printed."""
    kubeconfig, report = directory / "kubeconfig", directory / "report.yaml"
    kubeconfig.write_text(running.kubectl("config", "view", "--raw", "--minify"))
    command = [
        programs.path("gateway-conformance"),
        *("-test.run", "^TestConformance$", "-test.v", f"-test.timeout={SECONDS}s"),
        f"-conformance-profiles={','.join(PROFILES)}",
        f"-supported-features={','.join(FEATURES)}",
        f"-report-output={report}",
        f"-timeout-config-overrides=MaxTimeToConsistency:{CONSISTENCY}",
        *(f"-{name}={value}" for name, value in IMPLEMENTATION.items()),
        f"-version={version('isthmus')}",
        "-contact=https://isthmus.io",
    ]
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    done = subprocess.run(
        command,
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout[-4000:]
    return yaml.safe_load(report.read_text()), done.stdout


def results(output: str) -> dict[str, str]:
    """Of what the suite printed: PASS or FAIL of each test that was not skipped.

    The report counts a test only where all features that it wants are of the profile; this has the others, too.
    """
    return {name: result for result, name in re.findall(r"^ +--- (PASS|FAIL): TestConformance/(\w+) ", output, re.M)}


def published() -> dict[str, str]:
    """The same as the table of docs/proxy.md has it."""
    rows = re.findall(r"^\| (Mesh\w+) \| (PASS|FAIL) \|", PAGE.read_text(), re.M)
    return dict(rows)


def failures(output: str) -> str:
    """Of what the suite printed, the lines about what failed."""
    lines = [line for line in output.splitlines() if "expectation failed" in line or "--- FAIL" in line]
    return "\n".join(lines[-40:])


def main() -> None:
    """Write the report that docs/ publishes, and print the lines of the table in docs/proxy.md."""
    with lab() as running, TemporaryDirectory() as directory:
        report, output = run(running, Path(directory))
    PUBLISHED.write_text(yaml.safe_dump(report))
    print(failures(output))
    for name, result in sorted(results(output).items()):
        print(f"| {name} | {result} |")


if __name__ == "__main__":
    main()
