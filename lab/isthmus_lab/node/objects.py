"""A Pod as a node reads it: the fields it acts on. Thinner ones are in isthmus.kube.objects."""

from __future__ import annotations

from typing import Final

from msgspec import field

from isthmus.kube.kind import Kind
from isthmus.kube.objects.meta import Meta, Wire


class FieldRef(Wire, frozen=True):
    """A field of the pod itself: ``metadata.name``."""

    field_path: str


class KeyRef(Wire, frozen=True):
    """A key of a ConfigMap or Secret."""

    name: str = ""
    key: str = ""
    optional: bool = False


class EnvSource(Wire, frozen=True):
    """Source of a variable's value."""

    field_ref: FieldRef | None = None
    config_map_key_ref: KeyRef | None = None
    secret_key_ref: KeyRef | None = None


class ConfigSourceRef(Wire, frozen=True):
    """A whole ConfigMap or Secret."""

    name: str = ""
    optional: bool = False


class EnvFrom(Wire, frozen=True):
    """All keys of a ConfigMap or Secret as variables."""

    prefix: str = ""
    config_map_ref: ConfigSourceRef | None = None
    secret_ref: ConfigSourceRef | None = None


class Item(Wire, frozen=True):
    """A key, or a field of the pod, as a file."""

    path: str
    key: str = ""
    field_ref: FieldRef | None = None


class Files(Wire, frozen=True):
    """A ConfigMap, a Secret or fields of the pod as files. A Secret's volume calls it ``secretName``."""

    name: str = ""
    secret_name: str = ""
    items: list[Item] | None = None
    optional: bool = False


class TokenFile(Wire, frozen=True):
    """A token of the pod's service account as a file."""

    path: str = "token"
    audience: str = ""
    expiration_seconds: int = 3600


class Projection(Wire, frozen=True):
    """One source of a projected volume."""

    config_map: Files | None = None
    secret: Files | None = None
    downward_api: Files | None = field(default=None, name="downwardAPI")
    service_account_token: TokenFile | None = None


class Projected(Wire, frozen=True):
    """Several sources in one directory."""

    sources: list[Projection] | None = None


class HostPath(Wire, frozen=True):
    """A path of the host."""

    path: str


class ClaimRef(Wire, frozen=True):
    """A PersistentVolumeClaim of the pod's namespace."""

    claim_name: str


class EmptyDir(Wire, frozen=True):
    """A directory as old as the pod."""


class Volume(Wire, frozen=True):
    """A volume of a pod. One that has none of these is of a kind this node does not know."""

    name: str
    config_map: Files | None = None
    secret: Files | None = None
    downward_api: Files | None = field(default=None, name="downwardAPI")
    projected: Projected | None = None
    host_path: HostPath | None = None
    empty_dir: EmptyDir | None = None
    persistent_volume_claim: ClaimRef | None = None


class Mount(Wire, frozen=True):
    """Volume mount of a container."""

    name: str
    mount_path: str
    sub_path: str = ""
    read_only: bool = False


class Env(Wire, frozen=True):
    """A variable of a container's environment."""

    name: str
    value: str = ""
    value_from: EnvSource | None = None


class Exec(Wire, frozen=True):
    """A command in the container; success is exit code 0."""

    command: list[str]


class TcpSocket(Wire, frozen=True):
    """A port that accepts."""

    port: int | str
    host: str = ""


class Header(Wire, frozen=True):
    """A header of a probe's request."""

    name: str
    value: str


class HttpGet(Wire, frozen=True):
    """A URL that answers 200 to 399."""

    port: int | str
    path: str = "/"
    host: str = ""
    scheme: str = "HTTP"
    http_headers: list[Header] | None = None


class Grpc(Wire, frozen=True):
    """A server of grpc.health.v1 that answers SERVING for a service ('' for the whole server)."""

    port: int
    service: str = ""


class Probe(Wire, frozen=True):
    """Probe of a container."""

    exec: Exec | None = None
    tcp_socket: TcpSocket | None = None
    http_get: HttpGet | None = None
    grpc: Grpc | None = None
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3


class Port(Wire, frozen=True):
    """A port that a container declares."""

    container_port: int
    name: str = ""
    protocol: str = "TCP"


class Container(Wire, frozen=True):
    """A container of a pod."""

    name: str
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    env: list[Env] | None = None
    env_from: list[EnvFrom] | None = None
    volume_mounts: list[Mount] | None = None
    ports: list[Port] | None = None
    working_dir: str = ""
    stdin: bool = False
    stdin_once: bool = False
    tty: bool = False
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None


class Spec(Wire, frozen=True):
    """Spec of a pod, as far as the node reads it."""

    containers: list[Container]
    init_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    node_name: str = ""
    host_network: bool = False
    hostname: str = ""
    subdomain: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    service_account_name: str = ""


class PodMeta(Meta, frozen=True):
    """Pod metadata with the additional fields that a kubelet reads."""

    deletion_grace_period_seconds: int | None = None


class Status(Wire, frozen=True):
    """The status the last node process wrote, which is all that a new one needs of it."""

    phase: str = ""
    pod_ip: str = field(default="", name="podIP")
    start_time: str | None = None


class Pod(Wire, frozen=True):
    """A Pod."""

    metadata: PodMeta
    spec: Spec
    status: Status = Status()

    @property
    def key(self) -> str:
        """namespace/name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"


class ConfigMap(Wire, frozen=True):
    """A ConfigMap."""

    metadata: Meta
    data: dict[str, str] | None = None
    binary_data: dict[str, str] | None = None


class Secret(Wire, frozen=True):
    """A Secret; its values are base64."""

    metadata: Meta
    data: dict[str, str] | None = None


POD: Final = Kind("", "v1", "pods", "Pod", Pod)
CONFIG_MAP: Final = Kind("", "v1", "configmaps", "ConfigMap", ConfigMap)
SECRET: Final = Kind("", "v1", "secrets", "Secret", Secret)
