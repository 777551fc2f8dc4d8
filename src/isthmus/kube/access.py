"""Address and credentials of an API server, from a kubeconfig or from a Pod's service account.

A kubeconfig's user has a token, a file with one, or a client certificate. Plugins (``exec``) and passwords are
refused by name, since a process that runs unattended should have a service account.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from isthmus.config import ConfigError, KubernetesSection
from isthmus.model.hosts import joined

POD: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class Access(Struct, frozen=True):
    """An API server's address and what it knows us by. A token file is read again when the server refuses us."""

    server: str
    tls: ssl.SSLContext | None = None
    token: str = ""
    token_file: Path | None = None
    server_name: str = ""
    certificate: tuple[str, str] = ("", "")
    """The client certificate, as PEM, after the name by which people know it; empty where there is none."""
    socket: Path | None = None
    """Unix socket of a proxy that has the credentials, as ``kubectl proxy`` serves one."""
    label: str = ""
    """The server by the name that people know, if ``server`` is none, as behind a proxy: errors begin with it."""

    def bearer(self) -> str:
        """The token as it is now; empty where the client certificate speaks for us."""
        if self.token_file is None:
            return self.token
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise ConfigError(f"{self.token_file}: the token cannot be read: {error.strerror}") from None


def access(section: KubernetesSection, *, environment: Mapping[str, str] = os.environ, pod: Path = POD) -> Access:
    """The configured one: a kubeconfig, else $KUBECONFIG, else the Pod's service account."""
    path = section.kubeconfig or environment.get("KUBECONFIG", "").partition(os.pathsep)[0]
    if path:
        return from_kubeconfig(Path(path), context=section.context)
    return from_pod(environment, pod)


def from_pod(environment: Mapping[str, str], pod: Path) -> Access:
    """The service account of the Pod we run in."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigError("kubernetes.kubeconfig: not set, and this is no Pod (KUBERNETES_SERVICE_HOST is not set)")
    try:
        authority = (pod / "ca.crt").read_text()
        if not authority:  # else the host's CAs would count
            raise ConfigError(f"{pod / 'ca.crt'}: not a readable CA certificate: it is empty")
        tls = verifying(authority)
    except (OSError, UnicodeDecodeError, ssl.SSLError) as error:
        raise ConfigError(f"{pod / 'ca.crt'}: not a readable CA certificate: {error}") from None
    return Access(server=f"https://{joined(host, port)}", tls=tls, token_file=pod / "token")


def verifying(authority: str) -> ssl.SSLContext:
    """Return a context that verifies a server by the CA certificates in ``authority`` (PEM), as kubectl does.

    ``authority`` is empty for the CAs that the host trusts. From 3.13 on, Python refuses CA certificates without a key
    usage or identifiers (``VERIFY_X509_STRICT``); Go accepts them, and clusters exist that have such a CA.
    """
    ascii_only = authority.encode("ascii", "replace").decode()  # Python refuses bundles with other letters in comments
    context = ssl.create_default_context(cadata=ascii_only or None)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def from_kubeconfig(path: Path, *, context: str = "") -> Access:
    """A context of a kubeconfig; ConfigError names file and field."""
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not YAML: {' '.join(str(error).split())}") from None
    file = _File(path, raw)
    wanted = context or file.text(raw, "current-context", "current-context")
    chosen = file.named("contexts", "context", wanted)
    cluster = file.named("clusters", "cluster", file.text(chosen, "cluster", f"context '{wanted}'"))
    user_name = chosen.get("user")
    user = file.named("users", "user", user_name) if user_name else {}
    file.refuse(user, user_name)
    server = file.text(cluster, "server", f"cluster '{chosen['cluster']}'").rstrip("/")
    return Access(
        server=server,
        tls=_tls(file, cluster, user) if server.startswith("https:") else None,
        token=str(user.get("token") or ""),
        token_file=file.beside(user["tokenFile"]) if user.get("tokenFile") else None,
        server_name=str(cluster.get("tls-server-name") or ""),
        certificate=(f"of user '{user_name}' in {path}", file.pem(user, "client-certificate")),
    )


class _File:
    """A kubeconfig while it is read: looks fields up and names what is wrong."""

    def __init__(self, path: Path, raw: Any) -> None:
        if not isinstance(raw, dict):
            raise ConfigError(f"{path}: not a kubeconfig: want a mapping with clusters, users and contexts")
        self.path = path
        self.raw = raw

    def text(self, table: Mapping[str, Any], field: str, where: str) -> str:
        value = table.get(field)
        if not isinstance(value, str) or not value:
            raise ConfigError(f"{self.path}: {where}: '{field}' is missing")
        return value

    def named(self, plural: str, singular: str, name: str) -> dict[str, Any]:
        entries = self.raw.get(plural)
        for entry in entries if isinstance(entries, list) else []:
            if isinstance(entry, dict) and entry.get("name") == name and isinstance(entry.get(singular), dict):
                return dict(entry[singular])
        raise ConfigError(f"{self.path}: {plural}: there is no '{name}'")

    def beside(self, name: Any) -> Path:
        """A path in the file is relative to it."""
        return self.path.parent / str(name)

    def refuse(self, user: Mapping[str, Any], name: Any) -> None:
        for field in ("exec", "auth-provider", "username"):
            if user.get(field):
                raise ConfigError(f"{self.path}: user '{name}': '{field}' is not supported: use a token or certificate")

    def pem(self, table: Mapping[str, Any], field: str) -> str:
        """The PEM text of ``field``, given as a path, or inline as ``field``-data; empty where neither is."""
        data = table.get(f"{field}-data")
        try:
            if data:
                return base64.b64decode(str(data), validate=True).decode()
            return self.beside(table[field]).read_text() if table.get(field) else ""
        except (binascii.Error, UnicodeDecodeError):
            raise ConfigError(f"{self.path}: '{field}-data' is not base64 of PEM text") from None
        except OSError as error:
            raise ConfigError(f"{self.beside(table[field])}: {field} cannot be read: {error.strerror}") from None


def _tls(file: _File, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    authority = file.pem(cluster, "certificate-authority")
    try:
        context = verifying(authority)
    except ssl.SSLError:
        raise ConfigError(f"{file.path}: 'certificate-authority' is no CA certificate") from None
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate, key = file.pem(user, "client-certificate"), file.pem(user, "client-key")
    if certificate:
        _load_chain(context, certificate, key, file.path)
    return context


def _load_chain(context: ssl.SSLContext, certificate: str, key: str, path: Path) -> None:
    """OpenSSL's Python binding reads certificates from files only: a private one, gone at once."""
    with tempfile.NamedTemporaryFile("w", suffix=".pem") as chain:
        chain.write(f"{certificate}\n{key}\n")
        chain.flush()
        try:
            context.load_cert_chain(chain.name)
        except ssl.SSLError as error:
            raise ConfigError(f"{path}: client certificate and key do not fit: {error.reason}") from None
