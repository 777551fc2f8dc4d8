"""Callers of another island: its nodes pass the pods' accounts, and the exporter's gateway judges them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from labs.accounts import CALL, ECHO, WEB, policy
from labs.lab_running import Running, invoked, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("envoy")]


@pytest.fixture(scope="module")
def lab() -> Iterator[Running]:
    """c1 exports echo. c2 has the pods client, of the account default, and web, of the account web."""
    running = Running(Lab(lab_name("k"), 2, 1))
    try:
        running.cli("up", "--clusters", "2", "--network", "island", "--identity", f"--from={ECHO}")
        running.kubectl("apply", "-f", "-", stdin=WEB, cluster="c2")
        running.kubectl("apply", "-f", str(ECHO / "export"), cluster="c1")
        until(lambda: codes(running) == ("200", "200"), what="calls of both")
        yield running
    finally:
        removal.remove(running.lab)


def code(lab: Running, pod: str) -> str:
    """Status of a call of echo by a pod of c2; 000 if it was not answered."""
    return lab.exec(f"demo/{pod}", CALL, cluster="c2", code=None)


def codes(lab: Running) -> tuple[str, str]:
    return code(lab, "client"), code(lab, "web")


def test_an_account_that_a_policy_names_calls_another_island_and_others_do_not(lab: Running) -> None:
    policy(lab, allow=[{"cluster": "c2", "namespace": "demo", "serviceAccount": "web"}])
    until(lambda: codes(lab)[0] != "200", what="the refusal of client")
    until(lambda: codes(lab)[1] == "200", what="calls of web")
    assert {codes(lab) for _ in range(5)} == {(code(lab, "client"), "200")}
    words = ["diagnose", "demo/echo", "--from", "demo/client", "--lab", lab.lab.name, "--cluster", "c2"]
    found = " ".join(invoked(words).stdout.split())
    assert "refuse demo/client: ExportPolicy demo/echo does not allow demo/default" in found
    policy(lab, allow=[{"namespace": "demo"}])
    until(lambda: codes(lab) == ("200", "200"), what="calls of the whole namespace")
    policy(lab, allow=[{"serviceAccount": "default"}])
    until(lambda: codes(lab)[0] == "200", what="calls of client")
    until(lambda: codes(lab)[1] != "200", what="the refusal of web")
