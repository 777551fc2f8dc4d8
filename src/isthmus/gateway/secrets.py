"""Writes the secrets of an Envoy for islands: SDS files with the paths of its certificate and members' authorities.

    <directory of Envoy>/sds/pair.json    paths of certificate and key, which Envoy reads itself, and again when they
                                          are replaced in their directory
    <directory of Envoy>/sds/trust.json   authorities of each member, valid for its own trust domain only
    <directory of Envoy>/sds/trust-….json authorities of some members, for peers that only these may be

Everything here is pure except :class:`Secrets`, which writes the files when their inputs have changed.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Struct

from isthmus import logs
from isthmus.clusterset import PkiError, certificates, pki
from isthmus.gateway.naming import trust_domain
from isthmus.gateway.tls import PAIR, TLS, TRUST, secret_file, trust_of
from isthmus.model.islands import TrustBundle
from isthmus.model.names import ClusterName, valid_cluster
from isthmus.model.tables import TRUST_BUNDLES
from isthmus.proxy.messages import ANY_PREFIX
from isthmus.statedb import Database, Snapshot

LOOK_EVERY: Final = 0.5
"""Seconds between reads of the files."""
KEEP: Final = 60.0
"""Seconds for which an unused file is kept: Envoy may be about to load a listener that refers to it."""
SUFFIX: Final = ".ca.crt"
"""Suffix of the file of a member's authorities, in the directory of peers."""
MAX_BUNDLE: Final = 64 * 1024
"""Maximum size of a member's authorities in bytes. A longer file is truncated within a certificate and refused."""
SECRET: Final = f"{ANY_PREFIX}{TLS}.Secret"
SPIFFE: Final = f"{ANY_PREFIX}{TLS}.SPIFFECertValidatorConfig"

NOBODY: Final = ClusterName("nobody")
"""Placeholder member while there are none."""

Apart = Callable[[Snapshot, Collection[ClusterName]], Iterable[tuple[ClusterName, ...]] | None]
"""Function from the members to the sets of clusters that have their own file, each sorted; ``None`` if unknown yet."""

log = logs.get("secrets")


class Identity(Struct, frozen=True, gc=False):
    """Files of a certificate and its key."""

    certificate: Path
    key: Path

    @property
    def ends(self) -> datetime | None:
        """Time at which the certificate expires; ``None`` if it cannot be read."""
        try:
            content = self.certificate.read_bytes()
        except OSError:
            return None
        return next(iter(certificates.ends(content)), None)

    @property
    def problem(self) -> str:
        """Reason why it cannot be used; empty if it is valid now."""
        for path in (self.certificate, self.key):
            if not path.is_file():
                return f"{path}: there is no such file; isthmus keys makes it, or by hand isthmus clusters certs"
        ends = self.ends
        if ends is None:
            return f"{self.certificate}: it is no certificate"
        return f"{self.certificate}: it ended at {ends:%Y-%m-%d %H:%M} UTC" if ends < datetime.now(UTC) else ""


def pair_secret(identity: Identity) -> dict[str, Any]:
    """Return the secret with the paths of a certificate and its key."""
    chain, key = {"filename": str(identity.certificate)}, {"filename": str(identity.key)}
    return _secret(PAIR, tls_certificate={"certificate_chain": chain, "private_key": key})


def trust_secret(bundles: Mapping[ClusterName, bytes], domain: str, name: str = TRUST) -> dict[str, Any]:
    """Return the secret with each member's authorities, for its trust domain.

    Without members it has one authority that signs nothing: Envoy would refuse an empty list and keep the last one.
    """
    bundles = bundles or {NOBODY: _unused_authority()}
    domains = [
        {"name": trust_domain(member, domain), "trust_bundle": {"inline_bytes": base64.b64encode(bundle).decode()}}
        for member, bundle in sorted(bundles.items())
    ]
    config = {"@type": SPIFFE, "trust_domains": domains}
    validator = {"name": "envoy.tls.cert_validator.spiffe", "typed_config": config}
    return _secret(name, validation_context={"custom_validator_config": validator})


@cache
def _unused_authority() -> bytes:
    """Return an authority whose key is discarded, so that it can issue nothing."""
    return certificates.authority(NOBODY).certificate


def _secret(name: str, **fields: Any) -> dict[str, Any]:
    return {"resources": [{"@type": SECRET, "name": name, **fields}]}


