"""TLS of both Envoys: mutual, version 1.3 only, with keys and trust from files that Envoy watches. Pure.

Resources contain no keys or authorities: they refer to two SDS files, which :mod:`isthmus.gateway.secrets` writes.
Envoy reloads them when they are replaced, and so it does the certificate and key that the first one refers to.
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
"""Name of the secret with a certificate and its key."""
TRUST: Final = "trust"
"""Name of the secret with the authorities of all members."""
VERSIONS: Final = {"tls_minimum_protocol_version": "TLSv1_3", "tls_maximum_protocol_version": "TLSv1_3"}
"""TLS 1.3 only: upstream contexts allow 1.2 by default."""


def secret_file(directory: Path, name: str) -> Path:
    """Path of a secret's file in the directory of an Envoy."""
    return directory / "sds" / f"{name}.json"


def trust_of(clusters: Iterable[ClusterName]) -> str:
    """Name of the secret with the authorities of these clusters alone."""
    return f"{TRUST}-{blake2b(' '.join(sorted(clusters)).encode(), digest_size=8).hexdigest()}"


def downstream(directory: Path, identities: list[dict[str, Any]], *, trust: str = TRUST) -> dict[str, Any]:
    """Return a filter chain's transport socket for callers with one of these identities, signed by ``trust``.

    Sessions are not resumed: a resumed session would not be checked against the current trust.
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
    """Return the transport socket to gateways with an identity. ``sni``: default SNI; ``protocol``: offered by ALPN.

    ``trust`` must have the authorities of the gateways' cluster alone: Envoy finds the authority by a certificate's
    first name, but accepts the identity in any of its names.
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
