"""The decoding boundary: values of unknown origin become values of bounded types here, or are refused.

Sources are tenants' objects, peers' records, files, packets, Envoy, requests and command lines. Python's own
conversions admit more than their caller expects: ``int`` reads ``٣`` and fails on 4,300 digits, ``isdigit`` accepts
``²``, ``datetime`` overflows in arithmetic near the year 9999 and formats the year 999 with three digits,
``ip_address`` keeps the zone of ``fe80::1%eth0``, and a regular expression runs over megabytes. They are called in this
module alone; ``tools/boundary.py`` finds calls elsewhere.

Each function returns a value within its bounds or raises OutOfBounds, whatever it is given. ``field`` names the value
in the message (``spec.ports[0].port``). Text is ASCII wherever it stands for a number, a time or an address.
"""

from __future__ import annotations

import re
import sys
from collections import deque
from collections.abc import Collection, Sequence, Sized
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from socket import AF_INET, inet_pton
from typing import Any, Final, TypeVar

import msgspec

C = TypeVar("C")
S = TypeVar("S", bound=Sized)
T = TypeVar("T")

IPAddress = IPv4Address | IPv6Address
IPNetwork = IPv4Network | IPv6Network

MAX_PORT: Final = 65_535
MAX_INT32: Final = 2**31 - 1
MAX_INT64: Final = 2**63 - 1

EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(2200, 1, 1, tzinfo=UTC)
"""Bounds of timestamps, EARLIEST included and LATEST not. ``datetime`` ends in the year 9999: no sum of a timestamp and
some duration overflows, as long as the duration's own bound is below a thousand years."""

MAX_DEPTH: Final = 100
"""Lists and maps within each other in JSON. Structs of ours have a tenth; Python's stack ends at a thousand."""

MAX_SHOWN: Final = 72
"""Characters of a refused value that a message repeats."""

_MAX_WINDOW_LOG: Final = 23
"""Logarithm of the largest window that a decoder allocates, 8 MiB, which RFC 8878 recommends for all decoders."""
_SPAN: Final = (LATEST - EARLIEST).total_seconds()
_MAX_ADDRESS: Final = len("0000:0000:0000:0000:0000:ffff:255.255.255.255")
_MAX_NETWORK: Final = _MAX_ADDRESS + len("/128")
_MAX_TIMESTAMP: Final = len("2006-01-02T15:04:05.999999999+07:00")
_MAPPED: Final = IPv6Network("::ffff:0:0/96")

_TIMESTAMP: Final = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt]([01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(\.[0-9]{1,9})?([Zz]|[+-][0-9]{2}:[0-9]{2})"
)
_DECIMAL: Final = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")
_DURATION: Final = re.compile(r"([0-9]{1,9}(ms|[dhms])){1,4}")
_TERM: Final = re.compile(r"([0-9]+)([a-z]+)")
_MAX_TERMS: Final = len("000000000ms") * 4
_MILLISECONDS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNPRINTABLE: Final = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


_JSON_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\Z)|[\[\]{}]', re.DOTALL)


class OutOfBounds(ValueError):  # noqa: N818 about the value, not about us
    """A value is not of its type, or beyond a bound. The message names the field, the value (cut) and the bound."""


def port(value: object, *, field: str = "") -> int:
    """A port, 1 to 65535, from a number or from text of at most five digits."""
    result = _integer(value, digits=5)
    if result is None or not 0 < result <= MAX_PORT:
        raise _refused(value, "a port, 1 to 65535", field)
    return result


def count(value: object, *, least: int = 0, most: int, field: str = "") -> int:
    """A whole number from ``least`` to ``most``, from a number or from text with no more digits than the bounds."""
    result = _integer(value, digits=max(len(str(abs(least))), len(str(abs(most)))))
    if result is None or not least <= result <= most:
        raise _refused(value, f"a whole number from {least} to {most}", field)
    return result


