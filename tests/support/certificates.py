"""Certificates for tests, made by openssl."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


class Authority:
    """A CA in a folder, and what it signs."""

    def __init__(self, folder: Path, name: str = "ca") -> None:
        if shutil.which("openssl") is None:
            pytest.skip("openssl is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.cert = folder / f"{name}.crt"
        self._key = folder / f"{name}.key"
        self._openssl("req", "-x509", *_KEY, "-keyout", self._key, "-out", self.cert, "-subj", f"/CN={name}")

    def sign(self, name: str, *, addresses: str = "IP:127.0.0.1,DNS:localhost") -> tuple[Path, Path]:
        """(certificate, key) for this common name."""
        request, cert, key = (self.folder / f"{name}.{ending}" for ending in ("csr", "crt", "key"))
        self._openssl("req", *_KEY, "-keyout", key, "-out", request, "-subj", f"/CN={name}")
        extension = self.folder / f"{name}.ext"
        extension.write_text(f"subjectAltName={addresses}\nextendedKeyUsage=serverAuth,clientAuth\n")
        by = ("-CA", self.cert, "-CAkey", self._key, "-CAcreateserial", "-extfile", extension)
        self._openssl("x509", "-req", "-in", request, *by, "-days", "2", "-out", cert)
        return cert, key

    def _openssl(self, *arguments: object) -> None:
        subprocess.run(["openssl", *map(str, arguments)], check=True, capture_output=True)


_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
