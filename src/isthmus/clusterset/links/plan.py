"""Outcome of a cluster's links: the peers that may read its etcd, the peers whose etcd it reads, and each status.

Everything here is a function of rows. The order in which links may have an id or a range is fixed by rows, too: a link
that its status accepts in its present generation precedes others, then the older one, then the name. So an edit of one
link cannot take anything from another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec import Struct, structs

from isthmus import bounds
from isthmus.clusterset import certificates
from isthmus.clusterset.certificates import Pair
from isthmus.clusterset.errors import LinkError, PeerFileError
from isthmus.clusterset.joining import rights
from isthmus.clusterset.links import requests
from isthmus.clusterset.peers import peer_files
from isthmus.clusterset.peers.peer_files import Peer
from isthmus.model.addresses import overlap, range_of, reserved
from isthmus.model.links import Link
from isthmus.model.names import ClusterName, etcd_name

HEADER: Final = b"# From the ClusterLink of this name. Do not edit.\n"
"""First line of a peer's file that a link made: files without it were made by hand, and are left alone."""
BRING: Final = "; to bring it: isthmus connect"
NO_CERTIFICATE: Final = "status.certificate of its link to this cluster is not spec.certificate here yet" + BRING
NO_REQUEST: Final = "status.request of its link to this cluster is not spec.request here yet" + BRING


class Own(Struct, frozen=True, kw_only=True):
    """The own cluster, as links see it."""

    name: ClusterName
    id: int
    max_id: int = 255
    domain: str = "clusterset.local"
    pod_ranges: tuple[str, ...] = ()
    service_ranges: tuple[str, ...] = ()
    node_ranges: tuple[str, ...] = ()
    loopback: bool = False
    """True if its own etcd is on loopback, where then peers' are, too: clusters of one machine."""


class Kept(Struct, frozen=True, kw_only=True):
    """State of one link in the Secret of links."""

    key: bytes
    certificate: bytes = b""
    """The certificate that the peer signed last."""
    authorities: bytes = b""
    """Trust bundle of the peer's etcd, as it was read there last."""
    adopted: str = ""
    """Digest of the bundle in the link's spec that ``authorities`` began with: another one replaces it."""


class Manual(Struct, frozen=True, kw_only=True):
    """A peer that joined by hand."""

    id: int
    pod_ranges: tuple[str, ...] = ()
    """Ranges of its pods; none of an island, whose addresses mean nothing here."""


class Outcome(Struct, frozen=True, kw_only=True):
    """Result of a pass over one link: what is written to the Secrets, the etcd and the status."""

    refusal: LinkError | None = None
    """Reason why the link does not count; then nothing else does but ``request``."""
    fault: LinkError | None = None
    """Reason why an accepted link is not used, although the peer may read our etcd."""
    request: str = ""
    """Our request to the peer."""
    certificate: str = ""
    """Certificate that we signed for the peer, with which it reads our etcd; empty until its request arrives."""
    kept: Kept
    unissued: str = ""
    """Reason why an issuer has not signed the peer's certificate, so that the peer does not read our etcd."""
    files: dict[str, bytes] = {}
    """Its files in the directory of peers; empty until the peer has signed a certificate for us."""


def refusals(own: Own, links: Iterable[Link], manual: Mapping[ClusterName, Manual]) -> dict[ClusterName, LinkError]:
    """The links that do not count by themselves or beside others."""
    refused: dict[ClusterName, LinkError] = {}
    ids = {peer.id: f"cluster {name}" for name, peer in manual.items() if peer.id} | {own.id: "this cluster"}
    ranges: dict[str, tuple[str, ...]] = {"this cluster": own.pod_ranges + own.service_ranges + own.node_ranges}
    ranges |= {f"cluster {name}": peer.pod_ranges for name, peer in manual.items()}
    for link in sorted(links, key=lambda candidate: (not candidate.settled, candidate.created, candidate.name)):
        try:
            _check(own, link, manual)
            _check_id(link, ids)
            _check_ranges(link, ranges)
        except LinkError as error:
            refused[link.name] = error
        else:
            ids[link.id] = f"cluster {link.name}"
            ranges |= {} if link.by_gateways else {f"cluster {link.name}": link.pod_ranges}
    return refused


