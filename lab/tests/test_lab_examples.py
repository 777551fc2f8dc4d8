"""Manifests in the shape of well-known examples of several tiers, as they are, with stand-ins for their images."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from labs.lab_running import Running, lab_name, until

from isthmus_lab import removal
from isthmus_lab.layout import Lab

pytestmark = [pytest.mark.lab, pytest.mark.slow, pytest.mark.needs("redis-server", "wget")]

MANIFESTS = Path(__file__).parent / "manifests"

PODS = 30


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    lab = Running(Lab(lab_name("x"), 1, 1))
    try:
        lab.cli("up", "--clusters", "1", "--without-isthmus", "--from", str(MANIFESTS), "--stand-in-missing")
        yield lab
    finally:
        removal.remove(lab.lab)


def test_examples_of_several_tiers_run_unedited(running: Running) -> None:
    for file in MANIFESTS.glob("*.yaml"):
        stored = json.loads(running.kubectl("get", "-f", str(file), "-o", "json"))["items"]
        for text, found in zip(yaml.safe_load_all(file.read_text()), stored, strict=True):
            text.pop("stringData", None)  # written, never read
            assert within(text, found), (file.name, text["kind"], text["metadata"])
    until(lambda: settled(running), seconds=120, what="every pod is ready")
    ignored = json.loads(running.cli("status", "--ignored", "-o", "json").stdout)["ignored"]
    assert {each["field"].rpartition(".")[2] for each in ignored} == {
        "resources", "securityContext", "medium", "sizeLimit", "defaultMode", "(all of it)",
    }  # fmt: skip


def test_redis_is_the_real_one(running: Running) -> None:
    until(lambda: settled(running), seconds=120)
    client = "redis-cli -h store-leader.guestbook"
    assert running.exec("guestbook/deploy/store-leader", f"{client} set page 7 && {client} get page") == "OK\n7\n"


def test_a_stand_in_answers_behind_its_service_over_http_and_grpc(running: Running) -> None:
    until(lambda: settled(running), seconds=120)
    shop = running.exec("default/deploy/load", "curl -sm30 http://front/cart?id=1")
    assert (json.loads(shop)["standsInFor"], json.loads(shop)["path"]) == (
        "registry.example.com/boutique/front:v0.10.3",
        "/cart?id=1",
    )


@pytest.mark.needs("pg_lsclusters")
def test_postgres_is_the_real_one_with_the_user_and_password_of_its_environment(running: Running) -> None:
    until(lambda: settled(running), seconds=120)
    secret = "PGPASSWORD=$POSTGRES_PASSWORD psql -h 127.0.0.1 -U ${POSTGRES_USER:-postgres} -Atc 'select 6*7' postgres"
    until(lambda: running.exec("voting/database-0", secret) == "42\n")  # its pod has no readiness probe


def settled(running: Running) -> bool:
    """True if every pod runs and is ready."""
    pods = running.status()["pods"]
    return len(pods) == PODS and all(pod["state"] == "Running 1/1" for pod in pods)


def within(text: Any, stored: Any) -> bool:
    """True if every field of a manifest is stored."""
    if isinstance(text, dict):
        return isinstance(stored, dict) and all(within(value, stored.get(name)) for name, value in text.items())
    if isinstance(text, list):
        return isinstance(stored, list) and all(map(within, text, stored)) and len(text) == len(stored)
    return bool(text == stored)
