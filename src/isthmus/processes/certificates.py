"""Expiry of the certificates of this process and of its own etcd, reported before it happens."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client.metrics_core import Metric

from isthmus import logs, metrics
from isthmus.clusterset import certificates
from isthmus.config import Config
from isthmus.etcd import Tls, served_certificate
from isthmus.model.clusters import CERTIFICATE_URGENT
from isthmus.reflector import Transient

LOOK_EVERY: Final = 10.0
HANDSHAKE_EVERY: Final = 600.0
"""Seconds between two looks at files, and at the certificates that the own etcd shows. One that is about to end is
looked at as often as files are: it may have been renewed."""

log = logs.get("certificates")


class Certificate(NamedTuple):
    """A certificate or bundle, and when it ends."""

    name: str
    """The file, or the address of the server that shows it."""
    ends: datetime

    def sentence(self, now: datetime) -> str:
        """Describe when it ends or ended."""
        when = f"{self.ends:%Y-%m-%d %H:%M} UTC"
        if self.ends <= now:
            return f"the certificate {self.name} ended at {when}: every new connection is refused until it is renewed"
        return f"the certificate {self.name} ends at {when}: from then on every new connection is refused"


class OwnCertificates:
    """Certificates of one process. ``files`` and ``given`` (name, PEM) add to those that its configuration names."""

    def __init__(self, config: Config, *, files: Sequence[Path] = (), given: Iterable[tuple[str, str]] = ()) -> None:
        section = config.etcd
        self._etcd = section
        self._files = [*([Path(section.cert_file)] if section.cert_file else []), *files]
        self._bundles = [Path(section.ca_file)] if section.ca_file else []
        self._given = [(name, pem) for name, pem in given if pem]
        self._servers: dict[str, Certificate] = {}
        self._found: list[Certificate] = self._look()

    def __repr__(self) -> str:
        return f"<OwnCertificates {', '.join(each.name for each in self._found) or 'none'}>"

    async def run(self) -> None:
        """Read them periodically, for ever."""
        due = 0.0
        while True:
            if (now := asyncio.get_running_loop().time()) >= due or self._ending_servers():
                due = now + HANDSHAKE_EVERY
                await self._look_at_servers()
            self._found = self._look()
            await asyncio.sleep(LOOK_EVERY)

    def problems(self) -> Sequence[str]:
        """Describe the certificates that have ended."""
        now = _now()
        return [each.sentence(now) for each in self._found if each.ends <= now]

    def imminent(self) -> Sequence[str]:
        """Describe the certificates that end within CERTIFICATE_URGENT."""
        now = _now()
        return [each.sentence(now) for each in self._found if now < each.ends <= now + CERTIFICATE_URGENT]

    def warnings(self) -> Sequence[str]:
        """Describe the certificates that end later, but within the warning time."""
        now = _now()
        urgent, early = now + CERTIFICATE_URGENT, now + certificates.EXPIRY_WARNING
        return [each.sentence(now) for each in self._found if urgent < each.ends <= early]

    def families(self, prefix: str) -> list[Metric]:
        """Return a gauge of the time at which each certificate ends."""
        return [metrics.CERTIFICATE_END.family(prefix, (([each.name], each.ends.timestamp()) for each in self._found))]

    def _ending_servers(self) -> bool:
        return any(each.ends <= _now() + CERTIFICATE_URGENT for each in self._servers.values())

    def _look(self) -> list[Certificate]:
        own = [*self._of_files(), *self._servers.values()]
        return sorted(own, key=lambda each: each.ends)

    def _of_files(self) -> Iterator[Certificate]:
        contents = [(name, pem.encode()) for name, pem in self._given]
        contents += [(str(path), content) for path in self._files if (content := _content(path))]
        for name, content in contents:
            if ends := certificates.ends(content):
                yield Certificate(name, ends[0])  # a chain ends with its leaf, which is first
        for path in self._bundles:
            if ends := certificates.ends(_content(path)):
                yield Certificate(str(path), max(ends))

    async def _look_at_servers(self) -> None:
        for endpoint in self._etcd.endpoints:
            if endpoint.startswith("https:"):
                try:
                    shown = await served_certificate(endpoint, Tls("", self._etcd.cert_file, self._etcd.key_file))
                except Transient as error:
                    log.debug("certificate not seen", why=str(error))  # whoever needs it reports that
                    continue
                if ends := certificates.ends(shown):
                    self._servers[endpoint] = Certificate(endpoint, ends[0])


def _content(path: Path) -> bytes:
    """Return a file's content; empty if it cannot be read, which its user reports."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _now() -> datetime:
    return datetime.now(UTC)
