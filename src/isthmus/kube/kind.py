"""A kind of object: its path at the API server, and the struct that it is decoded into."""

from __future__ import annotations

from typing import Generic, Protocol, TypeVar

from msgspec import Struct

from isthmus.kube.objects.meta import Meta


class Object(Protocol):
    """Any wire object."""

    @property
    def metadata(self) -> Meta:
        """Name, namespace, labels and the like."""
        ...


T = TypeVar("T", bound=Object)


class Kind(Struct, Generic[T], frozen=True):
    """``group`` is empty for the core group. ``older`` are versions with the same schema that a server may have."""

    group: str
    version: str
    resource: str
    kind: str
    struct: type[T]
    namespaced: bool = True
    older_versions: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.resource}.{self.group}" if self.group else self.resource

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` of such an object."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """The path of the group and version."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str = "", name: str = "", *, subresource: str = "") -> str:
        """The path of all objects, those of a namespace, or one of them."""
        within = f"/namespaces/{namespace}" if namespace and self.namespaced else ""
        tail = "".join(f"/{part}" for part in (name, subresource) if part)
        return f"{self.root}{within}/{self.resource}{tail}"


def key_of(meta: Meta) -> str:
    """Key of an object in stores: 'namespace/name', or 'name' for an object without a namespace."""
    return f"{meta.namespace}/{meta.name}" if meta.namespace else meta.name