class Bundles(NamedTuple):
    """Authorities by member, and the problems of unusable files, which affect only their own member."""

    members: dict[ClusterName, bytes]
    problems: dict[Path, str]


def read_bundles(directory: Path, *, but: Collection[ClusterName] = ()) -> Bundles:
    """Read the authorities of all members with a file in the directory, except ``but``."""
    bundles = Bundles({}, {})
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        name = ClusterName(path.name.removesuffix(SUFFIX))
        if name in but or not valid_cluster(name):
            continue
        try:
            with path.open("rb") as file:
                bundles.members[name] = pki.checked(file.read(MAX_BUNDLE))
        except (OSError, PkiError) as error:
            bundles.problems[path] = str(error)
    return bundles


class Secrets:
    """Writes the SDS files of an Envoy, and a row of ``trust_bundles`` for each file of some members.

    Invariant: a row exists only while its file does. Resources that refer to a file are computed from its row, because
    Envoy refuses a resource whose file is missing.
    """

    def __init__(
        self,
        db: Database,
        directory: Path,
        *,
        apart: Apart,
        identity: Identity,
        trust: Path,
        domain: str,
        distrusted: Callable[[], Collection[ClusterName]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._db = db
        self._complete = db.initializer(TRUST_BUNDLES, "secrets")
        self._apart = apart
        self._last_wanted: dict[tuple[ClusterName, ...], float] = {}
        """Last time at which each set of clusters was needed; sets with a file only."""
        self._clock = clock
        self._directory = directory
        self.identity = identity
        self._trust = trust
        self._domain = domain
        self._distrusted = distrusted
        self._problems: dict[Path, str] = {}
        self.members: tuple[ClusterName, ...] = ()
        """Members whose certificates are accepted now."""

    def __repr__(self) -> str:
        return f"<Secrets {self._directory}, members {', '.join(self.members) or 'none'}>"

    async def run(self) -> None:
        """Update the files until cancelled."""
        while True:
            self.renew()
            await asyncio.sleep(LOOK_EVERY)

    def renew(self) -> None:
        """Read the inputs and write the files that differ."""
        bundles, problems = read_bundles(self._trust, but=self._distrusted())
        for path, reason in sorted(problems.items() - self._problems.items()):
            log.warning("authorities cannot be used", file=str(path), why=reason)
        self._problems = problems
        if tuple(bundles) != self.members:
            self.members = tuple(bundles)
            log.info("members", clusters=", ".join(bundles) or "none")
        self._write(PAIR, pair_secret(self.identity))
        self._write(TRUST, trust_secret(bundles, self._domain))
        snapshot = self._db.snapshot()
        desired = self._apart(snapshot, bundles)
        if desired is not None:
            self._write_apart(snapshot, set(desired), bundles)

    def _write_apart(
        self, snapshot: Snapshot, desired: set[tuple[ClusterName, ...]], bundles: Mapping[ClusterName, bytes]
    ) -> None:
        """Write a file, then a row, for each set of clusters; remove the row, then the file, of an unused one."""
        now = self._clock()
        self._last_wanted |= dict.fromkeys(desired, now)
        kept = {clusters for clusters, last in self._last_wanted.items() if now - last <= KEEP}
        for clusters in self._last_wanted.keys() - kept:
            del self._last_wanted[clusters]
        for clusters in kept:
            own = {name: bundle for name, bundle in bundles.items() if name in clusters}
            name = trust_of(clusters)
            self._write(name, trust_secret(own, self._domain, name))
        current = {row.clusters for row in snapshot.all(TRUST_BUNDLES)}
        first = not snapshot.initialized(TRUST_BUNDLES)
        if first or desired != current:
            with self._db.write() as txn:
                for clusters in desired - current:
                    txn.put(TRUST_BUNDLES, TrustBundle(clusters))
                txn.delete_all(TRUST_BUNDLES, [*(current - desired)])
                if first:
                    self._complete.complete(txn)
        self._remove_others({*map(trust_of, kept)})

    def _remove_others(self, names: Collection[str]) -> None:
        """Delete the files of other sets of members. Envoy keeps the content of a file that it has read."""
        for path in secret_file(self._directory, TRUST).parent.glob(f"{TRUST}-*.json"):
            if path.stem not in names:
                path.unlink(missing_ok=True)

    def _write(self, name: str, secret: dict[str, Any]) -> None:
        path, data = secret_file(self._directory, name), msgspec.json.encode(secret)
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            pki.save(path, data)
            log.debug("secret written", name=name)
