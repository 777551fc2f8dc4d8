"""The secrets of an Envoy of islands: files of SDS that name its certificate, and hold the authorities of members.

    <directory of Envoy>/sds/pair.json    where certificate and key are; Envoy reads those two itself, and again when
                                          they are replaced in their directory
    <directory of Envoy>/sds/trust.json   of each member its authorities, which sign for its own trust domain only
    <directory of Envoy>/sds/trust-….json the same of some members alone, where no other may be taken for one of them

What is decided here is pure, but for :class:`Secrets`, which writes the files when what they follow from has changed.
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
"""Seconds between two looks at the files."""
KEEP: Final = 60.0
"""Seconds for which a file that is no longer wanted stays: Envoy may be about to take a listener that names it."""
SUFFIX: Final = ".ca.crt"
"""How the file of a member's authorities ends, in the directory of peers."""
MAX_BUNDLE: Final = 64 * 1024
"""Bytes of a member's authorities that are read; a longer file is cut within a certificate, and refused."""
SECRET: Final = f"{ANY_PREFIX}{TLS}.Secret"
SPIFFE: Final = f"{ANY_PREFIX}{TLS}.SPIFFECertValidatorConfig"

NOBODY: Final = ClusterName("nobody")
"""Where there is no member yet."""

Apart = Callable[[Snapshot, Collection[ClusterName]], Iterable[tuple[ClusterName, ...]] | None]
"""The sets of clusters that are trusted by files of their own, each sorted, by the members; None: not known yet."""

log = logs.get("secrets")


class Identity(Struct, frozen=True, gc=False):
    """A certificate and its key, as files."""

    certificate: Path
    key: Path

    @property
    def ends(self) -> datetime | None:
        """When the certificate ends; None where it cannot be read."""
        try:
            content = self.certificate.read_bytes()
        except OSError:
            return None
        return next(iter(certificates.ends(content)), None)

    @property
    def problem(self) -> str:
        """Why no call can be made or answered with it; empty: it is good now."""
        for path in (self.certificate, self.key):
            if not path.is_file():
                return f"{path}: there is no such file; make it with: isthmus clusters certs"
        ends = self.ends
        if ends is None:
            return f"{self.certificate}: it is no certificate"
        return f"{self.certificate}: it ended at {ends:%Y-%m-%d %H:%M} UTC" if ends < datetime.now(UTC) else ""


def pair_secret(identity: Identity) -> dict[str, Any]:
    """The secret that names a certificate and its key."""
    chain, key = {"filename": str(identity.certificate)}, {"filename": str(identity.key)}
    return _secret(PAIR, tls_certificate={"certificate_chain": chain, "private_key": key})


def trust_secret(bundles: Mapping[ClusterName, bytes], domain: str, name: str = TRUST) -> dict[str, Any]:
    """The secret that holds the authorities of each member, for its trust domain.

    Without any member it holds one that signs nothing: Envoy would refuse an empty list, and keep the last one.
    """
    bundles = bundles or {NOBODY: _unused_authority()}
    domains = [
        {"name": trust_domain(of, domain), "trust_bundle": {"inline_bytes": base64.b64encode(bundle).decode()}}
        for of, bundle in sorted(bundles.items())
    ]
    config = {"@type": SPIFFE, "trust_domains": domains}
    validator = {"name": "envoy.tls.cert_validator.spiffe", "typed_config": config}
    return _secret(name, validation_context={"custom_validator_config": validator})


@cache
def _unused_authority() -> bytes:
    """An authority whose key is not kept: it can issue nothing."""
    return certificates.authority(NOBODY).certificate


def _secret(name: str, **fields: Any) -> dict[str, Any]:
    return {"resources": [{"@type": SECRET, "name": name, **fields}]}


class Bundles(NamedTuple):
    """The authorities of each member, and why a file has none, by file: that costs its member only."""

    members: dict[ClusterName, bytes]
    problems: dict[Path, str]


