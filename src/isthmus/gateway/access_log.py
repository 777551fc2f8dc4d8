"""Envoy's access log service (ALS) on a unix socket: the gateway's Envoy reports connections that reach no pod.

Envoy filters the reports, so that other calls cost nothing here. It buffers :data:`BUFFER` bytes while this service is
down and drops the rest: callers cannot fill its memory, and refusals are not counted while no gateway process runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import grpc

from isthmus.gateway.refusals import FailedConnection
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import http_options
from isthmus.proxy.messages import duration, message, packed
from isthmus.proxy.resources import resource
from isthmus.proxy.serving import serving

CLUSTER: Final = "access log"
"""Envoy cluster of this service."""
SOCKET: Final = "access.sock"
SERVICE: Final = "envoy.service.accesslog.v3.AccessLogService"
METHOD: Final = "StreamAccessLogs"
ACCESS_LOG: Final = "envoy.config.accesslog.v3.AccessLog"
LOGGER: Final = "envoy.extensions.access_loggers.grpc.v3.TcpGrpcAccessLogConfig"
EXPRESSION: Final = "envoy.extensions.access_loggers.filters.cel.v3.ExpressionFilter"
WITHOUT_POD: Final = "response.flags != 0 || has(connection.transport_failure_reason) || !has(connection.tls_version)"
"""CEL expression for reported connections: a failure flag is set, the handshake failed, or none was started."""
FLUSH: Final = 0.5
"""Maximum seconds for which Envoy collects reports before it sends them."""
BUFFER: Final = 65_536
MAX_STREAMS: Final = 64
"""Concurrent streams: one for each worker thread of an Envoy, and of two Envoys during a replacement."""


def logger() -> Any:
    """Return the ``AccessLog`` of a listener."""
    service = {"envoy_grpc": {"cluster_name": CLUSTER}}
    config = packed(
        LOGGER,
        common_config={
            "log_name": "gateway",
            "grpc_service": service,
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
    """Return the Envoy cluster of a directory's service."""
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


def ended(entry: Any) -> FailedConnection:
    """Parse a ``TCPAccessLogEntry``."""
    common = entry.common_properties
    tls, flags = common.tls_properties, common.response_flags
    names = tls.peer_certificate_properties.subject_alt_name
    return FailedConnection(
        identity=next((each.uri for each in names if each.uri), ""),
        failure=common.downstream_transport_failure_reason,
        hello=bool(tls.tls_version or tls.tls_sni_hostname),
        no_chain=flags.no_route_found,
        no_cluster=flags.no_cluster_found,
        too_many=flags.upstream_overflow,
    )


class AccessLog:
    """The service of a directory, which passes each report to ``take``."""

    def __init__(self, directory: Path, take: Callable[[FailedConnection], None]) -> None:
        self._socket = directory / SOCKET
        self._take = take

    def __repr__(self) -> str:
        return f"<AccessLog {self._socket}>"

    async def run(self) -> None:
        """Serve until cancelled. Only this user can connect."""
        async with serving(self._socket, SERVICE, METHOD, self._handler(), max_streams=MAX_STREAMS):
            await asyncio.Event().wait()

    async def receive(self, messages: AsyncIterator[Any], context: Any) -> Any:
        """Serve one stream of an Envoy until it ends."""
        async for message_ in messages:
            for entry in message_.tcp_logs.log_entry:
                self._take(ended(entry))
        return message("envoy.service.accesslog.v3.StreamAccessLogsResponse")()

    def _handler(self) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.stream_unary_rpc_method_handler(
            self.receive,
            request_deserializer=message("envoy.service.accesslog.v3.StreamAccessLogsMessage").FromString,
            response_serializer=lambda response: response.SerializeToString(),
        )