def number(value: object, *, least: float = 0.0, most: float, field: str = "") -> float:
    """A finite number from ``least`` to ``most``, from a number or from decimal text without an exponent."""
    written = _ascii(value)
    result = float(written) if written is not None and _DECIMAL.fullmatch(written) else value
    # Compared before it is converted: NaN is within no bounds, and an int that no float can hold is beyond all.
    if not isinstance(result, int | float) or isinstance(result, bool) or not least <= result <= most:
        raise _refused(value, f"a number from {least:g} to {most:g}", field)
    return float(result)


def timestamp(value: object, *, field: str = "") -> datetime:
    """A time in UTC from text of RFC 3339, from 1970 until 2200. Digits beyond microseconds are dropped."""
    written = _ascii(value, most=_MAX_TIMESTAMP)
    if written is not None and _TIMESTAMP.fullmatch(written):
        try:
            result = datetime.fromisoformat(written.upper()).astimezone(UTC)
        except (ValueError, OverflowError):  # no such day or zone, or its year in UTC is 0 or 10000
            pass
        else:
            if EARLIEST <= result < LATEST:
                return result
    raise _refused(value, "a time of RFC 3339 from 1970 until 2200", field)


def clamped(time: datetime) -> datetime:
    """A time of another decoder (a certificate's) within EARLIEST and LATEST, which stand for those beyond."""
    return min(max(time, EARLIEST), LATEST - timedelta(seconds=1))


def span(seconds: float) -> timedelta:
    """A span of time, at most that from EARLIEST to LATEST: added to any timestamp it does not overflow."""
    return timedelta(seconds=min(_SPAN, max(-_SPAN, seconds)))  # in this order, NaN becomes a bound as well


def after(time: datetime, seconds: float) -> datetime:
    """The sum of a time and seconds, which may be negative; within EARLIEST and LATEST."""
    return clamped(clamped(time) + span(seconds))


def since_epoch(seconds: float) -> datetime:
    """The time of a Unix timestamp in UTC, within EARLIEST and LATEST."""
    return after(EARLIEST, seconds)


def duration(
    value: object,
    *,
    units: Collection[str] = ("h", "m", "s", "ms"),
    digits: int = 5,
    least: float = 0.0,
    most: float,
    field: str = "",
) -> float:
    """Seconds of ``1h30m`` or ``500ms``: one to four terms of a number and a unit, in any order.

    Units and digits of a number are those of the Gateway API's durations (GEP-2257), or others of ``ms``, ``s``, ``m``,
    ``h`` and ``d`` (a day), and nine digits at most.
    """
    written = _ascii(value, most=_MAX_TERMS)
    if written is not None and _DURATION.fullmatch(written):
        terms = _TERM.findall(written)
        result = sum(int(amount) * _MILLISECONDS[unit] for amount, unit in terms) / 1000
        if all(unit in units and len(amount) <= digits for amount, unit in terms) and least <= result <= most:
            return result
    raise _refused(value, f"a duration such as 1h30m (units {', '.join(units)}), {least:g} to {most:g} seconds", field)


def text(value: object, *, least: int = 0, most: int, field: str = "") -> str:
    """Text of ``least`` to ``most`` characters without control characters, line ends and halves of a surrogate pair."""
    if not isinstance(value, str) or not least <= len(value) <= most or _UNPRINTABLE.search(value):
        raise _refused(value, f"text of {least} to {most} printable characters", field)
    return value


def choice(value: object, options: Collection[C], *, field: str = "") -> C:
    """The one of some options that a value is equal to."""
    result = next((each for each in options if each == value), None)
    if result is None:
        raise _refused(value, f"one of {', '.join(map(str, options))}", field)
    return result


def size(value: S, *, least: int = 0, most: int, field: str = "") -> S:
    """A list, a map or text as it is, if it has ``least`` to ``most`` entries."""
    if not least <= len(value) <= most:
        raise OutOfBounds(f"{_prefix(field)}{len(value)} entries, want {least} to {most}")
    return value


packed_ipv4: Final = partial(inet_pton, AF_INET)
"""The four bytes of canonical IPv4 text, for hot loops: nearly all addresses are, and the C function reads nothing else
(no leading zeros, no space). OSError, ValueError or TypeError for anything else, which ``address`` then decodes."""


