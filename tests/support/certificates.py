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

    def sign(self, name: str, *, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> tuple[Path, Path]:
        """(certificate, key) for this common name; signing again renews the files."""
        cert, key = self.folder / f"{name}.crt", self.folder / f"{name}.key"
        pair = certificates.issue(self._pair, name, hosts=hosts)
        cert.write_bytes(pair.certificate)
        key.write_bytes(pair.key)
        return cert, key
