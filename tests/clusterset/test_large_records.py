"""A large record that changes is read by what has changed, and says what it says read as a whole."""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from small_chunks import small_chunks

from isthmus.clusterset import endpoints, large_records
from isthmus.clusterset.admission import Admission
from isthmus.clusterset.errors import RecordError
from isthmus.clusterset.large_records import Found, differing
from isthmus.clusterset.sinks import ROWS, RecordSink
from isthmus.etcd import KeyValue
from isthmus.model.chunked import Chunked
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.services import Endpoint, Port
from isthmus.model.tables import ENDPOINT_SETS
from isthmus.reflector import Event
from isthmus.statedb import Database

C3, ECHO = ClusterName("cluster3"), ServiceName("ns-alpha/echo-service")
HTTP = (Port("http", 8080),)


@pytest.fixture(autouse=True, scope="module")
def few_are_many() -> Iterator[None]:
    """A record is large from seven endpoints on."""
    with small_chunks(chunk=4, small=6) as patch:
        patch.setattr(large_records, "LARGE", 6)
        patch.setattr(large_records, "LEAST", 1)
        patch.setattr(large_records, "BLOCK", 64)
        patch.setattr(large_records, "MAX_STEPS", 3)
        yield


ENDPOINTS = st.builds(
    Endpoint,
    st.integers(1, 30).map(lambda n: f"10.0.0.{n}") | st.integers(1, 5).map(lambda n: f"2001:db8::{n}"),
    st.sampled_from([HTTP, (Port("http", 8081),), (Port("dns", 53, "UDP"), Port("http", 8080))]),
    hostname=st.sampled_from(["", "", "", "pod-0"]),
    node=st.sampled_from(["", "n1", "n2"]),
    zone=st.sampled_from(["", "z1"]),
).map(lambda each: replace(each, for_zones=("z1",)) if each.zone and each.node else each)
SETS = st.lists(ENDPOINTS, min_size=4, max_size=20, unique_by=lambda each: each.address)


def record(of: Iterable[Endpoint], **others: Any) -> bytes:
    return endpoints.encode(ECHO, cluster=C3, cluster_id=3, endpoints=of, frontends={"10.96.0.1": HTTP}, **others)


def read(value: bytes, before: Found | None = None) -> Found:
    kept = before.kept if before is not None else None
    return large_records.decode(value, cluster=C3, cluster_id=3, name=ECHO, before=kept)


def whole(value: bytes) -> Any:
    return endpoints.decode(value, cluster=C3, cluster_id=3, name=ECHO)


ADMISSION = Admission(cluster=C3, pod_ranges=("10.0.0.0/8", "2001:db8::/64"))


def a_sink(db: Database) -> RecordSink:
    return RecordSink(
        db,
        ROWS["services"],
        cluster_id=3,
        admission=ADMISSION,
        listed=lambda txn: None,
        received=lambda bad, why: None,
    )


def ten(*, but: Iterable[int] = (), **fields: Any) -> list[Endpoint]:
    return [Endpoint(f"10.0.0.{n}", HTTP, **fields) for n in range(10, 20) if n not in but]


@given(SETS, st.lists(SETS, max_size=4))
def test_any_version_is_read_as_if_there_had_been_none_before_it(
    first: list[Endpoint], later: list[list[Endpoint]]
) -> None:
    before = read(record(first))
    for version in later:
        value = record(version)
        found = read(value, before)
        assert found.row == whole(value)
        before = found


@given(SETS, st.data())
def test_versions_that_differ_a_little_are_too(first: list[Endpoint], data: st.DataObject) -> None:
    present = {each.address: each for each in first}
    before = read(record(first))
    for _ in range(4):
        for each in data.draw(st.lists(ENDPOINTS, max_size=2)):
            if present.pop(each.address, None) is None:
                present[each.address] = each
        value = record(present.values())
        found = read(value, before)
        assert found.row == whole(value)
        before = found