def address(value: object, *, field: str = "") -> str:  # hot:
    """An IP address as canonical text: ``2001:DB8:0::1`` is ``2001:db8::1``, ``::ffff:10.0.0.1`` is ``10.0.0.1``.

    An address with a zone (``fe80::1%eth0``) is refused: it has a meaning on one machine only.
    """
    try:
        packed_ipv4(value)  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError):
        return str(ip(value, field=field))
    return value  # type: ignore[return-value]


def packed(value: object, *, field: str = "") -> bytes:  # hot:
    """The four or sixteen bytes of an IP address; see :func:`address`."""
    try:
        return packed_ipv4(value)  # type: ignore[arg-type]
    except (OSError, ValueError, TypeError):
        return ip(value, field=field).packed


def addresses(values: Sequence[str], *, field: str = "") -> list[str]:  # hot:
    """IP addresses as canonical text, in their order. ``{}`` in ``field`` is the position of one that is refused."""
    try:  # all of them in one go, as nearly always
        deque(map(packed_ipv4, values), maxlen=0)
    except (OSError, ValueError, TypeError):
        return [address(each, field=field.format(position)) for position, each in enumerate(values)]
    return list(values)


def ip(value: object, *, field: str = "") -> IPAddress:
    """An IP address without a zone as an object; an IPv4-mapped IPv6 address is the IPv4 one."""
    result = _parsed(value)
    if result is None:
        raise _refused(value, "an IP address" if not _zoned(value) else "an IP address without a zone", field)
    return result


def network(value: object, *, field: str = "") -> IPNetwork:
    """A range of addresses with a prefix length and no bits beyond it; one of IPv4-mapped addresses is of IPv4."""
    written = _ascii(value, most=_MAX_NETWORK)
    base, slash, length = written.partition("/") if written is not None else ("", "", "")
    if slash and "%" not in base and len(length) <= 3 and length.isdigit():
        try:
            result = ip_network(written or "")
        except ValueError:
            pass
        else:
            if isinstance(result, IPv6Network) and result.subnet_of(_MAPPED):
                return IPv4Network((result.network_address.packed[-4:], result.prefixlen - _MAPPED.prefixlen))
            return result
    raise _refused(value, "a range of IP addresses such as 10.0.0.0/8, without bits beyond the prefix", field)


class Syntax:
    """A regular expression of ours with a bound of length, which is checked before the expression runs.

    The expression is a constant that matches in linear time, and ``\\d`` and ``\\w`` in it are ASCII. ``meaning``
    completes the sentence "it is not …" of the error.
    """

    def __init__(self, pattern: str, *, most: int, meaning: str) -> None:
        self._pattern = re.compile(pattern, re.ASCII)
        self._most = most
        self._meaning = meaning

    def __repr__(self) -> str:
        return f"<Syntax of {self._meaning}, at most {self._most} characters>"

    def fits(self, value: object) -> bool:
        """True if the whole text is of this syntax."""
        return self.match(value) is not None

    def match(self, value: object) -> re.Match[str] | None:
        """The match of the whole text; ``None`` if it is too long or of another syntax."""
        return self._pattern.fullmatch(value) if isinstance(value, str) and len(value) <= self._most else None

    def search(self, text: str) -> re.Match[str] | None:
        """The first match within the text's beginning, of the length that is the bound."""
        return self._pattern.search(text[: self._most])

    def text(self, value: object, *, field: str = "") -> str:
        """The text, if it is of this syntax."""
        result = self.match(value)
        if result is None:
            raise _refused(value, self._meaning, field)
        return result[0]


def json(text: bytes | msgspec.Raw, decoder: msgspec.json.Decoder[T]) -> T:
    """A value of JSON; msgspec.MsgspecError if it is none, or not of the decoder's type.

    What is nested deeper than MAX_DEPTH may be ``null``: one object that is, among a thousand of a list, costs none of
    the others.
    """
    try:
        try:
            return decoder.decode(text)
        except RecursionError:
            return decoder.decode(pruned(bytes(text)))
    except UnicodeDecodeError as why:
        raise msgspec.DecodeError(f"it is not UTF-8: {why.reason}") from None


