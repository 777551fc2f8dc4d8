"""Pairs of the folder of keys by an issuer: keys are made here, and their certificates are requested.

A pair is replaced once its certificate is signed, by the authority that signs here. An issuer with another one begins a
rotation: its answers stay where they are until that authority is trusted everywhere.
"""

from __future__ import annotations

from collections.abc import Mapping

from isthmus.clusterset import certificates
from isthmus.clusterset.errors import PkiError
from isthmus.clusterset.keeping.answers import Issued, SigningRequest
from isthmus.clusterset.keeping.issuing import Issuer
from isthmus.clusterset.keeping.shares import SHARES
from isthmus.clusterset.pki import TRIAL, Folder, Spec


async def ensure(
    folder: Folder, pairs: Mapping[str, Spec], issuer: Issuer, *, fresh: bool, offered: bytes = b""
) -> list[str]:
    """One pass over the pairs; returns what is new.

    ``offered``: an authority by which a peer's was signed. ``fresh``: nothing has a certificate yet, so that an issuer
    that changes its authority meanwhile needs no rotation.
    """
    folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
    made, refused = folder.ensure_passwords(), {}
    try:
        if offered:
            folder.trust(offered)
    except PkiError as error:
        refused = {"peers": str(error)}
    names = {name: pairs[name] for name in folder.outdated(pairs)}
    if not folder.tried:
        names[TRIAL] = pairs["admin"]
    signed = await issuer.certificates({name: _signing_request(folder, name, spec) for name, spec in names.items()})
    issuer.reasons |= refused
    for name, issued in signed.items():
        try:
            if fresh and name != TRIAL:
                folder.save("ca.crt", issued.authority)
            adopted = _adopt(folder, name, issued)
        except PkiError as error:
            issuer.reasons[name] = str(error)
            continue
        made += [name] if adopted else []
    return made


def missing(folder: Folder) -> list[str]:
    """Files of the roles' Secrets that do not exist yet."""
    return sorted({file for files in SHARES.values() for file in files if not (folder.path / file).exists()})


def _signing_request(folder: Folder, name: str, spec: Spec) -> SigningRequest:
    key = folder.requested_key(name)
    return SigningRequest(
        csr=certificates.request(key, spec.subject, hosts=spec.hosts, identity=spec.identity),
        subject=spec.subject,
        hosts=(*spec.hosts, *filter(None, [spec.identity])),
        server=bool(spec.hosts),
    )


def _adopt(folder: Folder, name: str, issued: Issued) -> bool:
    """Use a certificate if its authority signs here by now.

    If it will sign next, only the trial and what is missing altogether are used: without it nothing could go on.
    """
    signs = folder.trust(issued.authority)
    usable = not signs if name == TRIAL else signs or not (folder.path / f"{name}.crt").exists()
    if usable:
        folder.adopt(name, issued.certificate)
    return usable
