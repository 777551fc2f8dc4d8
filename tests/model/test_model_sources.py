"""Names of sources and their precedence."""

from __future__ import annotations

from isthmus.model.names import ClusterName
from isthmus.model.sources import CLUSTERSET, FILES, KUBERNETES, PRECEDENCE, is_peer, of_peer, rank


def test_a_record_comes_before_the_api_server_and_an_unknown_source_after_all() -> None:
    ranks = [rank(source) for source in (CLUSTERSET, KUBERNETES, FILES, "examples/machines")]
    assert ranks == sorted(ranks)
    assert len(set(ranks)) == 4


def test_an_initializer_is_a_peers_or_a_sources() -> None:
    assert is_peer(of_peer(ClusterName("c2")))
    assert not any(is_peer(source) for source in PRECEDENCE)
