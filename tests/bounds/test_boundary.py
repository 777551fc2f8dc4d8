"""tools/boundary.py: what parses a value outside of isthmus.bounds is found, and what only looks like it is not."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import boundary  # noqa: E402

PLANTED = {
    "number = int(wire.port)": "int",
    "number = float(query['wait'])": "float",
    "low, high = map(int, text.split())": "int",
    "largest = max(texts, key=int)": "int",
    "when = datetime.fromisoformat(row.since)": "fromisoformat",
    "when = datetime.strptime(text, '%Y')": "strptime",
    "text = when.strftime('%Y')": "strftime",
    "when = datetime.fromtimestamp(row.at, UTC)": "fromtimestamp",
    "due = start + timedelta(seconds=drain.deadline)": "timedelta",
    "found = ipaddress.ip_address(text)": "ip_address",
    "from ipaddress import ip_network as network": "ip_network",
    "found = IPv4Network(text)": "IPv4Network",
    "packed = socket.inet_pton(AF_INET6, text)": "inet_pton",
    "good = text.isdigit()": "isdigit",
    "good = all(map(str.isdecimal, parts))": "isdecimal",
    "import re": "re",
    "from re import compile as pattern": "re",
}

HARMLESS = (
    "number: int = row.port",
    "good = isinstance(value, int | float)",
    "decoder = msgspec.json.Decoder(dict[str, int])",
    "again = timedelta(seconds=2 * 60)",
    "most = float('inf')",
    "least = int(-1)",
    "loopback = IPv4Network('127.0.0.0/8')",
    "def network() -> IPv4Network: ...",
    "now = time.strftime('%H:%M')",
    "number = bounds.port(wire.port)",
)


def test_nothing_parses_a_value_outside_of_the_boundary_and_no_exemption_is_left_over() -> None:
    assert boundary.main([]) == 0


@pytest.mark.parametrize("code", PLANTED)
def test_a_planted_call_is_found_with_its_line(code: str) -> None:
    assert list(boundary.offences(f"value = 1\n{code}\n")) == [(2, PLANTED[code])]


def test_a_file_with_a_planted_call_fails_the_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "planted.py"
    file.write_text("number = int(wire.port)\n")
    assert boundary.main([str(file)]) == 1
    assert f"{file}:1: int: decode by isthmus.bounds" in capsys.readouterr().out


@pytest.mark.parametrize("code", HARMLESS)
def test_what_parses_nothing_is_not_found(code: str) -> None:
    assert list(boundary.offences(code)) == []


def test_an_exemption_that_a_module_does_not_need_fails_the_check(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("number = int(text)\n")
    exempt = boundary.Exemption(frozenset({"int", "float"}), "a reason")
    assert [line.partition(": ")[2] for line in boundary.problems(file, exempt)] == [
        "float is exempt and not used: take it out of EXEMPT in boundary.py"
    ]
