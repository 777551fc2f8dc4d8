"""Calls to an etcd: endpoints, TLS, the token of a user, and the translation of gRPC's errors.

A channel per endpoint is made when the session opens; calls go to one endpoint until it cannot be reached, then to
the next. A channel is never closed while the session is open: closing cancels the calls of others on it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import grpc
import grpc.aio

from isthmus import bounds, statefile
from isthmus.etcd import wire
from isthmus.etcd.errors import Denied, EtcdError, outdated, translated
from isthmus.model.hosts import joined
from isthmus.reflector import Transient

RENEWALS: Final = 10
"""Largest number of repetitions of a call with a new token."""
MESSAGE_LIMIT: Final = 32 * 1024 * 1024
OPTIONS: Final = (
    ("grpc.max_receive_message_length", MESSAGE_LIMIT),
    ("grpc.max_send_message_length", MESSAGE_LIMIT),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
)


END: Final[Any] = vars(grpc.aio)["EOF"]  # missing from the package's type stubs


class SessionTimings(NamedTuple):
    """Seconds of a session. Processes run with the defaults."""

    check_files_every: float = 5.0
    """Between checks whether the certificate files were renewed."""
    ping_every: float = 10.0
    """Between pings; an etcd closes connections that ping more often than every 5 s."""
    ping_timeout: float = 5.0
    """Seconds without an answer to a ping after which a connection is abandoned."""

    def options(self) -> tuple[tuple[str, int], ...]:
        """The pings, as options of a channel."""
        timeout = round(self.ping_timeout * 1000)
        return (
            ("grpc.keepalive_time_ms", round(self.ping_every * 1000)),
            ("grpc.keepalive_timeout_ms", timeout),
            ("grpc.http2.ping_timeout_ms", timeout),  # without it a silent connection is noticed after a minute
        )


TIMINGS: Final = SessionTimings()


class Tls(NamedTuple):
    """Files of the server's CA and of the client certificate. Empty selects the system's CAs and no certificate."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    server_name: str = ""
    """Name that the server's certificate must have, if not the endpoint's."""

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """Modification time, size and inode of each file: differs after a renewal."""
        return tuple(statefile.stamp(path) for path in (self.ca_file, self.cert_file, self.key_file) if path)

    def credentials(self) -> grpc.ChannelCredentials:
        """The files' contents for gRPC. Raises EtcdError that names the unreadable one."""
        return grpc.ssl_channel_credentials(_read(self.ca_file), _read(self.key_file), _read(self.cert_file))


class Credentials(NamedTuple):
    """An etcd user."""

    username: str
    password: str


