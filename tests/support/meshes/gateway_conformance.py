"""The Gateway API's conformance suite against a lab: its mesh profiles, on kube-apiserver with the real definitions.

The suite runs a client in pods of the image gateway-api/echo-advanced by exec over SPDY, and reads what it prints. Here
the image is echo-basic, of the suite's own module, with a client of ours (tests/kubetools/gateway/client). All of it is
built by ``make kube-tools``; ``make conformance`` writes the report that docs/ has, if it is one to publish.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import yaml
from labs.lab_running import Running, lab_name
from machine import programs

from isthmus_lab import removal
from isthmus_lab.layout import Lab

DOCS: Final = Path(__file__).resolve().parents[3] / "docs"
PUBLISHED: Final = DOCS / "gateway-api-conformance.yaml"
PAGE: Final = DOCS / "proxy.md"
PROGRAMS: Final = ("gateway-conformance", "gateway-imports", "gateway-echo", "gateway-client")
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
ln -s "$1" /usr/local/bin/client
export POD_NAME=$(hostname)
GRPC_ECHO_SERVER=1 HTTP_PORT=7070 "$2" &
HTTP_PORT=8080 exec "$2"
"""
"""The image's script: its arguments are the client's and the server's paths, which the container then has."""


@contextmanager
def lab() -> Iterator[Running]:
    """A lab of one cluster with kube-apiserver, the standard channel's definitions, and the echo image."""
    running = Running(Lab(lab_name("g"), 1, 1))
    words = ["sh", "-c", ECHO, "echo", programs.path("gateway-client"), programs.path("gateway-echo")]
    image = f"gateway-api/echo-advanced={shlex.join(words)}"
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
    """The suite's report, which is empty if it wrote none, and all that it printed."""
    report = directory / "report.yaml"
    output = _run(
        running,
        directory,
        *(programs.path("gateway-conformance"), "-test.run", "^TestConformance$"),
        f"-conformance-profiles={','.join(PROFILES)}",
        f"-supported-features={','.join(FEATURES)}",
        f"-report-output={report}",
        *(f"-{name}={value}" for name, value in IMPLEMENTATION.items()),
        f"-version={version('isthmus')}",
        "-contact=https://isthmus.io",
    )
    return yaml.safe_load(report.read_text()) if report.exists() else {}, output


def run_imports(running: Running, directory: Path) -> str:
    """Output of our own test of ServiceImports as backends, which the suite lacks (gateway-api#4789)."""
    return _run(
        running,
        directory,
        *(programs.path("gateway-imports"), "-test.run", "^TestServiceImports$"),
        "-conformance-profiles=MESH-HTTP",
        "-supported-features=Mesh,HTTPRoute",
    )


def _run(running: Running, directory: Path, *command: str) -> str:
    kubeconfig = directory / "kubeconfig"
    kubeconfig.write_text(running.kubectl("config", "view", "--raw", "--minify"))
    environment = {**os.environ, "KUBECONFIG": str(kubeconfig)}
    patience = f"-timeout-config-overrides=MaxTimeToConsistency:{CONSISTENCY}"
    done = subprocess.run(
        [*command, "-test.v", f"-test.timeout={SECONDS}s", patience],
        env=environment,
        cwd=directory,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.stdout


def results(output: str) -> dict[str, str]:
    """Of what the suite printed: PASS or FAIL of each test that was not skipped.

    The report counts a test only where all features that it wants are of the profile; this has the others, too.
    """
    return {
        name: result
        for result, name in re.findall(r"^ +--- (PASS|FAIL): Test(?:Conformance|ServiceImports)/(\w+) ", output, re.M)
    }


def published() -> dict[str, str]:
    """The same as the table of docs/proxy.md has it."""
    rows = re.findall(r"^\| (Mesh\w+) \| (PASS|FAIL) \|", PAGE.read_text(), re.M)
    return dict(rows)


def objections(report: Mapping[str, Any], tests: Mapping[str, str]) -> list[str]:
    """Reasons not to publish a report, as sentences: it has to be one of all profiles, in which nothing failed."""
    profiles = {each["name"]: each for each in report.get("profiles") or ()}
    found = [f"{name}: the report has no such profile" for name in PROFILES if name not in profiles]
    for name, profile in profiles.items():
        parts = {part: profile[part] for part in ("core", "extended") if part in profile}
        found += [f"{name}: {part}: {row['result']}" for part, row in parts.items() if row["result"] != "success"]
        found += [] if "core" in parts else [f"{name}: no core test was run"]
    found += [f"{test}: {result}" for test, result in sorted(tests.items()) if result != "PASS"]
    return found or ([] if tests else ["no test was run"])


def publish(report: Mapping[str, Any], tests: Mapping[str, str], *, to: Path) -> list[str]:
    """Replace a published report, as a whole; the reasons if it is left as it is."""
    if not (why := objections(report, tests)):
        draft = to.with_suffix(".draft")
        draft.write_text(yaml.safe_dump(dict(report)))
        draft.replace(to)
    return why


def failures(output: str) -> str:
    """Of what the suite printed, the lines about what failed."""
    printed = output.splitlines()
    return "\n".join([line for line in printed if "expectation failed" in line or "--- FAIL" in line] or printed[-40:])


def main() -> int:
    """Publish the report in docs/ and print the lines of the table in docs/proxy.md; 1 if it is not one to publish."""
    with lab() as running, TemporaryDirectory() as directory:
        report, output = run(running, Path(directory))
    tests = results(output)
    for name, result in sorted(tests.items()):
        print(f"| {name} | {result} |")
    if changed := sorted(name for name, _ in tests.items() ^ published().items()):
        print(f"not as in the table of {PAGE}: {', '.join(dict.fromkeys(changed))}")
    if why := publish(report, tests, to=PUBLISHED):
        reasons = "\n  ".join(why)
        print(f"{failures(output)}\n{PUBLISHED} is left as it was:\n  {reasons}", file=sys.stderr)
    return int(bool(why))


if __name__ == "__main__":
    sys.exit(main())
