"""Each decoder of ``isthmus.bounds`` against a plain model of its type, and that none of them fails in another way."""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from isthmus import bounds
from isthmus.bounds import OutOfBounds, Syntax

LABEL = Syntax(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", most=63, meaning="a DNS label")

DECODERS: dict[str, Callable[[Any], object]] = {
    "port": bounds.port,
    "count": lambda value: bounds.count(value, least=-5, most=1000),
    "number": lambda value: bounds.number(value, least=0, most=60),
    "timestamp": bounds.timestamp,
    "duration": lambda value: bounds.duration(value, most=86_400),
    "text": lambda value: bounds.text(value, most=63),
    "address": bounds.address,
    "ip": bounds.ip,
    "packed": bounds.packed,
    "network": bounds.network,
    "syntax": LABEL.text,
}

HOSTILE: list[object] = [
    "9" * 4400,
    10**5000,
    -(10**5000),
    "²",
    "٣",
    "８０",
    "1_0",
    " 80",
    "+80",
    "0x50",
    "1e3",
    "",
    None,
    True,
    math.nan,
    math.inf,
    -math.inf,
    "nan",
    "inf",
    [],
    {},
    b"\xff\xfe",
    "\x00",
    "\ud800",
    "a" * 2_000_000,
    "9999-12-31T23:59:59Z",
    "0999-01-01T00:00:00Z",
    "0001-01-01T00:00:00+01:00",
    "2020-01-01T00:00:00+24:00",
    "2020-02-30T00:00:00Z",
    "2020-W01-1T00:00:00Z",
    "fe80::1%eth0",
    "fe80::%1/64",
    "10.0.0.1/255.0.0.0",
    "::ffff:10.0.0.1%0",
    "[" * 10_000,
]

ANYTHING = st.one_of(
    st.sampled_from(HOSTILE),
    st.integers(),
    st.floats(),
    st.text(),
    st.binary(),
    st.none(),
    st.booleans(),
    st.lists(st.integers()),
    st.text("0123456789.:-+TZ%/fhms ", max_size=40),
)


@pytest.mark.parametrize("decoder", DECODERS)
@given(value=ANYTHING)
def test_a_value_is_decoded_or_refused_in_one_way_with_a_short_printable_message(decoder: str, value: object) -> None:
    why = ""
    try:
        DECODERS[decoder](value)
    except OutOfBounds as error:
        why = str(error)
    assert len(why) < 250
    assert why.isprintable()


@pytest.mark.parametrize("decoder", sorted(DECODERS.keys() - {"text", "syntax"}))
def test_no_decoder_of_a_number_a_time_or_an_address_admits_a_hostile_value(decoder: str) -> None:
    for value in HOSTILE:
        with pytest.raises(OutOfBounds):
            DECODERS[decoder](value)


@given(st.integers(-70_000, 140_000))
def test_a_port_is_a_number_from_1_to_65535_as_an_int_or_as_text(value: int) -> None:
    for written in (value, str(value), str(value).encode()):
        if 1 <= value <= 65_535:
            assert bounds.port(written) == value
        else:
            with pytest.raises(OutOfBounds, match="a port, 1 to 65535"):
                bounds.port(written)


@given(st.integers(), st.integers(-1000, 1000), st.integers(0, 10**12))
def test_a_count_is_a_number_within_its_bounds(value: int, least: int, span: int) -> None:
    for written in (value, str(value)):
        if least <= value <= least + span:
            assert bounds.count(written, least=least, most=least + span) == value
        else:
            with pytest.raises(OutOfBounds, match=f"from {least} to {least + span}"):
                bounds.count(written, least=least, most=least + span)


@given(st.floats() | st.integers(), st.integers(-100, 100), st.integers(0, 1000))
@example(10**400, 0, 1000)
def test_a_number_is_finite_and_within_its_bounds(value: float, least: int, span: int) -> None:
    if math.isfinite(value if isinstance(value, float) else 0) and least <= value <= least + span:
        assert bounds.number(value, least=least, most=least + span) == value
    else:
        with pytest.raises(OutOfBounds):
            bounds.number(value, least=least, most=least + span)


@given(st.decimals(0, 60, places=3))
def test_decimal_text_is_the_number_it_writes(value: Any) -> None:
    assert bounds.number(str(value), most=60) == float(value)


ZONES = st.integers(-23 * 60, 23 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(datetime(2, 1, 1), datetime(9998, 1, 1), timezones=ZONES))
def test_a_timestamp_is_in_utc_and_within_1970_to_2200(value: datetime) -> None:
    if datetime(1970, 1, 1, tzinfo=UTC) <= value < datetime(2200, 1, 1, tzinfo=UTC):
        found = bounds.timestamp(value.isoformat())
        assert (found, found.tzinfo) == (value, UTC)
    else:
        with pytest.raises(OutOfBounds, match="from 1970 until 2200"):
            bounds.timestamp(value.isoformat())


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02t03:04:05z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.5Z", datetime(2026, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789+02:00", datetime(2026, 1, 2, 1, 4, 5, 123_456, tzinfo=UTC)),
        ("1970-01-01T00:00:00Z", bounds.EARLIEST),
    ],
)
def test_rfc_3339_is_read_with_its_fractions_and_zones(text: str, time: datetime) -> None:
    assert bounds.timestamp(text) == time


@given(st.datetimes(timezones=ZONES), st.floats(), st.integers())
def test_a_sum_of_a_time_and_any_seconds_is_within_1970_to_2200(time: datetime, seconds: float, more: int) -> None:
    for amount in (seconds, more):
        assert bounds.EARLIEST <= bounds.after(time, amount) < bounds.LATEST
        assert bounds.EARLIEST <= bounds.since_epoch(amount) < bounds.LATEST
        assert bounds.EARLIEST + bounds.span(amount) <= bounds.LATEST  # overflows nowhere