def _check(own: Own, link: Link, manual: Mapping[ClusterName, Manual]) -> None:
    if link.invalid:
        raise LinkError("Invalid", link.invalid)
    if link.name == own.name:
        raise LinkError("NameTaken", "metadata.name: it is this cluster's own")
    if link.name in manual:
        how = f"isthmus clusters leave {link.name}"
        raise LinkError("NameTaken", f"metadata.name: cluster {link.name} has joined by hand; to use the link: {how}")
    if link.id > own.max_id:
        raise LinkError("IdTaken", f"spec.id: {link.id} is above the largest of the clusterset, {own.max_id}")
    for endpoint in link.endpoints:
        _check_endpoint(own, endpoint)


def _check_id(link: Link, ids: Mapping[int, str]) -> None:
    if link.id in ids:
        raise LinkError("IdTaken", f"spec.id: {link.id} is the id of {ids[link.id]}")


def _check_endpoint(own: Own, endpoint: str) -> None:
    """LinkError for an address that is no other cluster's. Names are resolved later, so nothing is known of theirs.

    Ranges of nodes do not count: a peer's load balancer or gateway may be on the network of our nodes.
    """
    host = urlsplit(endpoint).hostname or ""
    try:
        address = bounds.address(host)
    except bounds.OutOfBounds:
        if host == "localhost" and not own.loopback:
            raise LinkError("InvalidEndpoint", f"spec: {endpoint} is on loopback") from None
        return
    if (kind := reserved(address)) and not (kind == "loopback" and own.loopback):
        raise LinkError("InvalidEndpoint", f"spec: {endpoint}: the address is reserved ({kind})")
    if prefix := range_of(address, own.pod_ranges + own.service_ranges):
        raise LinkError("InvalidEndpoint", f"spec: {endpoint} is in {prefix} of this cluster")


def _check_ranges(link: Link, ranges: Mapping[str, tuple[str, ...]]) -> None:
    """LinkError for a range that is in use. Addresses of an island's pods are never called."""
    if link.by_gateways:
        return
    for owner, others in ranges.items():
        if pair := overlap(link.pod_ranges, others):
            raise LinkError("RangesOverlap", f"spec.podRanges: {pair[0]} overlaps {pair[1]} of {owner}")


def outcome(
    own: Own,
    link: Link,
    refusal: LinkError | None,
    kept: Kept,
    signer: Pair | str,
    *,
    before: str,
    days: float,
    now: datetime | None = None,
) -> Outcome:
    """Decide the outcome of one link. ``before`` is the certificate that was signed for the peer last.

    ``signer``: the own authority; or what an issuer signed for the peer, empty as long as it has signed nothing.

    What the peer may read does not depend on what it signed for us: two clusters that lost their keys or authorities
    would else wait for each other for ever.
    """
    fault = None if requests.is_key(kept.key) else _fault(link)
    request = link.status.request if fault is not None else _request(own, link, kept)
    if refusal is not None:
        return Outcome(refusal=refusal, request=request, kept=kept)
    signed = ""
    try:
        signed = _signed(link, signer, before, days=days, now=now)
        if fault is not None:
            return Outcome(fault=fault, request=request, certificate=signed, kept=kept)
        kept = _updated(own, link, kept, now=now)
    except LinkError as error:
        return Outcome(refusal=error, request=request, certificate=signed, kept=kept)
    files = _files(own, link, kept) if kept.certificate else {}
    return Outcome(request=request, certificate=signed, kept=kept, files=files)


def _fault(link: Link) -> LinkError:
    return LinkError(
        "UnreadableKey",
        f"{link.name}.key in Secret isthmus-links cannot be read: restore it; or delete it there, for a new one, and "
        "run isthmus connect --accept-new-keys, since the peer has to accept the new request",
    )


def usable(link: Link, kept: Kept, *, copy: bytes) -> Kept:
    """Return the kept state with a readable key, if a replacement is safe.

    Three cases: ``copy``, the key in the peer's files, is that of the displayed request; no request was displayed, so
    that no peer can have accepted one, and the key is made anew; else nothing changes, and the outcome has a fault.
    """
    if requests.is_key(kept.key):
        return kept
    displayed = link.status.request
    if requests.is_key(copy) and (not displayed or requests.is_of(displayed, copy)):
        return structs.replace(kept, key=copy)
    return kept if displayed else structs.replace(kept, key=certificates.new_key())


