"""Traces of HTTP requests: what an Envoy's connection managers need to send spans to a collector by OTLP. Pure.

Every Envoy has one configuration of the tracer, whatever it serves: Envoy keeps a tracer, with a buffer per worker, for
each configuration that differs. A span's own values are tags of the connection manager.

A collector is not trusted and may be away. Spans are sent without retries over at most CONNECTIONS connections, a batch
is given up after TIMEOUT, a worker sends its spans when it has BUFFER of them, at the latest after FLUSH, and BATCHES
are on the way at most: more are lost. Their rate follows that of sampled requests. Requests never wait for a span.

Spans have no query of a URL, since credentials are passed in those, and no header but the user agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from isthmus.model.hosts import canonical
from isthmus.model.names import ClusterName, ServiceName, split
from isthmus.model.xds import Resource
from isthmus.proxy.clusters import http_options
from isthmus.proxy.messages import duration, packed
from isthmus.proxy.resources import hosts, resource

UNTRACED: Final[Mapping[str, Any]] = MappingProxyType({})
"""Fields of a connection manager without traces."""
CLUSTER: Final = "trace collector"
"""Envoy cluster of the collector. It is no Service's name: those have a slash."""
OWNER: Final = "tracing.collector"
METADATA: Final = "isthmus"
"""Namespace of the metadata of Envoy clusters in which a gateway finds the service of a request."""
FLUSH: Final = 1.0
"""Seconds between two batches of a worker."""
BUFFER: Final = 512
"""Spans that a worker keeps until then, and sends in a batch. With headers of Envoy's largest size they take 30 MB."""
TIMEOUT: Final = 1.0
"""Seconds until a batch that the collector did not accept is lost."""
CONNECTIONS: Final = 2
BATCHES: Final = 4
"""Batches of all workers that are on the way at most."""
PATH: Final = 256
"""Bytes kept of a path."""
RUNTIME: Final[Mapping[str, int]] = MappingProxyType(
    {
        "tracing.opentelemetry.min_flush_spans": BUFFER,  # Envoy's default is 5, which is a request for each 5 spans
        "tracing.opentelemetry.flush_interval_ms": round(FLUSH * 1_000),
    }
)
"""Runtime of an Envoy with traces."""

TRACER: Final = "envoy.config.trace.v3.OpenTelemetryConfig"
REQUEST_ID: Final = "envoy.extensions.request_id.uuid.v3.UuidRequestIdConfig"
EXTENSIONS: Final = "envoy.extensions.tracers.opentelemetry"
MILLION: Final = 1_000_000


class Tracing(NamedTuple):
    """Traces of one Envoy: where its spans go, which, and who it is in them."""

    host: str
    port: int
    share: float
    follow_callers: bool
    role: str
    """``node`` or ``gateway``."""
    cluster_name: ClusterName
    name: str
    """Name of the node, or the gateway's pod."""

    def cluster(self, unit: str) -> Resource:
        """Return the Envoy cluster of the collector, which no call uses."""
        once = {"max_connections": CONNECTIONS, "max_pending_requests": BATCHES, "max_requests": BATCHES}
        limits = {name: {"value": limit} for name, limit in (once | {"max_retries": 0}).items()}
        return resource(
            "cluster",
            CLUSTER,
            OWNER,
            unit,
            type="STATIC" if canonical(self.host) else "STRICT_DNS",
            wait_for_warm_on_init={"value": False},  # a name that cannot be resolved delays no other cluster
            connect_timeout=duration(TIMEOUT),
            load_assignment={
                "cluster_name": CLUSTER,
                "endpoints": [{"lb_endpoints": hosts([(self.host, self.port)])}],
            },
            circuit_breakers={"thresholds": [limits]},
            typed_extension_protocol_options=http_options(http2=True),
        )

    def fields(self, operation: str, tags: Mapping[str, str]) -> dict[str, Any]:
        """Return the fields of a connection manager. ``operation``: name of its spans; ``tags``: of its own."""
        custom: list[dict[str, Any]] = [{"tag": tag, "literal": {"value": value}} for tag, value in tags.items()]
        custom += [
            {"tag": "isthmus.route", "value": "%ROUTE_NAME%"},
            {"tag": "url.path", "value": f"%PATH(NQ):{PATH}%"},
        ]
        if self.role == "gateway":
            path = [{"key": "service"}]
            found = {"kind": {"cluster": {}}, "metadata_key": {"key": METADATA, "path": path}}
            custom.append({"tag": "isthmus.service", "metadata": found})
        provider = {"name": "envoy.tracers.opentelemetry", "typed_config": self._tracer()}
        # Envoy would sample by x-request-id, which callers choose and many requests lack: the sampler decides alone.
        request_id = packed(
            REQUEST_ID, use_request_id_for_trace_sampling={"value": False}, pack_trace_reason={"value": False}
        )
        return {
            "request_id_extension": {"typed_config": request_id},
            "tracing": {
                "provider": provider,
                "operation": operation,
                "client_sampling": {"value": 0},
                "max_path_tag_length": {"value": 0},  # url.path has it, without its query
                "custom_tags": custom,
            },
        }

    def _tracer(self) -> Any:
        attributes = {
            "service.namespace": "isthmus",
            "service.instance.id": self.name,
            "k8s.cluster.name": self.cluster_name,
            f"isthmus.{self.role}": self.name,
        }
        detector = packed(
            f"{EXTENSIONS}.resource_detectors.v3.StaticConfigResourceDetectorConfig",
            attributes={key: value for key, value in attributes.items() if value},
        )
        return packed(
            TRACER,
            grpc_service={"envoy_grpc": {"cluster_name": CLUSTER}, "timeout": duration(TIMEOUT)},
            service_name=f"isthmus-{self.role}",
            resource_detectors=[
                {"name": "envoy.tracers.opentelemetry.resource_detectors.static_config", "typed_config": detector}
            ],
            sampler=self._sampler(),
            max_cache_size={"value": BUFFER},
        )

    def _sampler(self) -> dict[str, Any]:
        share = {"numerator": round(self.share * MILLION), "denominator": "MILLION"}
        ratio = {
            "name": "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based",
            "typed_config": packed(
                f"{EXTENSIONS}.samplers.v3.TraceIdRatioBasedSamplerConfig", sampling_percentage=share
            ),
        }
        if not self.follow_callers:
            return ratio
        parent = packed(f"{EXTENSIONS}.samplers.v3.ParentBasedSamplerConfig", wrapped_sampler=ratio)
        return {"name": "envoy.tracers.opentelemetry.samplers.parent_based", "typed_config": parent}


def of_service(tracing: Tracing | None, service: ServiceName, port: int) -> Mapping[str, Any]:
    """Return the fields of a node's connection manager for a service's port; none without traces."""
    if tracing is None:
        return UNTRACED
    namespace, _ = split(service)
    return tracing.fields(f"{service}:{port}", {"isthmus.service": service, "k8s.namespace.name": namespace})


def of_member(tracing: Tracing | None, caller: ClusterName) -> Mapping[str, Any]:
    """Return the fields of a gateway's connection manager for a member's requests; none without traces."""
    if tracing is None:
        return UNTRACED
    return tracing.fields(f"gateway of {tracing.cluster_name}", {"isthmus.caller": caller})


def named(tracing: Tracing | None, service: ServiceName) -> dict[str, Any]:
    """Return the field of a gateway's Envoy cluster by which spans have its service; none without traces."""
    return (
        {"metadata": {"filter_metadata": {METADATA: {"fields": {"service": {"string_value": service}}}}}}
        if tracing is not None
        else {}
    )
