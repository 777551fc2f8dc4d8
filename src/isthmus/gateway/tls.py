"""TLS of both Envoys: mutual, of version 1.3 alone, with keys and trust from files that Envoy watches. Pure.

A resource has no key and no authority in it: it names two files of the discovery service for secrets (SDS), which
:mod:`isthmus.gateway.secrets` writes. Envoy reads them again when they are replaced, as it does the pair in the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

from isthmus.model.names import ClusterName
from isthmus.proxy.messages import packed

TLS: Final = "envoy.extensions.transport_sockets.tls.v3"
PAIR: Final = "pair"
"""Name of the secret that is a certificate and its key."""
TRUST: Final = "trust"
"""Name of the secret that is the authorities of all members."""
VERSIONS: Final = {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}
"""Upstream contexts allow 1.2 by default."""


def secret_file(directory: Path, name: str) -> Path:
    """Where the secret of that name is, in the directory of an Envoy."""
    return directory / "sds" / f"{name}.json"


def trust_of(clusters: Iterable[ClusterName]) -> str:
    """Name of the secret that is the authorities of these clusters alone."""
    return f"{TRUST}-{blake2b(' '.join(sorted(clusters)).encode(), digest_size=8).hexdigest()}"


def downstream(directory: Path, identities: list[dict[str, Any]], *, trust: str = TRUST) -> dict[str, Any]:
    """The transport socket of a filter chain for callers that show one of these identities, by a secret of authorities.

    Sessions are not resumed: a resumed one would not be checked against what is trusted now.
    """
    context = packed(
        f"{TLS}.DownstreamTlsContext",
        common_tls_context=_common(directory, identities, trust),
        require_client_certificate={"value": True},
        disable_stateless_session_resumption=True,
        disable_stateful_session_resumption=True,
    )
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def upstream(directory: Path, identity: str, sni: str, *, trust: str, protocol: str) -> dict[str, Any]:
    """The transport socket towards gateways that show this identity. ``sni``: where the call names no other.

    ``protocol``: what is offered (ALPN).

    ``trust`` holds the authorities of their cluster alone: Envoy finds the authority by a certificate's first name, and
    takes the identity from any of its names.
    """
    context = packed(
        f"{TLS}.UpstreamTlsContext",
        common_tls_context=_common(directory, [{"exact": identity}], trust) | {"alpn_protocols": [protocol]},
        sni=sni,
        max_session_keys={"value": 0},
    )
    return {"name": "envoy.transport_sockets.tls", "typed_config": context}


def _common(directory: Path, identities: list[dict[str, Any]], trust: str) -> dict[str, Any]:
    names = [{"san_type": "URI", "matcher": matcher} for matcher in identities]
    return {
        "tls_params": VERSIONS,
        "tls_certificate_sds_secret_configs": [_secret(directory, PAIR)],
        "combined_validation_context": {
            "default_validation_context": {"match_typed_subject_alt_names": names},
            "validation_context_sds_secret_config": _secret(directory, trust),
        },
    }


def _secret(directory: Path, name: str) -> dict[str, Any]:
    path = {"path": str(secret_file(directory, name))}
    return {"name": name, "sds_config": {"path_config_source": path, "resource_api_version": "V3"}}
