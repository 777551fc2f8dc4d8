"""BackendTLSPolicies as rows, and the ConfigMaps that they refer to, which are read one by one and not listed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from isthmus import bounds, kube, logs
from isthmus.bounds import OutOfBounds, Syntax
from isthmus.kube.objects import core
from isthmus.kube.objects import gateway as wire
from isthmus.model.backend_tls import MAX_CERTIFICATES, Authority, BackendTls, NameType, TlsTarget
from isthmus.model.names import ServiceName, service_name, split
from isthmus.model.tables import AUTHORITIES, BACKEND_TLS
from isthmus.reflector import Expired, Transient
from isthmus.sources.normal import name_of
from isthmus.sources.routes import HOST, KINDS, MAX_NAME, Invalid
from isthmus.statedb import Database

MAX_TARGETS: Final = 16
MAX_AUTHORITIES: Final = 8
MAX_NAMES: Final = 5
"""Bounds of the Gateway API's definition."""
WILDCARD: Final = Syntax(r"(\*\.)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?", most=MAX_NAME, meaning="a host name")
URI: Final = Syntax(r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]+", most=MAX_NAME, meaning="a URI")
KEY: Final = "ca.crt"
READ_EVERY: Final = 60.0
"""Seconds between reads of a ConfigMap, as a kubelet reads those of its pods. A newly named one is read at once."""
OFTEN: Final = 60
"""Number of ConfigMaps up to which each is read that often; more are read less often, since tenants name them and every
node reads."""

log = logs.get("sources")


def policy(wire_policy: wire.BackendTlsPolicy) -> BackendTls:
    """Return the row of a BackendTLSPolicy."""
    meta, validation = wire_policy.metadata, wire_policy.spec.validation
    row = BackendTls(
        name=name_of(meta),
        targets=tuple(dict.fromkeys(_targets(wire_policy))),
        unread=("spec.options",) if wire_policy.spec.options else (),
        created=meta.creation_timestamp or "",
        generation=meta.generation,
    )
    try:
        return _with_validation(row, validation, meta.namespace)
    except (Invalid, OutOfBounds) as error:
        return replace(row, invalid=str(error))


def _targets(wire_policy: wire.BackendTlsPolicy) -> Iterator[TlsTarget]:
    for ref in (wire_policy.spec.target_refs or ())[:MAX_TARGETS]:
        kind = KINDS.get((ref.group, ref.kind))
        if kind is not None and ref.name:
            name = bounds.text(ref.name, most=MAX_NAME, field="spec.targetRefs.name")
            section = bounds.text(ref.section_name or "", most=MAX_NAME, field="spec.targetRefs.sectionName")
            yield TlsTarget(kind, service_name(wire_policy.metadata.namespace, name), section)


def _with_validation(row: BackendTls, validation: wire.BackendTlsValidation, namespace: str) -> BackendTls:
    field = "spec.validation"
    refs = bounds.size(validation.ca_certificate_refs or [], most=MAX_AUTHORITIES, field=f"{field}.caCertificateRefs")
    if validation.well_known_ca_certificates or not refs:
        raise Invalid(f"{field}.wellKnownCACertificates: not supported, want caCertificateRefs")
    authorities: list[ServiceName] = []
    unresolved: list[tuple[str, str]] = []
    for number, ref in enumerate(refs):
        where = f"{field}.caCertificateRefs[{number}]"
        if (ref.group, ref.kind) == ("", "ConfigMap"):
            authorities.append(service_name(namespace, bounds.text(ref.name, most=MAX_NAME, field=where)))
        else:
            unresolved.append(("InvalidKind", f"{where}: kind {bounds.shown(ref.kind)} is not ConfigMap"))
    listed = bounds.size(validation.subject_alt_names or [], most=MAX_NAMES, field=f"{field}.subjectAltNames")
    return replace(
        row,
        authorities=tuple(dict.fromkeys(authorities)),
        unresolved=tuple(unresolved),
        hostname=HOST.text(validation.hostname, field=f"{field}.hostname"),
        names=tuple(_alt_name(each, f"{field}.subjectAltNames[{n}]") for n, each in enumerate(listed)),
    )


