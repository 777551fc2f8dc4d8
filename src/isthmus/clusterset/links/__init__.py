"""Links to peers: what follows from ClusterLinks, and the certificates that two clusters sign for each other.

What belongs here: judging links, requests and certificates, the peers' files that links make, and their Secrets. What
never does: ClusterLink objects (``processes/links.py`` serves them).

    requests       requests of peers, and what is signed over them
    plan           rows of links in, files and certificates out
    exchange       certificates for peers in the own etcd, and what is read in theirs
    link_secrets   the Secrets of links in the API server
"""

from isthmus.clusterset.certificates import new_key
from isthmus.clusterset.errors import LinkError
from isthmus.clusterset.links import link_secrets
from isthmus.clusterset.links.exchange import Accepted, Look, expel, look, publish, signing
from isthmus.clusterset.links.plan import (
    NO_CERTIFICATE,
    NO_REQUEST,
    Kept,
    Manual,
    Outcome,
    Own,
    linked,
    manual_peers,
    outcome,
    refusals,
    renewed,
    usable,
)
from isthmus.clusterset.links.requests import holds, is_for, is_issuable, same_key

__all__ = [
    "NO_CERTIFICATE",
    "NO_REQUEST",
    "Accepted",
    "Kept",
    "LinkError",
    "Look",
    "Manual",
    "Outcome",
    "Own",
    "expel",
    "holds",
    "is_for",
    "is_issuable",
    "link_secrets",
    "linked",
    "look",
    "manual_peers",
    "new_key",
    "outcome",
    "publish",
    "refusals",
    "renewed",
    "same_key",
    "signing",
    "usable",
]