TERMS = st.lists(st.tuples(st.integers(0, 99_999), st.sampled_from(["h", "m", "s", "ms"])), min_size=1, max_size=4)


@given(TERMS, st.integers(0, 100_000))
def test_a_duration_is_the_sum_of_its_terms(terms: list[tuple[int, str]], most: int) -> None:
    written = "".join(f"{amount}{unit}" for amount, unit in terms)
    exact = sum(amount * {"h": 3_600_000, "m": 60_000, "s": 1000, "ms": 1}[unit] for amount, unit in terms) / 1000
    if exact <= most:
        assert bounds.duration(written, most=most) == exact
    else:
        with pytest.raises(OutOfBounds, match="duration"):
            bounds.duration(written, most=most)


@pytest.mark.parametrize("text", ["1", "h", "1h1h1h1h1h", "100000s", "1 h", "-1s", "1.5s", "1d", "1H"])
def test_what_the_gateway_api_calls_no_duration_is_none(text: str) -> None:
    with pytest.raises(OutOfBounds):
        bounds.duration(text, most=10**9)


def test_other_durations_may_have_days_and_more_digits() -> None:
    assert bounds.duration("604800s", units=("s",), digits=9, most=10**9) == 604_800
    assert bounds.duration("1d12h", units=("d", "h"), most=10**9) == 129_600


def _model(value: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An address as the standard library reads it, without zones and with IPv4-mapped ones as IPv4."""
    try:
        found = ipaddress.ip_address(value)
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address):
        return None if found.scope_id is not None else found.ipv4_mapped or found
    return found


ADDRESSES = st.one_of(
    st.ip_addresses().map(str),
    st.ip_addresses(v=6).map(lambda each: each.exploded.upper()),
    st.ip_addresses(v=4).map("::ffff:{}".format),
    st.ip_addresses(v=6).map("{}%eth0".format),
    st.text("0123456789abcdef.:%", max_size=50),
)


@given(ADDRESSES)
@example("01.2.3.4")
@example("::1.2.3.4")
def test_an_address_is_canonical_text_without_a_zone(value: str) -> None:
    expected = _model(value)
    if expected is None:
        with pytest.raises(OutOfBounds, match="IP address"):
            bounds.address(value)
    else:
        assert bounds.ip(value) == expected
        assert bounds.address(value) == str(expected) == bounds.address(str(expected))
        assert bounds.packed(value) == expected.packed


@given(st.ip_addresses(), st.integers(0, 128))
def test_a_network_has_a_prefix_length_and_no_bits_beyond_it(base: Any, length: int) -> None:
    if length > base.max_prefixlen:
        with pytest.raises(OutOfBounds):
            bounds.network(f"{base}/{length}")
        return
    wanted = ipaddress.ip_network(f"{base}/{length}", strict=False)
    assert bounds.network(str(wanted)) == wanted or str(wanted).startswith("::ffff:")
    if wanted.network_address != base:
        with pytest.raises(OutOfBounds):
            bounds.network(f"{base}/{length}")
    with pytest.raises(OutOfBounds):
        bounds.network(str(base))


def test_a_network_of_mapped_addresses_is_one_of_ipv4() -> None:
    assert bounds.network("::ffff:10.0.0.0/104") == ipaddress.ip_network("10.0.0.0/8")


def test_a_message_names_the_field_and_a_part_of_the_value() -> None:
    with pytest.raises(OutOfBounds) as raised:
        bounds.port("9" * 4400, field="spec.ports[0].port")
    assert str(raised.value).startswith("spec.ports[0].port: '99999")
    assert str(raised.value).endswith("… (4400 characters) is not a port, 1 to 65535")


def test_a_collection_has_no_more_entries_than_its_bound() -> None:
    assert bounds.size([1, 2], most=2) == [1, 2]
    with pytest.raises(OutOfBounds, match=r"spec\.hostnames: 3 entries, want 0 to 2"):
        bounds.size([1, 2, 3], most=2, field="spec.hostnames")


def test_a_syntax_matches_the_whole_of_a_short_text_and_its_digits_are_ascii() -> None:
    digits = Syntax(r"\d+", most=4, meaning="digits")
    assert digits.text("1234") == "1234"
    assert [digits.fits(each) for each in ("12345", "12\n", "٣", "²", "", None, 12)] == [False] * 7


DEPTHS = st.integers(0, 300)


@given(st.lists(st.tuples(DEPTHS, st.sampled_from(['{"a":', "[", '{"]}[{":', '["}\\\\\\"",'])), max_size=5))
def test_json_that_is_nested_too_deep_loses_what_is_too_deep_and_nothing_else(parts: list[tuple[int, str]]) -> None:
    members = [opening * depth + "1" + ("}" if ":" in opening[-1] else "]") * depth for depth, opening in parts]
    text = f"[{','.join(members)}]".encode()
    pruned = msgspec.json.decode(bounds.pruned(text))
    assert [deepest(each) < bounds.MAX_DEPTH for each in pruned] == [True] * len(parts)
    for (depth, _), each, member in zip(parts, pruned, members, strict=True):
        if depth < bounds.MAX_DEPTH:
            assert each == msgspec.json.decode(member)


def deepest(value: object) -> int:
    """Lists and maps within each other."""
    if isinstance(value, list):
        return 1 + max(map(deepest, value), default=0)
    return 1 + max(map(deepest, value.values()), default=0) if isinstance(value, dict) else 0