def read_bundles(directory: Path, *, but: Collection[ClusterName] = ()) -> Bundles:
    """Of each member with a file in the directory, but some."""
    found = Bundles({}, {})
    for path in sorted(directory.glob(f"*{SUFFIX}")):
        name = ClusterName(path.name.removesuffix(SUFFIX))
        if name in but or not valid_cluster(name):
            continue
        try:
            with path.open("rb") as file:
                found.members[name] = pki.checked(file.read(MAX_BUNDLE))
        except (OSError, PkiError) as why:
            found.problems[path] = str(why)
    return found


class Secrets:
    """Keeps the files of an Envoy as identity and members are, and a row of ``trust_bundles`` for each that is of some.

    A resource of Envoy that names such a file is computed when its row is there: Envoy refuses one that names no file.
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
        """By the sets of clusters that have a file."""
        self._clock = clock
        self._directory = directory
        self.identity = identity
        self._trust = trust
        self._domain = domain
        self._distrusted = distrusted
        self._problems: dict[Path, str] = {}
        self.members: tuple[ClusterName, ...] = ()
        """Whose certificates are accepted now."""

    def __repr__(self) -> str:
        return f"<Secrets {self._directory}, members {', '.join(self.members) or 'none'}>"

    async def run(self) -> None:
        """Keep them, for ever."""
        while True:
            self.renew()
            await asyncio.sleep(LOOK_EVERY)

    def renew(self) -> None:
        """Write what differs."""
        bundles, problems = read_bundles(self._trust, but=self._distrusted())
        for path, why in sorted(problems.items() - self._problems.items()):
            log.warning("authorities cannot be used", file=str(path), why=why)
        self._problems = problems
        if tuple(bundles) != self.members:
            self.members = tuple(bundles)
            log.info("members", clusters=", ".join(bundles) or "none")
        self._write(PAIR, pair_secret(self.identity))
        self._write(TRUST, trust_secret(bundles, self._domain))
        now = self._db.snapshot()
        wanted = self._apart(now, bundles)
        if wanted is not None:
            self._write_apart(now, set(wanted), bundles)

    def _write_apart(
        self, now: Snapshot, wanted: set[tuple[ClusterName, ...]], bundles: Mapping[ClusterName, bytes]
    ) -> None:
        """A file, then a row, for each set of clusters; when it is wanted no longer the row goes, then the file."""
        at = self._clock()
        self._last_wanted |= dict.fromkeys(wanted, at)
        kept = {clusters for clusters, last in self._last_wanted.items() if at - last <= KEEP}
        for clusters in self._last_wanted.keys() - kept:
            del self._last_wanted[clusters]
        for clusters in kept:
            own = {name: bundle for name, bundle in bundles.items() if name in clusters}
            name = trust_of(clusters)
            self._write(name, trust_secret(own, self._domain, name))
        known = {row.clusters for row in now.all(TRUST_BUNDLES)}
        first = not now.initialized(TRUST_BUNDLES)
        if first or wanted != known:
            with self._db.write() as txn:
                for clusters in wanted - known:
                    txn.put(TRUST_BUNDLES, TrustBundle(clusters))
                txn.delete_all(TRUST_BUNDLES, [*(known - wanted)])
                if first:
                    self._complete.complete(txn)
        self._remove_others({*map(trust_of, kept)})

    def _remove_others(self, names: Collection[str]) -> None:
        """Delete the files of some members but those named. Envoy keeps what it has read of a file that goes."""
        for path in secret_file(self._directory, TRUST).parent.glob(f"{TRUST}-*.json"):
            if path.stem not in names:
                path.unlink(missing_ok=True)

    def _write(self, name: str, secret: dict[str, Any]) -> None:
        path, data = secret_file(self._directory, name), msgspec.json.encode(secret)
        if not path.is_file() or path.read_bytes() != data:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            pki.save(path, data)
