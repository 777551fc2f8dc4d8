"""HTTP to one API server: one session, errors translated once, dead connections found out.

A watch may be silent for minutes, so silence means nothing; TCP keepalive looks after the peer, and a peer that
is gone breaks the stream within half a minute.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp

from isthmus import logs
from isthmus.config import ConfigError
from isthmus.kube.access import Access
from isthmus.kube.errors import Unreachable, failure, status_of

CONNECT: Final = 5.0
ANSWER: Final = 30.0
_KEEPALIVE: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 25_000),
)

_LINGERS: Final = sys.version_info < (3, 12, 7)
"""Whether a TLS connection whose request was given up waits for the server's farewell, for ever where none comes
(python/cpython#118960); aiohttp can end it, and warns where Python needs no help."""

log = logs.get("kube")


class Transport:
    """Requests and streams. Raises KubeError and its kinds, Expired for 410, and nothing else."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._token = access.bearer()
        connector = aiohttp.TCPConnector(limit=0, socket_factory=_socket, enable_cleanup_closed=_LINGERS)
        self._session = aiohttp.ClientSession(
            connector=connector, headers={"Accept-Encoding": "identity", "User-Agent": "isthmus"}
        )
        self.requests = 0

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
    ) -> bytes:
        """One request and its whole answer."""
        headers = {"Content-Type": content_type} if body is not None else {}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=ANSWER)
        arguments = {"params": params, "data": body, "headers": headers, "timeout": timeout}
        async with self._open(method, path, what or f"{method} {path}", arguments) as response:
            return await response.read()

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence: float, what: str
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer that goes on: chunks as they come. Silence longer than this breaks it."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT, sock_read=silence)
        async with self._open("GET", path, what, {"params": params, "timeout": timeout}) as response:
            yield response.content.iter_any()

    @asynccontextmanager
    async def _open(
        self, method: str, path: str, what: str, arguments: dict[str, Any]
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        try:
            response = await self._send(method, path, arguments)
            if response.status == 401 and self._renew():
                response.release()
                response = await self._send(method, path, arguments)
            async with response:
                if response.status >= 400:
                    raise failure(what, status_of(response.status, await response.read()))
                yield response
        except TimeoutError:
            raise Unreachable(f"{what}: {self._access.server} does not answer") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(f"{what}: {self._access.server}: {_reason(error)}") from None

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
        except ConfigError as why:
            log.warning("token not renewed", why=str(why))
        return self._token != before


def _reason(error: Exception) -> str:
    """What went wrong, in the words of the innermost cause that has any."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return f"its certificate is not trusted: {error.certificate_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno
        return os.strerror(number) if number and number > 0 else str(error.os_error)
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "closed the connection before it answered"
    return str(error) or type(error).__name__


def _socket(info: tuple[Any, ...]) -> socket.socket:
    made = socket.socket(info[0], info[1], info[2])
    made.setblocking(False)
    if info[0] in (socket.AF_INET, socket.AF_INET6):
        for option in _KEEPALIVE:
            made.setsockopt(*option)
    return made
