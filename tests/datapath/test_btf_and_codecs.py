"""The compiled object's structs are those of codecs.py, field by field."""

from __future__ import annotations

from pathlib import Path

import pytest

import isthmus.datapath
from isthmus.datapath.core import btf, shapes
from isthmus.datapath.core.errors import DatapathError
from isthmus.datapath.core.libbpf import Object
from isthmus.datapath.manifest import MAPS
from isthmus.datapath.services import codecs
from isthmus.model.balancing import FrontendKey, Target
from isthmus.model.names import ClusterName

SHAPES = [shape for row in MAPS.values() for shape in (row.key, row.value, *row.parts)]
OBJECT = Path(isthmus.datapath.__file__).with_name("isthmus.bpf.o")


@pytest.fixture(scope="module")
def raw() -> bytes:
    opened = Object(OBJECT)
    try:
        return opened.btf()
    finally:
        opened.close()


def test_every_codec_agrees_with_the_compiled_struct(raw: bytes) -> None:
    shapes.check(SHAPES, btf.layouts(raw))


def test_a_struct_that_moved_is_refused_by_name(raw: bytes) -> None:
    layouts = btf.layouts(raw)
    layouts["slot"] = btf.Layout(16, layouts["slot"].fields)
    with pytest.raises(DatapathError, match="struct slot"):
        shapes.check(SHAPES, layouts)


def test_the_manifest_has_every_map_of_the_object_and_no_other() -> None:
    opened = Object(OBJECT)
    try:
        assert set(opened.maps()) == set(MAPS)
    finally:
        opened.close()


def test_both_families_live_in_one_key_space() -> None:
    assert shapes.address("10.1.2.3").hex() == "00000000000000000000ffff0a010203"
    assert shapes.address_text(shapes.address("10.1.2.3")) == "10.1.2.3"
    assert shapes.address_text(shapes.address("fd00::1")) == "fd00::1"


def test_a_frontend_value_has_the_key_it_is_for() -> None:
    key = codecs.frontend_key(FrontendKey("10.96.0.7", 80, "TCP"))
    assert codecs.frontend(key, plan=5) == key[12:] + b"\5\0\0\0"
    assert codecs.FRONTEND.named(codecs.frontend(key, plan=5))["plan"] == 5


def test_ports_and_addresses_are_in_network_order() -> None:
    packed = codecs.backend(Target("10.1.0.2", 8080, "UDP", ClusterName("c1")), generation=7, cluster=3)
    assert codecs.BACKEND.named(packed) == {
        "generation": 7,
        "address": shapes.address("10.1.0.2"),
        "port": b"\x1f\x90",
        "protocol": 17,
        "flags": 0,
        "cluster": 3,
        "reserved": 0,
    }
