"""Rotation of the authority by two bundles: when it begins, and what each step waits for. Pure.

    steady     one authority
    trusting   another one is trusted beside it and signs nothing yet
    signing    the other one signs everything; the first one is still trusted

The folder's files are the state, so a process continues at the step in which an earlier one ended. A step ends once
everything confirms it, and has done so for ``keys.rotation_pause``. Peers that do not confirm it hold it up for
``keys.rotation_wait`` at most; the own cluster holds it up for as long as it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final

import msgspec
from cryptography import x509
from msgspec import Struct

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus.clusterset import certificates, pki
from isthmus.clusterset.errors import PkiError
from isthmus.clusterset.pki import Folder
from isthmus.model.names import ClusterName
from isthmus.times import timestamp

FILE: Final = "rotation.json"
"""File of the folder with the progress of a rotation."""


class Step(StrEnum):
    """State of the authority."""

    STEADY = "steady"
    TRUSTING = "trusting"
    SIGNING = "signing"


class Progress(Struct, frozen=True):
    """Times at which a rotation and its present step began, RFC 3339."""

    began: str
    step_began: str


class Reader(Struct, frozen=True, kw_only=True):
    """A peer that reads the own etcd by a certificate, and what it confirmed to use."""

    certificate: bytes = b""
    """The certificate that was signed for it last."""
    holds_bundle: str = ""
    """Digest of the trust bundle by which it verifies the own etcd; empty if it confirmed none."""
    holds_certificate: str = ""
    """Digest of its certificate, likewise."""


def step(folder: Folder) -> Step:
    """The step that a folder's files are in."""
    if folder.waiting:
        return Step.TRUSTING
    return Step.SIGNING if folder.retiring else Step.STEADY


def due(authority: bytes, requested: str, now: datetime) -> str:
    """Reason why the authority is to be replaced now; empty if it is not.

    A request names a time: every authority made before it is to be replaced once it has come. So a request is carried
    out once, by whatever process reads it and however often. PkiError if it is no time.
    """
    certificate = x509.load_pem_x509_certificate(authority)
    begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if end - now < (end - begin) * pki.LEFT:
        return f"it ends at {end:%Y-%m-%d}"
    if not requested:
        return ""
    try:
        time = bounds.timestamp(requested)
    except OutOfBounds as error:
        raise PkiError(f"data.requested: {error}") from None
    return f"requested for {requested}" if begin + certificates.SKEW < time <= now else ""


def ending(authority: bytes, now: datetime) -> str:
    """Sentence about an authority that ends within two weeks, and within the last third of its life; else empty."""
    certificate = x509.load_pem_x509_certificate(authority)
    end = certificate.not_valid_after_utc
    if pki.lasts(certificate, now=now) or end - now > certificates.EXPIRY_WARNING:
        return ""
    return f"the authority {'has ended' if end <= now else 'ends'} at {timestamp(end)}, and everything that it signed"


def unconfirmed(
    current: Step,
    folder: Folder,
    readers: Mapping[ClusterName, Reader],
    manual: Collection[ClusterName],
    *,
    now: datetime | None = None,
) -> list[str]:
    """Peers that have not confirmed a step, each with the reason or the cure.

    One whose certificate has ended cannot confirm to trust the new authority. It is not waited for: what an issuer
    signed for it next may be by that one, and counts only after this step.
    """
    time = now or datetime.now(UTC)
    missing = (
        "has not confirmed {} yet; if not within two minutes, its isthmus keys is down, of an earlier release, or "
        "cannot reach this cluster's etcd"
    )
    reasons = []
    for name, reader in sorted(readers.items()):
        if current is Step.TRUSTING and any(end <= time for end in certificates.ends(reader.certificate)):
            continue
        if current is Step.TRUSTING and reader.holds_bundle != pki.digest(folder.bundle):
            reasons.append(f"{name} {missing.format('the new authority')}")
        if current is Step.SIGNING and not _uses_new(reader, folder.authority):
            reasons.append(f"{name} {missing.format('its new certificate')}")
    return reasons + [f"{name} joined by hand: run isthmus clusters refresh there" for name in sorted(manual)]


def _uses_new(reader: Reader, signer: bytes) -> bool:
    return pki.issued(reader.certificate, signer) and reader.holds_certificate == pki.digest(reader.certificate)


def overdue(began: datetime, wait: float, now: datetime) -> bool:
    """True if a step ends without the peers that did not confirm it."""
    return wait > 0 and now - began >= bounds.span(wait)


def progress(folder: Folder, now: str) -> Progress:
    """Progress of a rotation; of one that was begun by hand, from now on. An unreadable file counts as none."""
    try:
        stored = msgspec.json.decode(folder.read(FILE), type=Progress)
        for time in (stored.began, stored.step_began):
            bounds.timestamp(time)
    except (PkiError, msgspec.MsgspecError, OutOfBounds):
        return Progress(now, now)
    return stored
