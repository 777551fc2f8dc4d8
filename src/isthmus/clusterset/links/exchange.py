"""The etcd side of links: certificates in the own etcd for peers, and in a peer's etcd for this cluster.

A peer's user is called ``remote-<peer>`` and has no usable password: etcd takes the user from the name in the
certificate that this cluster signed. The keeper of keys creates it, with the other users of the etcd.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct

from isthmus.clusterset.joining import rights
from isthmus.clusterset.joining.tokens import Trust
from isthmus.clusterset.peers.peer_files import Peer
from isthmus.clusterset.records import identity, keys
from isthmus.clusterset.records.decoding import wall_clock
from isthmus.clusterset.records.signing import Signing
from isthmus.etcd import Denied, EtcdError, Session, Untrusted, access
from isthmus.model.names import ClusterName
from isthmus.reflector import Expired, Transient

CURE: Final = "; if it has another authority, or this cluster's certificate ended: isthmus connect, for both clusters"
"""Both follow from being away for as long as a certificate lives, or a rotation of the peer's authority lasts."""

_trust = msgspec.json.Decoder(Trust)


class Accepted(Struct, frozen=True):
    """Digests of the trust bundle and the certificate by which a cluster reads a peer, published to that peer."""

    authorities: str = ""
    certificate: str = ""


_accepted = msgspec.json.Decoder(Accepted)


async def publish(
    root: Session, own: ClusterName, signed: Mapping[ClusterName, str], accepted: Mapping[ClusterName, Accepted]
) -> None:
    """Publish to each peer the certificate that was signed for it, and what is used of what it published."""
    values = {keys.certificate(own, peer): certificate.encode() for peer, certificate in signed.items()}
    values |= {keys.accepted(own, peer): msgspec.json.encode(digests) for peer, digests in accepted.items()}
    for key, value in values.items():
        if (current := await root.get(key)) is None or current.value != value:
            await root.put(key, value)


async def expel(root: Session, own: ClusterName, peers: Iterable[ClusterName]) -> None:
    """Revoke the rights of these peers. Their connections end by themselves: each checks what it may read."""
    users = await access.users(root)
    for peer in peers:
        if rights.remote_user(peer) in users:
            await access.drop_user(root, rights.remote_user(peer))
        await root.delete(keys.certificate(own, peer))
        await root.delete(keys.accepted(own, peer))


class Look(NamedTuple):
    """Certificate and trust bundle in a peer's etcd for this cluster, or the reason why it could not be read."""

    certificate: str = ""
    authorities: bytes = b""
    accepted: Accepted = Accepted()
    """Digests of what the peer uses of this cluster's; empty if it does not publish them."""
    reason: str = ""
    """A reason of the condition Ready; empty if it was read."""
    message: str = ""


async def look(peer: Peer, own: ClusterName) -> Look:
    """Read what a peer has for us; it never raises for what a peer does."""
    try:
        async with peer.session() as session:
            certificate = await session.get(keys.certificate(peer.name, own))
            trust = await session.get(keys.trust(peer.name))
            accepted = await _read_accepted(session, peer.name, own)
    except Denied as error:
        return Look(reason="WaitingForPeer", message=f"its etcd does not admit this cluster yet: {error}")
    except Untrusted as error:
        return Look(reason="Untrusted", message=f"{error}{CURE}")
    except (Transient, Expired, EtcdError) as error:
        return Look(reason="Unreachable", message=f"its etcd cannot be reached: {error}")
    return Look(
        certificate=certificate.value.decode("ascii", "replace") if certificate is not None else "",
        authorities=_authorities(trust.value) if trust is not None else b"",
        accepted=accepted,
    )


async def signing(peer: Peer) -> Signing | None:
    """Read a peer's public keys of signatures, empty if it publishes none; ``None`` if that is not known.

    A peer whose etcd lost its data has no description until it publishes again. It has not given up its keys.
    """
    try:
        async with peer.session() as session:
            stored = await session.get(keys.description(peer.name))
    except (Transient, Expired, EtcdError):
        return None
    return identity.decode_description(stored.value, now=wall_clock()).signing if stored is not None else None


async def _read_accepted(session: Session, peer: ClusterName, own: ClusterName) -> Accepted:
    """Digests of what a peer uses of ours. A peer of an earlier release does not permit the key."""
    try:
        stored = await session.get(keys.accepted(peer, own))
        return _accepted.decode(stored.value) if stored is not None else Accepted()
    except (Denied, msgspec.MsgspecError):
        return Accepted()


def _authorities(value: bytes) -> bytes:
    try:
        return _trust.decode(value).ca
    except msgspec.MsgspecError:
        return b""