def test_an_endpoint_that_comes_and_one_that_goes_are_all_that_is_read() -> None:
    before = read(record(ten(node="n1", zone="z1")))
    value = record([*ten(but=[13], node="n1", zone="z1"), Endpoint("10.0.0.30", HTTP, node="n2", zone="z2")])
    found = read(value, before)
    assert found.added == [Endpoint("10.0.0.30", HTTP, node="n2", zone="z2")]
    assert found.row == whole(value)


def test_the_endpoints_that_stay_are_the_same_objects() -> None:
    before = read(record(ten()))
    found = read(record(ten(but=[13])), before)
    assert before.row is not None
    assert found.row is not None
    assert set(map(id, found.row.endpoints)) < set(map(id, before.row.endpoints))


def test_what_a_change_was_is_known_to_whoever_follows_it() -> None:
    before = read(record(ten()))
    found = read(record(ten(but=[13])), before)
    assert before.row is not None
    assert found.row is not None
    assert isinstance(found.row.endpoints, Chunked)
    assert found.row.endpoints.step == (before.row.endpoints, [Endpoint("10.0.0.13", HTTP)], [])


@pytest.mark.parametrize(
    "fields",
    [
        {"nodes": {"10.0.0.10": "n7"}},
        {"zones": {"10.0.0.10": {"zone": "z7"}}},
        {"hostnames": {"10.0.0.10": "pod-7"}},
        {"hostnames": None},
        {"nodes": {"10.0.0.99": "n1"}},
        {"backends": {}},
        {"backends": None},
        {"shared": False, "claimed": True},
        {"shared": False},
    ],
    ids=repr,
)
def test_a_change_of_anything_else_is_read_as_a_whole(fields: dict[str, Any]) -> None:
    before = read(record(ten(hostname="pod-0")))
    value = written(json.loads(record(ten(hostname="pod-0"))) | fields)
    assert read(value, before).row == whole(value)


def written(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, separators=(",", ":")).encode()


SPELLED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "with spaces": json.dumps,
    "indented": lambda fields: json.dumps(fields, indent=1),
    "in the other order": lambda fields: written(fields | {"backends": dict(reversed(fields["backends"].items()))}),
    "one address twice": lambda fields: written(fields).decode().replace('"10.0.0.11"', '"10.0.0.10"', 1),
    "in two ways": lambda fields: written(fields).decode().replace('"10.0.0.11"', '"::ffff:10.0.0.10"', 1),
    "a port like what is between": lambda fields: written(fields).decode().replace('"http"', '"}},"', 3),
    "a port that ends like it": lambda fields: written(fields).decode().replace('"http"', '"http}},"', 1),
    "no ports": lambda fields: written(fields).decode().replace('{"http":{"Protocol":"TCP","Port":8080}}', "{}", 1),
    "a node of nothing": lambda fields: written(fields | {"nodes": {"10.0.0.12": ""}}),
    "a node of what is no backend": lambda fields: written(fields | {"nodes": {"10.0.0.99": "n1"}}),
    "a space before the first": lambda fields: written(fields).decode().replace('{"10.', '{ "10.'),
    "escaped": lambda fields: written(fields).decode().replace('"http"', '"ht\\u0074p"'),
}


@pytest.mark.parametrize("spelling", SPELLED)
@pytest.mark.parametrize("first", ["as ours", "so too"])
def test_a_record_in_another_spelling_says_what_it_says(spelling: str, first: str) -> None:
    def spelled(fields: dict[str, Any]) -> bytes:
        text = SPELLED[spelling](fields)
        return text if isinstance(text, bytes) else text.encode()

    one = record(ten())
    before = read(spelled(json.loads(one)) if first == "so too" else one)
    for others in ([13], [10], [11, 12], []):
        value = spelled(json.loads(record(ten(but=others))))
        before = read(value, before)
        assert before.row == whole(value)


