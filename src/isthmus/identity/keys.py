"""Keys by which a cluster's nodes sign the identity of a caller, and by which another cluster's nodes verify it.

Each cluster has an X25519 pair. Two clusters derive the same secret of a day for a direction, sender to receiver, from
the private key of one and the public key of the other, and from that a key of each epoch of a minute (HKDF-SHA256, RFC
5869). A secret of a day reveals neither the private key nor another day's or another direction's; the key of an epoch
reveals no other.

A sender signs by the key of the present epoch. A receiver accepts those of the epochs before and after as well, so that
clocks may be a minute apart.
"""

from __future__ import annotations

import math
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

EPOCH_SECONDS: Final = 60
EPOCHS_AHEAD: Final = 60
"""Epochs whose keys the kernel has before they begin: an hour."""
EPOCHS_OF_DAY: Final = 24 * 60 * 60 // EPOCH_SECONDS
DAY_SECRET_BYTES: Final = 32
EPOCH_KEY_BYTES: Final = 16
"""Length of a key of SipHash-2-4, by which the kernel signs."""
NUMBERS: Final = 256
"""Number of key numbers. A number is one byte of the option, and recurs after four hours."""


def new_private_key() -> bytes:
    """Make an X25519 private key of 32 random bytes."""
    return X25519PrivateKey.generate().private_bytes_raw()


def public_key(private_key: bytes) -> bytes:
    """Return the 32 bytes of the public key; ValueError if the private key has another length than 32."""
    return X25519PrivateKey.from_private_bytes(private_key).public_key().public_bytes_raw()


def shared_secret(private_key: bytes, peer_public_key: bytes) -> bytes:
    """Return the X25519 secret of two clusters, from which :func:`day_secret` derives.

    ValueError if a key has another length than 32, or if the public key is a point of low order, with which everybody
    shares the same secret (RFC 7748, section 6.1).
    """
    public = X25519PublicKey.from_public_bytes(peer_public_key)
    return X25519PrivateKey.from_private_bytes(private_key).exchange(public)


def day_secret(shared: bytes, *, sender: str, receiver: str, day: int) -> bytes:
    """Derive the secret of a day for calls from a cluster to another one, from what they share."""
    return _derived(shared, f"isthmus/pair/{sender}/{receiver}/{day}", DAY_SECRET_BYTES)


def epoch_key(secret: bytes, epoch: int) -> bytes:
    """Derive the key of an epoch from the secret of its day."""
    return _derived(secret, f"isthmus/epoch/{epoch}", EPOCH_KEY_BYTES)


def _derived(secret: bytes, info: str, length: int) -> bytes:
    return HKDF(hashes.SHA256(), length, salt=None, info=info.encode()).derive(secret)


def epoch_at(now: float) -> int:
    """Return the epoch of a Unix time in seconds: by its key a sender signs."""
    return math.floor(now / EPOCH_SECONDS)


def kept_epochs(now: float) -> range:
    """Return the epochs whose keys the kernel has at a Unix time: those that are valid, and those of the next hour.

    The kernel goes on to them by its own clock, so that a node signs and verifies for an hour without its agent. Which
    of them are valid it knows too (``bpf/verify.h``).
    """
    epoch = epoch_at(now)
    return range(epoch - 1, epoch + EPOCHS_AHEAD + 1)


def day_of(epoch: int) -> int:
    """Return the day of an epoch, in days since 1970 in UTC."""
    return epoch // EPOCHS_OF_DAY


def kept_days(now: float) -> range:
    """Return the days whose secrets are kept at a Unix time: yesterday to the day after tomorrow.

    Nodes sign for two days by what they have when the process that derives the secrets is down.
    """
    today = day_of(epoch_at(now))
    return range(today - 1, today + 3)


def number_of(epoch: int) -> int:
    """Return the number of an epoch's key, as it is in the option."""
    return epoch % NUMBERS
