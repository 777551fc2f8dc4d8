"""Authentication: the lab's token, and service account tokens that are signed with it.

A token of a service account is a JWT (HS256) that this server signs with its own token, so it needs no store and
outlives a restart. There is no authorization: any valid token may do everything.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from math import floor
from typing import Any, Final

import msgspec

ISSUER: Final = "https://kubernetes.default.svc.cluster.local"
LIFETIME: Final = 3600
LEAST_LIFETIME: Final = 600
MOST_LIFETIME: Final = 1 << 32
"""Seconds: the bound of a TokenRequest."""


class Tokens:
    """Makes and judges tokens. An empty secret lets everybody in."""

    def __init__(self, secret: str, *, clock: Callable[[], float] = time.time) -> None:
        self._secret = secret
        self._clock = clock

    def admits(self, token: str) -> bool:
        """True if the token is valid."""
        if not self._secret or hmac.compare_digest(_bytes(token), _bytes(self._secret)):
            return True
        content, _, signature = token.rpartition(".")
        if not hmac.compare_digest(_bytes(signature), _bytes(self._signature(content))):
            return False
        claims = msgspec.json.decode(_decoded(content.partition(".")[2]))
        exp: float = claims["exp"]
        return exp > self._clock()

    def issue(
        self, namespace: str, name: str, uid: str, *, seconds: int = LIFETIME, audiences: Sequence[str] = ()
    ) -> tuple[str, float]:
        """A token of a service account, and when it ends."""
        issued_at = self._clock()
        ends = issued_at + min(max(LEAST_LIFETIME, seconds), MOST_LIFETIME)
        claims: dict[str, Any] = {
            "aud": list(audiences) or [ISSUER],
            "exp": floor(ends),
            "iat": floor(issued_at),
            "iss": ISSUER,
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "kubernetes.io": {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}},
        }
        content = f"{_encoded({'alg': 'HS256', 'typ': 'JWT'})}.{_encoded(claims)}"
        return f"{content}.{self._signature(content)}", ends

    def _signature(self, content: str) -> str:
        digest = hmac.new(_bytes(self._secret), _bytes(content), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _encoded(value: Any) -> str:
    return base64.urlsafe_b64encode(msgspec.json.encode(value)).decode().rstrip("=")


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _bytes(text: str) -> bytes:
    """Encode a header value, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")