class Transport:
    """The channels of one session, and the token of its user. Used inside the session's ``async with``."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        tls: Tls | None,
        credentials: Credentials | None,
        timeout: float,
        timings: SessionTimings,
    ) -> None:
        if not endpoints:
            raise EtcdError("no etcd endpoint is configured")
        self.endpoints = tuple(endpoints)
        self._tls = tls
        self._credentials = credentials
        self._timeout = timeout
        self._check_files_every = timings.check_files_every
        self._options = (*OPTIONS, *timings.options())
        self._channels: list[Any] = []
        self._retired: list[Any] = []
        self._stamp: tuple[tuple[int, ...], ...] = ()
        self._checked = 0.0
        self._current = 0
        self.token = ""

    @property
    def endpoint(self) -> str:
        """The endpoint that calls go to now."""
        return self.endpoints[self._current]

    def open(self) -> None:
        """Create the channels; they connect with the first call."""
        self._stamp = self._tls.stamp() if self._tls else ()
        self._channels = [self._channel(endpoint) for endpoint in self.endpoints]

    async def close(self) -> None:
        """End every call and connection."""
        channels, self._channels, self._retired = [*self._channels, *self._retired], [], []
        for channel in channels:
            await channel.close()

    async def call(self, method: wire.Method, request: Any, *, timeout: float | None = None) -> Any:
        """A unary call. It is repeated, with a new token where it had one, when users or rights changed under it.

        Such changes come several in a row, and each ends all tokens.
        """
        for last in (*[False] * RENEWALS, True):
            index, token = self._current, ""
            try:
                metadata = await self._metadata()
                token = self.token
                call = method.on(self._open_channel(index))
                return await call(request, timeout=timeout or self._timeout, metadata=metadata)
            except grpc.aio.AioRpcError as error:
                if not last and outdated(error, token=self._credentials is not None):
                    if self.token == token:  # else another call has renewed it meanwhile
                        self.token = ""
                    continue
                raise self.failed(error, index, token=token) from None
        raise AssertionError("unreachable")

    async def stream(self, method: wire.Method, *, leader: bool = False) -> tuple[Any, int]:
        """A bidirectional stream and the index of its endpoint; pass the stream's errors to :meth:`failed`."""
        index = self._current
        try:
            metadata = await self._metadata()
        except grpc.aio.AioRpcError as error:
            raise self.failed(error, index, token=self.token) from None
        if leader:  # a member without a leader ends the stream instead of falling silent
            metadata = (*metadata, ("hasleader", "true"))
        return method.on(self._open_channel(index))(metadata=metadata), index

    def failed(self, error: grpc.aio.AioRpcError, index: int, *, token: str) -> Exception:
        """Translate the error of a call that used ``token``; from an unreachable endpoint later calls go to the next.

        The token is not used again after its connection: an etcd that lost its data answers a call with an earlier
        token only when its log has grown to where the token was given, and a watch maybe never.
        """
        translation = translated(error, self.endpoints[index])
        unreachable = isinstance(translation, Transient) and not isinstance(translation, Denied)
        if unreachable:
            self.avoid(index)
        if unreachable or outdated(error, token=self._credentials is not None):
            self.forget_token(token)
        return translation

    def forget_token(self, token: str) -> None:
        """Authenticate again before the next call, unless another call has done so since it used ``token``."""
        if self.token == token:
            self.token = ""

    def avoid(self, index: int) -> None:
        """Make the next endpoint the current one, unless another call has done so."""
        if index == self._current:
            self._current = (index + 1) % len(self.endpoints)

    def _open_channel(self, index: int) -> Any:
        if not self._channels:
            raise EtcdError("this etcd session is closed; use it inside 'async with'")
        if self._tls is not None and time.monotonic() - self._checked > self._check_files_every:
            self._checked = time.monotonic()
            self._renew(self._tls)
        return self._channels[index]

    def _renew(self, tls: Tls) -> None:
        """Use new channels for new calls once certificates were renewed; open streams stay on the old ones."""
        if (stamp := tls.stamp()) == self._stamp:
            return
        try:
            fresh = [self._channel(endpoint) for endpoint in self.endpoints]
        except EtcdError:
            return  # the renewal is half done: the next check sees all of it
        self._retired += self._channels
        self._channels, self._stamp = fresh, stamp

    async def _metadata(self) -> tuple[tuple[str, str], ...]:
        if self._credentials is None:
            return ()
        if self.token and self._open_channel(self._current).get_state() is not grpc.ChannelConnectivity.READY:
            self.token = ""  # see failed(): this connection ended while no call was under way
        if not self.token:
            request = wire.AuthRequest(name=self._credentials.username, password=self._credentials.password)
            call = wire.AUTHENTICATE.on(self._open_channel(self._current))
            self.token = (await call(request, timeout=self._timeout)).token
        return (("token", self.token),)

    def _channel(self, endpoint: str) -> Any:
        scheme, target = _target(endpoint)
        if scheme == "http" or (not scheme and self._tls is None):
            return grpc.aio.insecure_channel(target, options=self._options)
        tls = self._tls or Tls()
        name = (("grpc.ssl_target_name_override", tls.server_name),) if tls.server_name else ()
        return grpc.aio.secure_channel(target, tls.credentials(), options=(*self._options, *name))


async def reply(stream: Any) -> Any:
    """The next message of a stream, or None at its end."""
    message = await stream.read()
    return None if message is END else message


def _target(endpoint: str) -> tuple[str, str]:
    """(scheme, address for gRPC) of an endpoint: a URL, or host:port without one."""
    try:  # urlsplit fails on brackets, and url.port on what is no port
        url = urlsplit(endpoint if "://" in endpoint else f"//{endpoint}")
        host, port = url.hostname, url.port or 2379
    except ValueError:
        host, port = "", 0
    if not host or url.scheme not in ("", "http", "https"):
        raise EtcdError(f"etcd endpoint {bounds.shown(endpoint)}: want http://host:port or https://host:port")
    return url.scheme, joined(host, port)


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise EtcdError(f"{path}: cannot be read: {error.strerror}") from None
