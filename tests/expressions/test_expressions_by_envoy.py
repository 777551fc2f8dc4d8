"""What we take of tenants' expressions, Envoy takes: one that it refuses would keep back all routes of a listener."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path
from typing import Final

import pytest
from machine import programs
from meshes.route_expressions import TAKEN

from isthmus import expressions
from isthmus.proxy.bootstrap import MAX_PROGRAM

PARTS: Final = [
    *("a", "b", "é", "0", "-", "]", "[", "^", "$", "(", ")", "|", "*", "+", "?", "{", "}", ".", "//", "&&", "~~", "--"),
    *("(?:", "(?i)", "(?m)", "(?U)", "(?i:", "(?s-i:", "(?P<n>", "{2}", "{2,}", "{1,3}", "{,2}"),
    *(
        r"\d",
        r"\W",
        r"\s",
        r"\b",
        r"\B",
        r"\A",
        r"\x41",
        r"\x",
        r"\012",
        r"\0",
        r"\n",
        r"\.",
        r"\-",
        r"\ ",
        r"\#",
        r"\`",
    ),
    *("[a-z]", "[^/]", "[]a]", "[a-]", "[[:alpha:]]", "[[:^digit:]x]", r"[\d-]", r"[-\w]", r"[\]]", r"[a\-z]", "[[a]"),
    *("[é-ü]", r"\pL", r"\z", r"\Q", r"\C"),
]
MANAGER: Final = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager"
ROUTER: Final = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"


def taken(seed: int, count: int) -> list[str]:
    """Random expressions that have no problem."""
    chance, found = random.Random(seed), set(TAKEN)
    while len(found) < count:
        text = "".join(chance.choice(PARTS) for _ in range(chance.randint(1, 9)))
        if expressions.problem(text) == "":
            found.add(text)
    return sorted(found)


def config(texts: list[str]) -> str:
    """A listener with a route for each expression."""
    routes = [{"match": {"safe_regex": {"regex": text}}, "direct_response": {"status": 200}} for text in texts]
    manager = {
        "@type": MANAGER,
        "stat_prefix": "http",
        "http_filters": [{"name": "router", "typed_config": {"@type": ROUTER}}],
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": routes}]},
    }
    listener = {
        "name": "listener",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 1}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    runtime = {
        "name": "static",
        "static_layer": {"re2": {"max_program_size": {"error_level": MAX_PROGRAM}}},
    }
    return json.dumps({"static_resources": {"listeners": [listener]}, "layered_runtime": {"layers": [runtime]}})


@pytest.mark.needs("envoy")
@pytest.mark.parametrize("seed", range(3))
def test_an_envoy_takes_every_expression_that_we_take(tmp_path: Path, seed: int) -> None:
    file = tmp_path / "envoy.json"
    file.write_text(config(taken(seed, 1_000)))
    command = [programs.path("envoy"), "--mode", "validate", "-c", str(file), "-l", "error"]
    found = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert found.returncode == 0, found.stderr[-500:]
