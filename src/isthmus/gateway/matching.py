"""Which filter chain takes a connection, by its ClientHello: a ``xds.type.matcher.v3.Matcher`` of a listener. Pure.

Chains that are matched so stay as they are, with their connections, when what is matched changes: an in-place update of
a listener drains the chains that differ, and the matcher is no part of them (Envoy's "Listener discovery service").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from isthmus.proxy.messages import packed

INPUTS: Final = "envoy.extensions.matching.common_inputs.network.v3"
OnMatch = dict[str, Any]
"""An ``OnMatch``: what follows from a match."""


def _input(kind: str) -> dict[str, Any]:
    return {"name": kind, "typed_config": packed(f"{INPUTS}.{kind}")}


SNI: Final = _input("ServerNameInput")
ALPN: Final = _input("ApplicationProtocolInput")
"""The whole list that the caller offers, each protocol in single quotes, with commas between."""


def to_chain(name: str) -> OnMatch:
    """The filter chain of that name."""
    return {"action": {"name": name, "typed_config": packed("google.protobuf.StringValue", value=name)}}


def by_value(of: dict[str, Any], found: Mapping[str, OnMatch], otherwise: OnMatch | None) -> OnMatch | None:
    """By the exact value of an input; None: nothing matches."""
    if not found:
        return otherwise
    matcher: dict[str, Any] = {"matcher_tree": {"input": of, "exact_match_map": {"map": found}}}
    return {"matcher": matcher | ({"on_no_match": otherwise} if otherwise is not None else {})}


def by_suffix(of: dict[str, Any], suffix: str, found: OnMatch, otherwise: OnMatch | None = None) -> OnMatch:
    """By how the value of an input ends."""
    single = {"single_predicate": {"input": of, "value_match": {"suffix": suffix}}}
    matcher: dict[str, Any] = {"matcher_list": {"matchers": [{"predicate": single, "on_match": found}]}}
    return {"matcher": matcher | ({"on_no_match": otherwise} if otherwise is not None else {})}
