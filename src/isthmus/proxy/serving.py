"""Serves one gRPC method on a unix socket of this user, to which Envoy connects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import grpc

STOP_GRACE: Final = 0.2
"""Seconds that open streams get when the server stops. Envoy connects again."""


@asynccontextmanager
async def serving(
    socket: Path, service: str, method: str, handler: grpc.RpcMethodHandler[Any, Any], *, max_streams: int
) -> AsyncIterator[None]:
    """Serve within the context. Only this user can connect. ``max_streams``: concurrent streams of each connection.

    Any number of pings is accepted: by default gRPC ends an idle connection at the third ping in five minutes, and
    Envoy sends one every few seconds.
    """
    socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    server = grpc.aio.server(options=[("grpc.max_concurrent_streams", max_streams), ("grpc.http2.max_ping_strikes", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    try:
        with suppress(FileNotFoundError):
            socket.unlink()
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        socket.chmod(0o600)
        yield
    finally:
        await server.stop(STOP_GRACE)
