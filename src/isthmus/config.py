"""One typed configuration for every process: file, then environment, then flags; the later wins.

A TOML file has the sections below; ``ISTHMUS_DATAPATH_PIN=/sys/fs/bpf/x`` or ``--set datapath.pin=/sys/fs/bpf/x`` sets
one field. An unknown section or field, or a value of the wrong type, is one error line naming it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_type_hints

import msgspec
from msgspec import Struct

ENVIRONMENT = "ISTHMUS_"


class ConfigError(Exception):
    """The configuration cannot be used; the message names source and field."""


class Section(Struct, frozen=True, forbid_unknown_fields=True):
    """A section of the file."""


class ClusterSection(Section, frozen=True):
    """Who we are. The id is the cluster's number in the clusterset, 1 to 255."""

    name: str = ""
    id: int = 0
    network: str = ""
    region: str = ""
    zone: str = ""


class NodeSection(Section, frozen=True):
    """Which node this is, as the API server calls it (agent and dns only)."""

    name: str = ""


class KubernetesSection(Section, frozen=True):
    """The own cluster's API server: a kubeconfig and its context, or nothing for the Pod's service account."""

    kubeconfig: str = ""
    context: str = ""


class EtcdSection(Section, frozen=True):
    """The own cluster's etcd: addresses as URLs; files of a CA and a client certificate for https."""

    endpoints: tuple[str, ...] = ()
    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    username: str = ""
    password_file: str = ""


class ClustersetSection(Section, frozen=True):
    """The peers: a directory with one file per cluster, in Cilium's format, and what to do when one is away."""

    directory: str = ""
    state: str = ""
    """Directory for the peers' last known state; empty: it is not kept."""
    cache_lifetime: float = 600.0
    """Seconds after which the endpoints of a peer that cannot be reached go; 0: never."""
    max_connected_clusters: Literal[255, 511] = 255


class DatapathSection(Section, frozen=True):
    """The kernel. ``cgroup`` is the one of all pods of the node; empty: no datapath, names only."""

    cgroup: str = ""
    pin: str = "/sys/fs/bpf/isthmus"
    services: Literal["multicluster", "all"] = "multicluster"
    max_entries: int = 65536
    grace: float = 1.0
    """Seconds for which what a connect may still have read is kept."""
    exempt: tuple[str, ...] = ()
    """Cgroups whose calls, and those of all below them, are never touched."""


class DnsSection(Section, frozen=True):
    """Names. ``listen`` is the node's server, ``cluster_dns`` the address in the pods' resolv.conf."""

    zone: str = "clusterset.local"
    listen: str = "169.254.7.1:53"
    cluster_dns: str = ""
    upstream: str = ""
    """Where questions that are not ours go; empty: to ``cluster_dns``."""
    agent: str = ""
    """The agent's admin socket, where the names come from."""
    deadline: float = 1.0
    """Seconds after which the kernel stops steering questions to a server that does not say it is alive."""


class AdminSection(Section, frozen=True):
    """The process's local socket."""

    socket: str = ""


class SyncSection(Section, frozen=True):
    """How long a list waits for tables that are not complete, in seconds, before it is given as partial."""

    timeout: float = 60.0


class LogSection(Section, frozen=True):
    """Logging."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"


class Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything a process can be told. Each process reads the sections it needs."""

    cluster: ClusterSection = ClusterSection()
    node: NodeSection = NodeSection()
    kubernetes: KubernetesSection = KubernetesSection()
    etcd: EtcdSection = EtcdSection()
    clusterset: ClustersetSection = ClustersetSection()
    datapath: DatapathSection = DatapathSection()
    dns: DnsSection = DnsSection()
    admin: AdminSection = AdminSection()
    sync: SyncSection = SyncSection()
    log: LogSection = LogSection()


def load(path: Path | None, *, environment: Mapping[str, str], flags: Iterable[str] = ()) -> Config:
    """The configuration from a file, variables and ``section.field=value`` flags; ConfigError says what is wrong."""
    source = str(path) if path else "flags"
    try:
        raw: dict[str, Any] = tomllib.loads(path.read_text()) if path else {}
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    for variable, value in sorted(environment.items()):
        if variable.startswith(ENVIRONMENT):
            section, _, field = variable.removeprefix(ENVIRONMENT).lower().partition("_")
            if section in Config.__struct_fields__:
                _set(raw, section, field, value)
    for flag in flags:
        name, equals, value = flag.partition("=")
        section, dot, field = name.partition(".")
        if not equals or not dot:
            raise ConfigError(f"--set {flag}: want section.field=value")
        _set(raw, section, field, value)
    try:
        return msgspec.convert(raw, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from None


def to_toml(config: Config) -> str:
    """The configuration as a file, only what differs from the defaults."""
    lines = []
    for name in Config.__struct_fields__:
        section, default = getattr(config, name), getattr(Config(), name)
        changed = [f for f in section.__struct_fields__ if getattr(section, f) != getattr(default, f)]
        if changed:
            lines += [f"[{name}]", *(f"{field} = {_toml(getattr(section, field))}" for field in changed), ""]
    return "\n".join(lines)


def _set(raw: dict[str, Any], section: str, field: str, value: str) -> None:
    table = raw.setdefault(section, {})
    kind = get_type_hints(Config).get(section)
    is_list = kind is not None and get_type_hints(kind).get(field) == tuple[str, ...]
    table[field] = [part for part in value.split(",") if part] if is_list else value


def _toml(value: Any) -> str:
    """TOML's basic strings, numbers, booleans and arrays are written as JSON writes them."""
    return msgspec.json.encode(value).decode()