@pytest.mark.parametrize("field", ["nodes", "hostnames"])
def test_what_was_said_of_an_endpoint_before_it_came_counts(field: str) -> None:
    early = {field: {"10.0.0.30": "said"}}
    before = read(written(json.loads(record(ten())) | early))
    value = written(json.loads(record([*ten(), Endpoint("10.0.0.30", HTTP)])) | early)
    assert read(value, before).row == whole(value)


def test_of_an_endpoint_that_comes_twice_the_last_counts() -> None:
    before, value = read(record(ten())), record([*ten(), Endpoint("10.0.0.30", HTTP)])
    for port in range(1, 5):
        again = f'"10.0.0.30":{{"http":{{"Protocol":"TCP","Port":{port}}}}},"10.0.0.30"'.encode()
        twice = value.replace(b'"10.0.0.30"', again)
        assert read(twice, before).row == whole(twice)


def test_nothing_is_kept_of_a_record_that_has_gone_or_become_small() -> None:
    def chunks() -> int:
        gc.collect()
        return sum(type(each) is Chunked for each in gc.get_objects())

    sink, none = a_sink(Database(ENDPOINT_SETS)), chunks()
    for last in (None, KeyValue(ECHO, record([]))):
        sink.apply([Event(ECHO, KeyValue(ECHO, record(ten())))])
        assert chunks() == none + 1
        sink.apply([Event(ECHO, last)])
        assert chunks() == none


@pytest.mark.parametrize("fields", [{"backends": []}, {"backends": {"10.0.0.1": {"http": 1}}}, {"nodes": {"n": 1}}])
def test_what_is_wrong_is_said_as_of_any_record(fields: dict[str, Any]) -> None:
    value = written(json.loads(record(ten())) | {"padding": {str(n): {"": {}} for n in range(9)}} | fields)
    with pytest.raises(RecordError) as expected:
        whole(value)
    with pytest.raises(RecordError) as found:
        read(value, read(record(ten())))
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("address", ["10.0.0.256", "127.0.0.1", "host"])
def test_an_address_that_none_may_have_costs_the_record_when_it_comes(address: str) -> None:
    before = read(record(ten()))
    with pytest.raises(RecordError, match=address):
        read(record(ten()).replace(b"10.0.0.13", address.encode()), before)


ENTRIES = st.lists(st.sampled_from([f"entry {n:02}".encode() for n in range(40)]), unique=True)


@given(ENTRIES, ENTRIES, st.booleans())
def test_entries_differ_by_those_that_only_one_text_has(old: list[bytes], new: list[bytes], in_order: bool) -> None:
    if in_order:
        old.sort()
        new.sort()
    texts = [b"".join(each + b'","' for each in of) for of in (old, new)]
    assert differing(texts[0], texts[1], b'","') == (set(old) - set(new), set(new) - set(old))


VERSIONS = st.one_of(
    SETS.map(lambda of: record(of)),
    SETS.map(lambda of: record(of, shared=False)),
    st.sampled_from([b"no record", None, record(ten()), record(ten(but=[13])), record([])]),
    st.just(record(ten()).replace(b"10.0.0.13", b"127.0.0.1")),
    st.just(record(ten()).replace(b"10.0.0.13", b"11.0.0.1")),
)


@given(st.lists(VERSIONS, max_size=8))
def test_the_row_is_what_the_last_version_says_that_can_be_used(versions: list[bytes | None]) -> None:
    db = Database(ENDPOINT_SETS)
    sink, form, wanted = a_sink(db), ROWS["services"], None
    for value in versions:
        sink.apply([Event(ECHO, KeyValue(ECHO, value) if value is not None else None)])
        with suppress(RecordError):
            wanted = form.decode(value, ADMISSION, 3, ECHO, None)[0] if value is not None else None
        assert list(db.snapshot().all(ENDPOINT_SETS)) == ([wanted] if wanted is not None else [])
