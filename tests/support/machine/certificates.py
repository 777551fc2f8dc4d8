"""Certificates for tests, in files."""

from __future__ import annotations

from pathlib import Path

from isthmus.clusterset import certificates


class Authority:
    """A CA in a folder, and what it signs."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cert = folder / f"{name}.crt"
        self._pair = certificates.authority(name)
        self.cert.write_bytes(self._pair.certificate)

    def sign(self, name: str, *, hosts: tuple[str, ...] | None = None) -> tuple[Path, Path]:
        """(certificate, key) for this common name, a server's where that is it or it has hosts; again renews."""
        hosts = (("127.0.0.1", "localhost") if name == "server" else ()) if hosts is None else hosts
        cert, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        pair = certificates.issue(self._pair, name, hosts=hosts)
        cert.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        return cert, key
