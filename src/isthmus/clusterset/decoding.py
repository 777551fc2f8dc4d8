"""JSON of peers: decoded with bounds, encoded as they expect it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from ipaddress import IPv6Address, ip_address
from typing import Final, TypeVar

import msgspec

from isthmus.clusterset.errors import RecordError
from isthmus.model.addresses import reserved, usual
from isthmus.model.names import ClusterName, ServiceName, service_name
from isthmus.model.services import Labels, Protocol
from isthmus.times import parse, timestamp

T = TypeVar("T")

DNS_NAME: Final = re.compile(
    r"(?=.{1,253}\Z)([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)*[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z"
)


def decode(value: bytes, decoder: msgspec.json.Decoder[T], *, limit: int) -> T:
    """A value as a struct; RecordError where it is too large, no JSON, too deep, or has a field of the wrong type."""
    if len(value) > limit:
        raise RecordError(f"{len(value)} bytes, at most {limit} are taken")
    try:
        return decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise RecordError(str(error)) from None
    except UnicodeDecodeError:
        raise RecordError("it is not UTF-8") from None
    except RecursionError:
        raise RecordError("it is nested too deep") from None


def check_owner(
    *, cluster: str, namespace: str, name: str, expected_cluster: ClusterName, expected: ServiceName
) -> None:
    """A peer may only speak for itself, and a record only for its key."""
    if cluster != expected_cluster:
        raise RecordError(f"it speaks for cluster {cluster!r}, not for {expected_cluster}")
    if service_name(namespace, name) != expected:
        raise RecordError(f"it speaks for {namespace}/{name}, not for its key")


def address(text: str) -> str:  # hot:
    """An endpoint's address in canonical text; RecordError for what no endpoint may have, as Kubernetes has it."""
    if usual(text):
        return text
    found = _parsed(text)
    if why := reserved(found):
        raise RecordError(f"{text!r} cannot be an endpoint's address: it is {why}")
    return found


def _parsed(text: str) -> str:
    try:
        parsed = ip_address(text)
    except ValueError:
        raise RecordError(f"{text!r} is not an IP address") from None
    if isinstance(parsed, IPv6Address):
        if parsed.scope_id is not None:
            raise RecordError(f"{text!r} has a zone")
        parsed = parsed.ipv4_mapped or parsed
    return str(parsed)


def is_gateway(text: str) -> bool:
    """Whether this is host:port, and the host an address that another machine can have, or a DNS name."""
    host, _, port = text.rpartition(":")
    if not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
        return False
    if DNS_NAME.match(host) and not host.rpartition(".")[2].isdigit():
        return True
    try:
        address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except RecordError:
        return False
    return ":" not in host or host.startswith("[")


def protocol(text: str) -> Protocol | None:
    """A protocol we know; an absent one is TCP."""
    match text.upper():
        case "" | "TCP":
            return "TCP"
        case "UDP":
            return "UDP"
        case "SCTP":
            return "SCTP"
        case _:
            return None


def parse_timestamp(text: str) -> str:
    """A time in UTC and whole seconds, so that times compare as text."""
    try:
        time = parse(text)
    except ValueError:
        raise RecordError(f"{text!r} is not a time") from None
    if time.year <= 1:
        raise RecordError("its time is not set")
    return timestamp(time)


def wall_clock() -> datetime:
    """The time of day in UTC."""
    return datetime.now(UTC)


def labels(pairs: Iterable[tuple[str, str]]) -> Labels:
    """A map as rows have it."""
    return tuple(sorted(pairs))
