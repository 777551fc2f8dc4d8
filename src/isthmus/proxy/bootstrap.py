"""Builds the bootstrap of an Envoy: its discovery service, statistics and limits. Pure.

It has no listener, and only the cluster of the discovery service. The supervisor adds what differs between two
processes with one bootstrap, such as their admin sockets.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from isthmus.proxy.messages import ANY_PREFIX

BOOTSTRAP: Final = "bootstrap.json"
"""File name of the bootstrap in a directory. An Envoy runs for the directory while it exists."""
ADS_SOCKET: Final = "ads.sock"
ADS_CLUSTER: Final = "isthmus-ads"
PING_EVERY: Final = 5.0
"""Seconds between Envoy's pings of the discovery service, which detect a server that is stopped."""
PING_TIMEOUT: Final = "5s"
RECONNECT: Final = {"base_interval": "0.1s", "max_interval": "1s"}
"""Pause before Envoy connects to the discovery service again."""
STATS_PREFIXES: Final = ("cluster_manager.", "control_plane.", "listener_manager.", "server.", "http.isthmus.")
STATS_SUFFIXES: Final = (
    ".circuit_breakers.default.cx_open",
    ".downstream_cx_active",
    ".downstream_cx_no_route",
    ".downstream_cx_total",
    ".health_check.failure",
    ".health_check.success",
    ".membership_healthy",
    ".membership_total",
    ".no_filter_chain_match",
    ".outlier_detection.ejections_active",
    ".ssl.connection_error",
    ".ssl.fail_verify_error",
    ".ssl.fail_verify_no_cert",
    ".ssl.fail_verify_san",
    ".ssl.handshake",
    ".update_rejected",
    ".upstream_cx_active",
    ".upstream_cx_connect_fail",
    ".upstream_cx_total",
    ".upstream_rq_retry",
    ".upstream_rq_timeout",
)
"""Statistics kept for each cluster and listener: a twentieth of the memory of all that Envoy offers."""
MONITORS: Final = "envoy.resource_monitors"
MAX_CONNECTIONS: Final = 50_000
"""Client connections of an Envoy; more are refused at once, so that none can take all of its memory."""
REFUSED_ABOVE: Final = 0.7
"""Fraction of descriptors in use from which Envoy refuses new connections. The rest is a reserve until Envoy notices:
it aborts when it has no descriptor for a call (envoyproxy/envoy#980)."""
UNANSWERED_ABOVE: Final = 0.8
"""Fraction from which it also refuses requests and UDP tunnels, of which one connection may have thousands."""
KNOWN_WITHIN: Final = 0.1
"""Seconds until Envoy reacts to the fraction written to its pressure file."""

NO_RUNTIME: Final[Mapping[str, int]] = MappingProxyType({})
MAX_PROGRAM: Final = 4_000
"""Program size up to which Envoy accepts a regular expression (default 100). Sources of routes refuse expressions that
they estimate at a quarter of it."""


def bootstrap(
    *,
    node: str,
    ads: Path,
    max_connections: int = MAX_CONNECTIONS,
    ping_every: float = PING_EVERY,
    runtime: Mapping[str, int] = NO_RUNTIME,
) -> dict[str, Any]:
    """Return the bootstrap as JSON values. ``node`` names this Envoy; ``ads`` is the discovery service's socket.

    ``runtime``: further values of Envoy's runtime.
    """
    discovery = {"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "15s"}
    return {
        "node": {"id": node, "cluster": "isthmus"},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": True,
                "grpc_services": [
                    {"envoy_grpc": {"cluster_name": ADS_CLUSTER, "retry_policy": {"retry_back_off": RECONNECT}}}
                ],
            },
            "cds_config": discovery,
            "lds_config": discovery,
        },
        "static_resources": {"clusters": [_ads_cluster(ads, ping_every)]},
        "stats_config": {"stats_matcher": {"inclusion_list": {"patterns": _counted()}}},
        "deferred_stat_options": {"enable_deferred_creation_stats": True},  # of a cluster when it is first called
        "bootstrap_extensions": [_extension("envoy.bootstrap.internal_listener", "InternalListener")],
        "layered_runtime": {
            "layers": [
                {"name": "isthmus", "static_layer": {"re2.max_program_size.error_level": MAX_PROGRAM, **runtime}}
            ]
        },
        "overload_manager": {
            "resource_monitors": [
                _monitor(
                    "global_downstream_max_connections",
                    "downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=str(max_connections),
                )
            ]
        },
    }


def overlay(admin: Path, pressure: Path) -> dict[str, Any]:
    """Return one process's additions to the bootstrap: its admin socket and its pressure file."""
    thresholds = {"reject_incoming_connections": REFUSED_ABOVE, "stop_accepting_requests": UNANSWERED_ABOVE}
    actions = [
        {
            "name": f"envoy.overload_actions.{name}",
            "triggers": [{"name": f"{MONITORS}.injected_resource", "threshold": {"value": above}}],
        }
        for name, above in thresholds.items()
    ]
    return {
        "admin": {"address": {"pipe": {"path": str(admin), "mode": 0o600}}},
        "overload_manager": {
            "refresh_interval": f"{KNOWN_WITHIN}s",
            "resource_monitors": [
                _monitor("injected_resource", "injected_resource.v3.InjectedResourceConfig", filename=str(pressure))
            ],
            "actions": actions,
        },
    }


class BootstrapFile:
    """The bootstrap file of a directory, which requests an Envoy. Written atomically, and only if it differs."""

    def __init__(
        self, directory: Path, *, ping_every: float = PING_EVERY, runtime: Mapping[str, int] = NO_RUNTIME
    ) -> None:
        self._directory = directory
        self._ping_every = ping_every
        self._runtime = runtime
        self.ads = directory / ADS_SOCKET
        """Socket of this directory's discovery service."""

    def write(self, node: str) -> None:
        """Request an Envoy; a running one with another bootstrap is replaced."""
        path = self._directory / BOOTSTRAP
        data = _encoded(bootstrap(node=node, ads=self.ads, ping_every=self._ping_every, runtime=self._runtime))
        with suppress(FileNotFoundError):
            if path.read_bytes() == data:
                return
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(data)
        part.replace(path)

    def remove(self) -> None:
        """Request no Envoy; a running one is drained."""
        (self._directory / BOOTSTRAP).unlink(missing_ok=True)


def _encoded(values: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(values), indent=1)


def _ads_cluster(socket: Path, ping_every: float) -> dict[str, Any]:
    pings = {"interval": f"{ping_every:g}s", "timeout": PING_TIMEOUT}
    return {
        "name": ADS_CLUSTER,
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": ANY_PREFIX + "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {"connection_keepalive": pings}},
            }
        },
        "load_assignment": {
            "cluster_name": ADS_CLUSTER,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": {"pipe": {"path": str(socket)}}}}]}],
        },
    }


def _extension(name: str, message: str) -> dict[str, Any]:
    return {
        "name": name,
        "typed_config": {"@type": f"{ANY_PREFIX}envoy.extensions.bootstrap.internal_listener.v3.{message}"},
    }


def _monitor(name: str, message: str, **fields: str) -> dict[str, Any]:
    config = {"@type": f"{ANY_PREFIX}envoy.extensions.resource_monitors.{message}", **fields}
    return {"name": f"{MONITORS}.{name}", "typed_config": config}


def _counted() -> list[dict[str, str]]:
    return [*({"prefix": each} for each in STATS_PREFIXES), *({"suffix": each} for each in STATS_SUFFIXES)]
