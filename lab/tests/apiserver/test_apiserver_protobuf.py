"""Objects as typed Go clients send them: each line of typed_objects.jsonl has one in Go's protobuf and in Go's JSON."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from isthmus_lab.apiserver import protobuf
from isthmus_lab.apiserver.errors import ApiError

LINES = [json.loads(line) for line in Path(__file__).with_name("typed_objects.jsonl").read_text().splitlines()]
OBJECTS = {f"{line['json']['apiVersion']}/{line['json']['kind']}": line for line in LINES}


def differences(ours: Any, theirs: Any, where: str = "") -> Iterator[str]:
    """Yield every path at which the two differ, with both values; a null equals a missing field."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in sorted({*ours, *theirs}):
            yield from differences(ours.get(name), theirs.get(name), f"{where}.{name}")
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for index, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(a, b, f"{where}[{index}]")
    elif ours != theirs or type(ours) is not type(theirs):
        yield f"{where}: {ours!r}, {theirs!r}"


@pytest.mark.parametrize("name", OBJECTS)
def test_what_go_encodes_is_read_as_what_go_shows(name: str) -> None:
    line = OBJECTS[name]
    assert list(differences(protobuf.decode(base64.b64decode(line["protobuf"])), line["json"])) == []


@given(line=st.sampled_from(LINES), at=st.floats(0, 1), cut=st.integers(0, 4), put=st.binary(max_size=4))
def test_whatever_is_sent_is_an_object_or_refused(line: dict[str, Any], at: float, cut: int, put: bytes) -> None:
    raw = base64.b64decode(line["protobuf"])
    index = int(at * len(raw))
    with suppress(ApiError):
        assert isinstance(protobuf.decode(raw[:index] + put + raw[index + cut :]), dict)


def test_a_kind_that_is_not_described_is_refused_by_name() -> None:
    kind = b"\x0a\x0eexample.org/v1\x12\x05Thing"
    with pytest.raises(ApiError, match=r"does not read example.org/v1, Kind=Thing from protobuf") as refused:
        protobuf.decode(protobuf.MAGIC + b"\x0a" + bytes([len(kind)]) + kind)
    assert refused.value.code == 415


def test_a_raw_part_that_is_no_text_is_refused() -> None:
    with pytest.raises(ApiError, match="a part of the body is not JSON"):
        protobuf._raw(b'"\xff"')
