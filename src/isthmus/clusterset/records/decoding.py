"""JSON of peers: decoded with bounds, encoded as they expect it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta

from isthmus import bounds
from isthmus.bounds import OutOfBounds, Syntax
from isthmus.clusterset.errors import RecordError
from isthmus.model.addresses import reserved, usual
from isthmus.model.names import ClusterName, ServiceName, service_name
from isthmus.model.services import Labels, Protocol
from isthmus.times import timestamp

T = TypeVar("T")

DNS_NAME: Final = Syntax(
    r"([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\.)*(?!\d+\Z)[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?",
    most=253,
    meaning="a DNS name",
)
"""A name whose last label is no number, so that it is no address either (RFC 3696 §2)."""


Text = Annotated[str, Meta(max_length=253)]
"""The name of a port, a node, a zone or a host: Kubernetes allows none that is longer."""


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
    """Raise RecordError if a record names another cluster than its publisher or another service than its key."""
    if cluster != expected_cluster:
        raise RecordError(f"it speaks for cluster {cluster!r}, not for {expected_cluster}")
    if service_name(namespace, name) != expected:
        raise RecordError(f"it speaks for {namespace}/{name}, not for its key")


def address(text: str) -> str:  # hot:
    """An endpoint's address in canonical text; RecordError for one that Kubernetes refuses as an endpoint's."""
    if usual(text):
        return text
    try:
        address = bounds.address(text)
    except OutOfBounds as error:
        raise RecordError(str(error)) from None
    if reason := reserved(address):
        raise RecordError(f"{text!r} cannot be an endpoint's address: it is {reason}", "AddressNotAllowed")
    return address


def is_gateway(text: str) -> bool:
    """True for host:port with a DNS name or an address. Callers that connect judge the address."""
    host, _, port = text.rpartition(":")
    try:
        bounds.port(port)
        if DNS_NAME.fits(host):
            return True
        bounds.address(host[1:-1] if host.startswith("[") and host.endswith("]") else host)
    except OutOfBounds:
        return False
    return ":" not in host or host.startswith("[")


def protocol(text: str) -> Protocol | None:
    """Return a known protocol, otherwise ``None``; an absent one is TCP."""
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
    """A time in UTC and whole seconds, so that times compare as text; RecordError if it is out of bounds."""
    try:
        return timestamp(bounds.timestamp(text))
    except OutOfBounds as error:
        raise RecordError(str(error)) from None


def wall_clock() -> datetime:
    """The time of day in UTC."""
    return datetime.now(UTC)


def labels(pairs: Iterable[tuple[str, str]]) -> Labels:
    """Convert a map to a row's labels, sorted by key."""
    return tuple(sorted(pairs))