def _alt_name(name: wire.SubjectAltName, field: str) -> tuple[NameType, str]:
    if bounds.choice(name.type, ("Hostname", "URI"), field=f"{field}.type") == "URI":
        return "URI", URI.text(name.uri, field=f"{field}.uri")
    return "DNS", WILDCARD.text(name.hostname, field=f"{field}.hostname")


class Authorities:
    """Fills the table ``authorities`` with the ConfigMaps that policies name. :meth:`run` never returns.

    An agent has no right to list ConfigMaps: each is read by its name, again and again, as a kubelet may do.
    """

    def __init__(self, db: Database, client: kube.Client, *, read_every: float = READ_EVERY) -> None:
        self._db = db
        self._client = client
        self._read_every = read_every
        self._initializer = db.initializer(AUTHORITIES, "kubernetes/authorities")
        self._complete = False

    def period(self, number: int) -> float:
        """Seconds between reads of this number of ConfigMaps."""
        return self._read_every * max(1.0, number / OFTEN)

    async def run(self) -> None:
        """Read what policies name: each once at once, and all of it from time to time."""
        changes, now = self._db.changes(BACKEND_TLS), asyncio.get_running_loop().time
        await self._db.until(lambda snapshot: snapshot.initialized(BACKEND_TLS))
        known: set[ServiceName] = set()
        due = now()
        while True:
            snapshot, _ = changes.next()
            wanted = {name for row in snapshot.all(BACKEND_TLS) for name in row.authorities}
            del snapshot
            whole = now() >= due
            read = [await self._read(name) for name in sorted(wanted if whole else wanted - known)]
            rows = [row for row in read if row is not None]
            known = (known & wanted) | {row.name for row in rows}
            self._write(wanted, rows, complete=known == wanted)
            due = now() + self.period(len(wanted)) if whole else due
            try:
                async with asyncio.timeout_at(due):
                    await changes.wait()
            except TimeoutError:
                pass

    async def _read(self, name: ServiceName) -> Authority | None:
        """Return the row of a ConfigMap; ``None`` if the API server cannot be asked now."""
        namespace, short = split(name)
        try:
            return authority(name, await self._client.get(core.CONFIG_MAP, short, namespace))
        except kube.NotFound:
            return Authority(name=name, problem=f"ConfigMap {name} does not exist")
        except kube.Forbidden:
            return Authority(name=name, problem=f"Isthmus has no right to read ConfigMap {name}")
        except (Transient, Expired) as error:
            log.warning("a ConfigMap was not read, its last state is kept", name=name, why=str(error))
            return None
        except kube.KubeError as error:
            return Authority(name=name, problem=f"ConfigMap {name}: {error}")

    def _write(self, wanted: set[ServiceName], read: list[Authority], *, complete: bool) -> None:
        with self._db.write() as txn:
            for row in [row for row in txn.all(AUTHORITIES) if row.name not in wanted]:
                txn.delete(AUTHORITIES, row.name)
            for row in read:
                if txn.get(AUTHORITIES, row.name) != row:
                    txn.put(AUTHORITIES, row)
            if complete and not self._complete:
                self._initializer.complete(txn)
                self._complete = True


def authority(name: ServiceName, config_map: core.ConfigMap) -> Authority:
    """Return the row of a ConfigMap, with a problem if it has no certificates."""
    text = (config_map.data or {}).get(KEY, "")
    if problem := _problem(text):
        return Authority(name=name, problem=f"ConfigMap {name}: {problem}")
    return Authority(name=name, certificates=text)


def _problem(text: str) -> str:
    from cryptography import x509

    if not text or len(text) > MAX_CERTIFICATES:
        return f"want certificates in the key {KEY}, {MAX_CERTIFICATES} characters at most"
    try:
        x509.load_pem_x509_certificates(text.encode())
    except ValueError:
        return f"the key {KEY} is no PEM of certificates"
    return ""