def _request(own: Own, link: Link, kept: Kept) -> str:
    """Our request: the one that is displayed, where it is for the key that is kept, since a signature is random."""
    if requests.is_of(link.status.request, kept.key):
        return link.status.request
    return requests.request(kept.key, rights.remote_user(own.name))


def _signed(link: Link, signer: Pair | str, before: str, *, days: float, now: datetime | None) -> str:
    """The certificate for the peer: that of before, where it holds, or a new one over the same request."""
    if not link.request:
        return ""
    user = rights.remote_user(link.name)
    if isinstance(signer, str):
        requests.issuable(link.request, user)
        return signer
    requests.requested_key(link.request)
    if requests.holds(before, signer.certificate, link.request, user, now=now):
        return before
    return requests.sign(signer, link.request, user, days=days, now=now)


def _updated(own: Own, link: Link, kept: Kept, *, now: datetime | None) -> Kept:
    """Return the kept state with the administrator's bundle and first certificate applied."""
    digest = hashlib.sha256(link.ca_bundle.encode()).hexdigest()
    bundle = _bundle(kept.authorities) if kept.adopted == digest else b""
    kept = Kept(
        key=kept.key,
        certificate=kept.certificate,
        authorities=bundle or requests.authorities(link.ca_bundle.encode()),
        adopted=digest,
    )
    certificate = _best(own, kept, link.certificate, now=now)
    if link.certificate and not certificate:
        raise LinkError(
            "InvalidCertificate",
            "spec.certificate: want a valid one for this cluster's key (status.request), signed by an authority of "
            "spec.caBundle" + BRING,
        )
    return structs.replace(kept, certificate=certificate)


def _best(own: Own, kept: Kept, certificate: str, *, now: datetime | None) -> bytes:
    """Return the better one of the kept certificate and another; empty if neither can be used."""
    candidates, user = (kept.certificate.decode("ascii", "replace"), certificate), rights.remote_user(own.name)
    return requests.best(candidates, kept.key, user, kept.authorities, now=now)


def _bundle(content: bytes) -> bytes:
    """Authorities that were kept, or read in a peer's etcd; empty if they cannot be used."""
    try:
        return requests.authorities(content)
    except LinkError:
        return b""


def _files(own: Own, link: Link, kept: Kept) -> dict[str, bytes]:
    """The files of the peer. The server's name is that of the peer's etcd, whatever address leads there."""
    peer = Peer(
        name=link.name,
        endpoints=link.endpoints,
        id=link.id,
        namespaces=link.namespaces,
        pod_ranges=link.pod_ranges,
        server_name=etcd_name(link.name, own.domain),
    )
    files = peer_files.files(peer, ca=kept.authorities, certificate=kept.certificate, key=kept.key)
    return files | {link.name: HEADER + files[link.name]}


def renewed(own: Own, kept: Kept, *, certificate: str, authorities: bytes, now: datetime | None = None) -> Kept:
    """Return the kept state after a look into the peer's etcd. Unusable values change nothing."""
    kept = structs.replace(kept, authorities=_bundle(authorities) or kept.authorities)
    return structs.replace(kept, certificate=_best(own, kept, certificate, now=now) or kept.certificate)


def manual_peers(files: Mapping[str, bytes]) -> dict[ClusterName, Manual]:
    """The peers among these files that were made by hand; one whose file cannot be read has its name alone."""
    manual = {}
    for name, content in files.items():
        if peer_files.MARK in content and not content.startswith(HEADER):
            manual[ClusterName(name)] = _manual(ClusterName(name), content)
    return manual


def _manual(name: ClusterName, content: bytes) -> Manual:
    try:
        peer = peer_files.fields_of(content, name=name, path=Path(name))
    except PeerFileError:
        return Manual(id=0)
    return Manual(id=peer.id, pod_ranges=() if peer.server_name else peer.pod_ranges)


def linked(files: Mapping[str, bytes]) -> set[ClusterName]:
    """The peers among these files that links made."""
    return {ClusterName(name) for name, content in files.items() if content.startswith(HEADER)}
