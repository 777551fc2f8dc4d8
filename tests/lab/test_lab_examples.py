"""Manifests in the shape of well-known examples of several tiers, as they are, with stand-ins for their images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab_running import Running, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = pytest.mark.lab

MANIFESTS = Path(__file__).parent / "manifests"

PODS = 17
WITHOUT = "registry.example.com/voting/worker"
BOOKS = ("details-v1", "ratings-v1", "reviews-v1", "reviews-v2", "reviews-v3", "productpage-v1")
PORTS = {
    "redis": 6379,
    "postgres": 5432,
    "registry.example.com/guestbook/redis-follower": 6379,
    "registry.example.com/guestbook/page": 80,
    "registry.example.com/voting/vote": 80,
    "registry.example.com/voting/result": 80,
    **{f"registry.example.com/bookstore/{name}": 9080 for name in BOOKS},
}


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    lab = Running(Lab(lab_name("x"), 1, 1))
    server = "exec python3 -I -S -m http.server --directory /srv"
    images = [word for name, port in PORTS.items() for word in ("--image", f"{name}=sh -c '{server} {port}'")]
    try:
        output = lab.cli("up", "--clusters", "1", "--without-isthmus", "--from", str(MANIFESTS), *images, code=1).stderr
        without = f"spec.template.spec.containers[0].image: image '{WITHOUT}' has no stand-in"
        assert [line for line in output.splitlines() if line.startswith("  c1: ") and without not in line] == []
        assert without in output
        yield lab
    finally:
        removal.remove(lab.lab)


def test_examples_of_several_tiers_run_unedited(running: Running) -> None:
    for file in MANIFESTS.glob("*.yaml"):
        stored = json.loads(running.kubectl("get", "-f", str(file), "-o", "json"))["items"]
        for text, found in zip(yaml.safe_load_all(file.read_text()), stored, strict=True):
            text.pop("stringData", None)  # written, never read
            assert within(text, found), (file.name, text["kind"], text["metadata"])
    states = until(lambda: settled(running), seconds=60, what="every pod is ready, or refused for want of a stand-in")
    assert sum(state.startswith("Running") for state, _ in states) == PODS - 1, states
    refused = [why for state, why in states if not state.startswith("Running")]
    assert len(refused) == 1
    assert f"image '{WITHOUT}' has no stand-in" in refused[0]
    ignored = json.loads(running.cli("status", "--ignored", "-o", "json").stdout)["ignored"]
    assert {each["field"].rpartition(".")[2] for each in ignored} == {
        "resources", "securityContext", "medium", "sizeLimit", "defaultMode",
    }  # fmt: skip


def settled(running: Running) -> list[tuple[str, str]]:
    """State of each pod with its message; empty while one is on its way."""
    pods = json.loads(running.cli("status", "-o", "json").stdout)["pods"]
    states = [(pod["state"], pod["why"]) for pod in pods]
    return (
        states if len(states) == PODS and all(state in ("Running 1/1", "ErrImagePull") for state, _ in states) else []
    )


def within(text: Any, stored: Any) -> bool:
    """Whether all that a manifest has is stored."""
    if isinstance(text, dict):
        return isinstance(stored, dict) and all(within(value, stored.get(name)) for name, value in text.items())
    if isinstance(text, list):
        return isinstance(stored, list) and all(map(within, text, stored)) and len(text) == len(stored)
    return bool(text == stored)
