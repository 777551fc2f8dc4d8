"""HTTP to one API server: one session, errors translated once, dead connections found out.

A watch may be silent for minutes, so silence means nothing; TCP keepalive looks after the peer, and a peer that
is gone breaks the stream within half a minute.
"""

from __future__ import annotations

import os
import socket
import ssl
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from typing import Any, Final

import aiohttp

from isthmus import logs
from isthmus.config import ConfigError
from isthmus.kube.access import Access
from isthmus.kube.errors import Unreachable, failure, status_of
from isthmus.times import timestamp

CONNECT: Final = 5.0
ANSWER: Final = 30.0
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
)

_LINGERS: Final = sys.version_info < (3, 12, 7) or (3, 13, 0) <= sys.version_info < (3, 13, 1)
"""``True`` for versions of Python in which a TLS connection of an abandoned request waits for the server's close,
possibly for ever (python/cpython#118960). aiohttp can end it, and warns on other versions."""

NOT_YET_VALID: Final = 9
HAS_EXPIRED: Final = 10
"""OpenSSL's results of verifying a certificate's times (X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED)."""

MAX_SKEW: Final = 60.0
"""Seconds by which two clocks may differ before it is displayed. Leases and heartbeats do not depend on them;
certificates, tokens and drains do."""

log = logs.get("kube")


class Transport:
    """Requests and streams. Raises KubeError and its kinds, Expired for 410, and nothing else."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = access.bearer()
        connector: aiohttp.BaseConnector = (
            aiohttp.UnixConnector(str(access.socket), limit=0)
            if access.socket is not None
            else aiohttp.TCPConnector(limit=0, socket_factory=_socket, enable_cleanup_closed=_LINGERS)
        )
        self._session = aiohttp.ClientSession(
            connector=connector, headers={"Accept-Encoding": "identity", "User-Agent": "isthmus"}
        )
        self._failing: tuple[str, str] | None = None
        """Since when no request succeeds, and why; ``None`` while requests succeed."""
        self.skew = 0.0
        """Seconds by which this machine's clock is ahead of the API server's."""
        self.requests = 0

    def certificates(self) -> list[tuple[str, str]]:
        """The client certificate by which the API server knows us, if there is one: its name, and itself as PEM."""
        return [self._access.certificate] if self._access.certificate[1] else []

    def problems(self) -> list[str]:
        """Reason why the API server cannot be used, and a difference of the clocks, a sentence each."""
        problems = []
        if self._failing is not None:
            since, why = self._failing
            problems.append(f"the API server {self._access.server} {why} (since {since})")
        if abs(self.skew) > MAX_SKEW:
            how = "ahead of" if self.skew > 0 else "behind"
            problems.append(f"this machine's clock is {_duration(abs(self.skew))} {how} the API server's: set it")
        return problems

    def __repr__(self) -> str:
        return f"<Transport to {self._access.server}, {self.requests} requests>"

    async def close(self) -> None:
        """End every request and connection."""
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        what: str = "",
        seconds: float = ANSWER,
    ) -> bytes:
        """One request and its whole answer, with a timeout in seconds between any two parts."""
        headers = {"Content-Type": content_type} if body is not None else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=seconds)
        arguments = {"params": params, "data": body, "headers": headers, "timeout": timeout}
        async with self._open(method, path, what or f"{method} {path}", arguments) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence: float, what: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Stream an answer in chunks. Silence longer than ``silence`` seconds ends it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=silence)
        async with self._open("GET", path, what, {"params": params, "timeout": timeout}) as response:
            yield response.content.iter_any()

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, what: str, arguments: dict[str, Any]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        label = self._access.label
        what, server = (f"{label}: {what}", "the API server") if label else (what, self._access.server)
        try:
            response = await self._send(method, path, arguments)
            if response.status == 401 and self._renew():
                response.release()
                response = await self._send(method, path, arguments)
            self._answered(response)
            async with response:
                if response.status >= 400:
                    raise failure(what, status_of(response.status, await response.read()))
                yield response
        except TimeoutError:
            self._failed("does not answer")
            raise Unreachable(f"{what}: {server} does not answer") from None
        except (aiohttp.ClientError, OSError) as error:
            self._failed(f"cannot be reached: {_reason(error)}")
            raise Unreachable(f"{what}: {server}: {_reason(error)}") from None

    def _answered(self, response: aiohttp.ClientResponse) -> None:
        """Judge the API server by an answer: one that refuses a single request works."""
        if response.status == 401:
            self._failed("does not accept our credentials: 401 Unauthorized")
        elif response.status >= 500:
            self._failed(f"answers {response.status} {response.reason}")
        else:
            self._failing = None
        if date := response.headers.get("Date"):
            with suppress(ValueError, OverflowError):
                self.skew = time.time() - parsedate_to_datetime(date).timestamp()

    def _failed(self, reason: str) -> None:
        self._failing = (self._failing[0] if self._failing is not None else timestamp(), reason)

    async def _send(self, method: str, path: str, arguments: dict[str, Any]) -> aiohttp.ClientResponse:
        self.requests += 1
        headers = dict(arguments.get("headers") or {})
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        url = self._access.server + path
        tls: Any = self._access.tls if self._access.tls is not None else True
        name = self._access.server_name or None
        return await self._session.request(
            method, url, ssl=tls, server_hostname=name, allow_redirects=False, **{**arguments, "headers": headers}
        )

    def _renew(self) -> bool:
        """Read the token again; whether it is another one, and so worth a second try."""
        before = self._token
        try:
            self._token = self._access.bearer()
        except ConfigError as error:
            log.warning("token not renewed", why=str(error))
        return self._token != before


def _duration(seconds: float) -> str:
    """Seconds in the unit that people would choose."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds"


def _reason(error: Exception) -> str:
    """Message of the innermost cause that has one."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        reason = f"its certificate is not trusted: {error.certificate_error}"
        # Judged by our clock, which may be what is wrong.
        return f"{reason} (it is {timestamp()} by the clock of this machine)" if _about_time(error) else reason
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number and number > 0 else str(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection before it answered"
    return str(error) or type(error).__name__


def _about_time(error: aiohttp.ClientConnectorCertificateError) -> bool:
    """``True`` if a certificate is refused because it has ended, or begins in the future."""
    found = error.certificate_error
    return isinstance(found, ssl.SSLCertVerificationError) and found.verify_code in (NOT_YET_VALID, HAS_EXPIRED)


def _socket(info: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(info[0], info[1], info[2])
    made.setblocking(False)
    if info[0] in (socket.AF_INET, socket.AF_INET6):
        for option in _KEEPALIVE:
            made.setsockopt(*option)
    return made