def inflated(data: bytes, *, most: int, field: str = "") -> bytes:
    """The content of one whole Zstandard frame (RFC 8878), of ``most`` bytes at most: no more is ever decompressed."""
    zstd = _zstd()
    decompressor = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _MAX_WINDOW_LOG})
    try:
        content: bytes = decompressor.decompress(data, max_length=most + 1)
    except zstd.ZstdError as error:
        raise OutOfBounds(f"{_prefix(field)}no frame of Zstandard: {error}") from None
    if len(content) > most:
        raise OutOfBounds(f"{_prefix(field)}more than {most} bytes are compressed in {len(data)}")
    if not decompressor.eof or decompressor.unused_data:
        raise OutOfBounds(f"{_prefix(field)}not one whole frame of Zstandard")
    return content


def deflated(content: bytes) -> bytes:
    """A Zstandard frame of this content, which :func:`inflated` takes."""
    return bytes(_zstd().compress(content))


def _zstd() -> Any:
    """Python's module, or its backport for earlier versions. Imported late, since few processes need it."""
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    return zstd


def pruned(text: bytes) -> bytes:
    """JSON with ``null`` for each list and map that is deeper than MAX_DEPTH; text that is no JSON stays none.

    It takes ten times as long as decoding, so it is for what a decoder has refused.
    """
    parts: list[bytes] = []
    depth = begin = 0
    for token in _JSON_TOKEN.finditer(text):
        mark = token[0]
        if mark in b"[{":
            depth += 1
            if depth == MAX_DEPTH + 1:
                parts += (text[begin : token.start()], b"null")
        elif mark in b"]}":
            depth -= 1
            if depth == MAX_DEPTH:
                begin = token.end()
    return b"".join((*parts, text[begin:])) if depth <= MAX_DEPTH else b""


def shown(value: object) -> str:
    """A value for a message: printable, and MAX_SHOWN characters at most."""
    match value:
        case str() | bytes():
            whole = repr(value[:MAX_SHOWN])
            if len(value) <= MAX_SHOWN and len(whole) <= MAX_SHOWN:
                return whole
            return f"{whole[: MAX_SHOWN - 24]}… ({len(value)} {'characters' if isinstance(value, str) else 'bytes'})"
        case int() if value.bit_length() > 128:  # its digits cost time in the square of their number
            return f"a number of {value.bit_length()} bits"
        case int() | float() | None:
            return str(value)
        case _:
            return f"a value of type {type(value).__name__}"[:MAX_SHOWN]


def _refused(value: object, bound: str, field: str) -> OutOfBounds:
    return OutOfBounds(f"{_prefix(field)}{shown(value)} is not {bound}")


def _prefix(field: str) -> str:
    return f"{field}: " if field else ""


def _ascii(value: object, *, most: int = 64) -> str | None:
    """ASCII text, or bytes that are, of at most ``most`` characters."""
    if not isinstance(value, str | bytes) or len(value) > most or not value.isascii():
        return None
    return value if isinstance(value, str) else value.decode()


def _integer(value: object, *, digits: int) -> int | None:
    """An integer that is one, or the text of one that has at most ``digits`` digits."""
    if isinstance(value, int):
        return None if isinstance(value, bool) else value
    written = _ascii(value, most=digits + 1)
    bare = written.removeprefix("-") if written is not None else ""
    return int(written or "") if bare.isdigit() and len(bare) <= digits else None


def _parsed(value: object) -> IPAddress | None:
    written = _ascii(value, most=_MAX_ADDRESS)
    if written is None or "%" in written:
        return None
    try:
        result = ip_address(written)
    except ValueError:
        return None
    mapped = result.ipv4_mapped if isinstance(result, IPv6Address) else None
    return mapped or result


def _zoned(value: object) -> bool:
    return isinstance(value, str) and "%" in value[: _MAX_ADDRESS + 1]
