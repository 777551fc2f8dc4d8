"""Make the descriptors of the xDS messages that isthmus.proxy writes, out of the Python package xds-protos.

    make xds-protos         installs xds-protos into .cache, since it clobbers other packages' modules where it stands

What is written is a ``FileDescriptorSet``: the files below with all that they import, with their options, in which
Envoy's rules of validation are (``validate.rules``). Envoy's API and xds-protos are under the Apache License 2.0.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from google.protobuf.descriptor import FileDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

TARGET = Path(__file__).resolve().parent.parent / "src" / "isthmus" / "proxy" / "envoy.binpb"
EXTENSIONS = (
    "access_loggers/filters/cel/v3/cel",
    "access_loggers/grpc/v3/als",
    "access_loggers/stream/v3/stream",
    "clusters/aggregate/v3/cluster",
    "filters/common/set_filter_state/v3/value",
    "filters/http/cors/v3/cors",
    "filters/http/header_to_metadata/v3/header_to_metadata",
    "filters/http/router/v3/router",
    "filters/http/stateful_session/v3/stateful_session",
    "filters/listener/http_inspector/v3/http_inspector",
    "filters/listener/tls_inspector/v3/tls_inspector",
    "filters/network/connection_limit/v3/connection_limit",
    "filters/network/echo/v3/echo",
    "filters/network/http_connection_manager/v3/http_connection_manager",
    "filters/network/set_filter_state/v3/set_filter_state",
    "filters/network/sni_cluster/v3/sni_cluster",
    "filters/network/tcp_proxy/v3/tcp_proxy",
    "filters/udp/udp_proxy/session/http_capsule/v3/http_capsule",
    "filters/udp/udp_proxy/v3/route",
    "filters/udp/udp_proxy/v3/udp_proxy",
    "http/early_header_mutation/header_mutation/v3/header_mutation",
    "http/stateful_session/cookie/v3/cookie",
    "http/stateful_session/header/v3/header",
    "matching/common_inputs/network/v3/network_inputs",
    "request_id/uuid/v3/uuid",
    "retry/host/previous_hosts/v3/previous_hosts",
    "tracers/opentelemetry/resource_detectors/v3/static_config_resource_detector",
    "tracers/opentelemetry/samplers/v3/parent_based_sampler",
    "tracers/opentelemetry/samplers/v3/trace_id_ratio_based_sampler",
    "transport_sockets/internal_upstream/v3/internal_upstream",
    "transport_sockets/raw_buffer/v3/raw_buffer",
    "transport_sockets/tls/v3/tls",
    "transport_sockets/tls/v3/tls_spiffe_validator_config",
    "upstreams/http/v3/http_protocol_options",
)
ROOTS = (
    "envoy/config/bootstrap/v3/bootstrap",
    "envoy/config/trace/v3/opentelemetry",
    "envoy/service/accesslog/v3/als",
    "envoy/service/discovery/v3/discovery",
    *(f"envoy/extensions/{each}" for each in EXTENSIONS),
)


def main() -> None:
    """Write the file, and how large it is."""
    found: dict[str, FileDescriptor] = {}
    for root in ROOTS:
        _add(importlib.import_module(f"{root.replace('/', '.')}_pb2").DESCRIPTOR, found)
    files = FileDescriptorSet(file=[FileDescriptorProto.FromString(each.serialized_pb) for each in found.values()])
    data = files.SerializeToString(deterministic=True)
    TARGET.write_bytes(data)
    print(f"{TARGET.name}: {len(found)} files, {len(data):,} bytes", file=sys.stderr)


def _add(file: FileDescriptor, found: dict[str, FileDescriptor]) -> None:
    """A file after all that it imports, as a descriptor pool wants them."""
    if file.name not in found:
        for each in file.dependencies:
            _add(each, found)
        found[file.name] = file


if __name__ == "__main__":
    main()
