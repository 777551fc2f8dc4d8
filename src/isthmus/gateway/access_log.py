"""Envoy's access log service (ALS) on a unix socket: the gateway's Envoy reports connections that end without a pod.

Envoy filters them, so that calls cost nothing here. It keeps :data:`BUFFER` bytes while this service is away, and drops
the rest: what callers send cannot fill its memory, and refusals are not counted while no gateway process runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from isthmus.gateway.refusals import Ended
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import http_options
from isthmus.proxy.messages import duration, message, packed
from isthmus.proxy.resources import resource
from isthmus.proxy.serving import serving

CLUSTER: Final = "access log"
"""The cluster of Envoy that is this service."""
SOCKET: Final = "access.sock"
SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"
METHOD: Final = "StreamAccessLogs"
ACCESS_LOG: Final = "envoy.config.accesslog.v3.AccessLog"
LOGGER: Final = "envoy.extensions.access_loggers.grpc.v3.TcpGrpcAccessLogConfig"
EXPRESSION: Final = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
WITHOUT_POD: Final = "response.flags != 0 || has(connection.transport_failure_reason) || !has(connection.tls_version)"
"""In CEL, by Envoy's attributes of a connection: it has a flag of failure, its handshake failed, or none began."""
FLUSH: Final = 0.5
"""Seconds for which Envoy gathers reports at most."""
BUFFER: Final = 65_536
MAX_STREAMS: Final = 64
"""Streams at once: one of each worker thread of an Envoy, of two while one is replaced."""


def logger() -> Any:
    """The access log of a listener, an ``AccessLog``."""
    to = {"envoy_grpc": {"cluster_name": CLUSTER}}
    config = packed(
        LOGGER,
        common_config={
            "log_name": "gateway",
            "grpc_service": to,
            "transport_api_version": "V3",
            "buffer_flush_interval": duration(FLUSH),
            "buffer_size_bytes": {"value": BUFFER},
        },
    )
    filtered = {
        "name": "envoy.access_loggers.extension_filters.cel",
        "typed_config": packed(EXPRESSION, expression=WITHOUT_POD),
    }
    return message(ACCESS_LOG)(
        name="envoy.access_loggers.tcp_grpc", filter={"extension_filter": filtered}, typed_config=config
    )


def cluster(directory: Path, unit: str) -> Resource:
    """How an Envoy of a directory reaches the service."""
    pipe = {"endpoint": {"address": {"pipe": {"path": str(directory / SOCKET)}}}}
    return resource(
        "cluster",
        CLUSTER,
        "Gateway",
        unit,
        type="STATIC",
        connect_timeout=duration(1),
        load_assignment={"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": [pipe]}]},
        typed_extension_protocol_options=http_options(http2=True),
    )


def ended(entry: Any) -> Ended:
    """What a ``TCPAccessLogEntry`` has of a connection."""
    common = entry.common_properties
    tls, flags = common.tls_properties, common.response_flags
    names = tls.peer_certificate_properties.subject_alt_name
    return Ended(
        identity=next((each.uri for each in names if each.uri), ""),
        failure=common.downstream_transport_failure_reason,
        hello=bool(tls.tls_version or tls.tls_sni_hostname),
        no_chain=flags.no_route_found,
        no_cluster=flags.no_cluster_found,
        too_many=flags.upstream_overflow,
    )


class AccessLog:
    """The service of a directory; each report is passed on."""

    def __init__(self, directory: Path, take: Callable[[Ended], None]) -> None:
        self._socket = directory / SOCKET
        self._take = take

    def __repr__(self) -> str:
        return f"<AccessLog {self._socket}>"

    async def run(self) -> None:
        """Serve until cancelled. The socket is only this user's."""
        async with serving(self._socket, SERVICE, METHOD, self._handler(), max_streams=MAX_STREAMS):
            await asyncio.Event().wait()

    async def receive(self, messages: AsyncIterator[Any], context: Any) -> Any:
        """One stream of an Envoy, to its end."""
        async for each in messages:
            for entry in each.tcp_logs.log_entry:
                self._take(ended(entry))
        return message("envoy.service.accesslog.v3.StreamAccessLogsResponse")()

    def _handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.stream_unary_rpc_method_handler(
            self.receive,
            request_deserializer=message("envoy.service.accesslog.v3.StreamAccessLogsMessage").FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )
