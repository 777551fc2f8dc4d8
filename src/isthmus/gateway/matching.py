"""Builds the ``xds.type.matcher.v3.Matcher`` of a listener, which chooses filter chains by the ClientHello. Pure.

A change of the matcher keeps the chains and their connections: an in-place update of a listener drains only the chains
that differ, and the matcher is not part of them (Envoy's "Listener discovery service").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from isthmus.proxy.messages import packed

INPUTS: Final = "envoy.extensions.matching.common_inputs.network.v3"
OnMatch = dict[str, Any]
"""An ``OnMatch``: the action of a match."""
Predicate = dict[str, Any]


def _input(kind: str) -> dict[str, Any]:
    return {"name": kind, "typed_config": packed(f"{INPUTS}.{kind}")}


SNI: Final = _input("ServerNameInput")
ALPN: Final = _input("ApplicationProtocolInput")
"""The whole list of protocols that the caller offers, each in single quotes, separated by commas."""


def to_chain(name: str) -> OnMatch:
    """Return the action that selects a filter chain by name."""
    return {"action": {"name": name, "typed_config": packed("google.protobuf.StringValue", value=name)}}


def by_value(input_: dict[str, Any], matches: Mapping[str, OnMatch], otherwise: OnMatch | None) -> OnMatch | None:
    """Match an input by exact value; ``None`` if there is nothing to match."""
    if not matches:
        return otherwise
    matcher: dict[str, Any] = {"matcher_tree": {"input": input_, "exact_match_map": {"map": matches}}}
    return {"matcher": matcher | ({"on_no_match": otherwise} if otherwise is not None else {})}


def by_prefix(input_: dict[str, Any], matches: Mapping[str, OnMatch], otherwise: OnMatch) -> OnMatch:
    """Match an input by its longest prefix among several."""
    if not matches:
        return otherwise
    tree = {"input": input_, "prefix_match_map": {"map": matches}}
    return {"matcher": {"matcher_tree": tree, "on_no_match": otherwise}}


def one_of(input_: dict[str, Any], values: Sequence[dict[str, str]]) -> Predicate:
    """Return the predicate that an input matches one of these ``StringMatcher``s, of which there is at least one."""
    single = [{"single_predicate": {"input": input_, "value_match": each}} for each in values]
    return {"or_matcher": {"predicate": single}} if len(single) > 1 else single[0]


def unless(predicate: Predicate, allowed: Predicate, on_match: OnMatch) -> dict[str, Any]:
    """Return the entry of a list that acts where the first predicate holds and the second does not."""
    both = [predicate, {"not_matcher": allowed}]
    return {"predicate": {"and_matcher": {"predicate": both}}, "on_match": on_match}


def first_of(entries: Sequence[dict[str, Any]], otherwise: OnMatch) -> OnMatch:
    """Act by the first entry that matches."""
    return {"matcher": {"matcher_list": {"matchers": entries}, "on_no_match": otherwise}} if entries else otherwise


def by_suffix(input_: dict[str, Any], suffix: str, on_match: OnMatch, otherwise: OnMatch | None = None) -> OnMatch:
    """Match an input by suffix."""
    single = {"single_predicate": {"input": input_, "value_match": {"suffix": suffix}}}
    matcher: dict[str, Any] = {"matcher_list": {"matchers": [{"predicate": single, "on_match": on_match}]}}
    return {"matcher": matcher | ({"on_no_match": otherwise} if otherwise is not None else {})}
