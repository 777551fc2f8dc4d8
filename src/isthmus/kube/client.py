"""The verbs of one API server, for any kind.

Bodies are plain dictionaries of the fields that the caller sets; answers are decoded into the kind's thin struct. The
version in which a server serves a kind is requested once, and remembered until the server does not serve it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from isthmus import bounds
from isthmus.config import KubernetesSection
from isthmus.kube.access import access
from isthmus.kube.errors import KubeError, NotFound, NotServed, Unreachable
from isthmus.kube.kind import Kind, Object
from isthmus.kube.store import LIMITS, KubeStore, Limits, pages, readable
from isthmus.kube.transport import ANSWER, Transport
from isthmus.reflector import Expired

PROBE_EVERY: Final = 30.0
PROBE_TIMEOUT: Final = 10.0
"""Seconds: an API server that hangs is displayed after 40 at most. A thousand agents ask it 33 times a second, a third
of what the leases of their kubelets do."""

T = TypeVar("T", bound=Object)

PatchType = Literal["merge", "json", "strategic"]
_PATCHES: Final[dict[PatchType, str]] = {
    "merge": "application/merge-patch+json",
    "json": "application/json-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


class _Resource(Struct, frozen=True, gc=False):
    name: str
    kind: str = ""
    namespaced: bool = True


class _Resources(Struct, frozen=True, gc=False):
    resources: list[_Resource] | None = None


class _Version(Struct, frozen=True, gc=False, rename="camel"):
    git_version: str = ""


class _TokenStatus(Struct, frozen=True, gc=False):
    token: str


class _TokenRequest(Struct, frozen=True, gc=False):
    status: _TokenStatus


async def connect(section: KubernetesSection) -> Client:
    """A client of the configured API server. Nothing is sent yet; ConfigError names what cannot be used."""
    return Client(Transport(access(section)))


class Client:
    """One API server. Use as an async context manager, or close with :meth:`close`."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._versions: dict[tuple[str, str], str] = {}

    def __repr__(self) -> str:
        return f"<Client of {self._transport!r}>"

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End every request, watches included."""
        await self._transport.close()

    def problems(self) -> list[str]:
        """Reason why the API server cannot be used, and a difference of the clocks, a sentence each."""
        return self._transport.problems()

    def certificates(self) -> list[tuple[str, str]]:
        """The client certificate by which the API server knows us, if there is one: its name, and itself as PEM."""
        return self._transport.certificates()

    async def probe(self) -> None:
        """Ask whether the API server answers, for ever: a watch may be silent for minutes, and so is a server that
        hangs."""
        while True:
            with suppress(KubeError, Expired):
                await self._transport.request("GET", "/version", seconds=PROBE_TIMEOUT)
            await asyncio.sleep(PROBE_EVERY)

    async def version(self, *, seconds: float = ANSWER) -> str:
        """The server's version, ``v1.34.4``; empty where its answer has none. Unreachable after ``seconds``."""
        answer = await self._transport.request("GET", "/version", seconds=seconds)
        try:
            return bounds.json(answer, msgspec.json.Decoder(_Version)).git_version
        except msgspec.MsgspecError:
            return ""

    @property
    def skew(self) -> float:
        """Seconds by which this machine's clock is ahead of the API server's, by its last answer."""
        return self._transport.skew

    async def served(self, kind: Kind[T]) -> Kind[T]:
        """The kind in the version that the server has; NotServed where it has none."""
        if not kind.older_versions:
            return kind
        known = self._versions.get((kind.group, kind.resource))
        for version in (known,) if known else (kind.version, *kind.older_versions):
            candidate = msgspec.structs.replace(kind, version=version)
            if known or await self.serves(candidate):
                self._versions[kind.group, kind.resource] = version
                return candidate
        versions = ", ".join((kind.version, *kind.older_versions))
        raise NotServed(f"{kind}: not served in {versions}; is its CustomResourceDefinition installed?")

    async def kind(self, api_version: str, kind: str, struct: type[T]) -> Kind[T]:
        """A kind as manifests call it, found by asking the server; NotServed where it has none."""
        group, _, version = api_version.rpartition("/")
        unresolved = Kind(group, version, "", kind, struct)
        for resource in await self._resources(unresolved):
            if resource.kind == kind and "/" not in resource.name:
                return msgspec.structs.replace(unresolved, resource=resource.name, namespaced=resource.namespaced)
        raise NotServed(f"{kind} of {api_version}: the API server has no such kind")

    def forget(self, kind: Kind[Any]) -> None:
        """The server does not serve the kind in the version it had: ask again next time."""
        self._versions.pop((kind.group, kind.resource), None)

    async def get(self, kind: Kind[T], name: str, namespace: str = "") -> T:
        """One object; NotFound where there is none."""
        return await self._object("GET", kind, namespace, name)

    async def list(
        self, kind: Kind[T], namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> list[T]:
        """All objects, of one namespace or of all; those we cannot read are left out, with a warning each."""
        served = await self.served(kind)
        items, _ = await pages(
            self._transport,
            served,
            served.path(namespace),
            label_selector=label_selector,
            field_selector=field_selector,
        )
        return [*readable(items, kind).values()]

    def store(
        self,
        kind: Kind[T],
        namespace: str = "",
        *,
        label_selector: str = "",
        field_selector: str = "",
        limits: Limits = LIMITS,
        unreadable: bool = False,
    ) -> KubeStore[T]:
        """Return a reflector's Store of the objects, keyed 'namespace/name' or 'name'.

        ``unreadable``: an object that cannot be decoded is an :class:`isthmus.reflector.Unreadable`, for a sink that
        expects it.
        """
        return KubeStore(
            self,
            self._transport,
            kind,
            namespace,
            label_selector=label_selector,
            field_selector=field_selector,
            limits=limits,
            unreadable=unreadable,
        )

    async def create(self, kind: Kind[T], namespace: str, body: Mapping[str, Any]) -> T:
        """A new object; AlreadyExists where its name is taken."""
        return await self._object("POST", kind, namespace, body=body)

    async def replace(
        self, kind: Kind[T], namespace: str, name: str, body: Mapping[str, Any], *, subresource: str = ""
    ) -> T:
        """The whole object anew; with metadata.resourceVersion in the body, Conflict where it has changed since."""
        return await self._object("PUT", kind, namespace, name, body=body, subresource=subresource)

    async def apply(
        self,
        kind: Kind[T],
        namespace: str,
        name: str,
        body: Mapping[str, Any],
        *,
        field_manager: str,
        force: bool = True,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """Server-side apply: the fields in the body are ours; those we set before and no longer set go.

        ``dry_run``: return the object as it would become, and change nothing.
        """
        metadata = {**body.get("metadata", {}), "name": name, **({"namespace": namespace} if namespace else {})}
        return await self._object(
            "PATCH",
            kind,
            namespace,
            name,
            body={**body, "metadata": metadata},
            subresource=subresource,
            content_type="application/apply-patch+yaml",
            params={
                "fieldManager": field_manager,
                "force": "true" if force else "false",
                **({"dryRun": "All"} if dry_run else {}),
            },
        )

    async def patch(
        self,
        kind: Kind[T],
        namespace: str,
        name: str,
        body: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        *,
        type: PatchType = "merge",
        subresource: str = "",
        field_manager: str = "",
    ) -> T:
        """Change some fields."""
        params = {"fieldManager": field_manager} if field_manager else {}
        served = await self.served(kind)
        path = served.path(namespace, name, subresource=subresource)
        encoded = msgspec.json.encode(body)
        return await self._send("PATCH", served, path, namespace, name, encoded, _PATCHES[type], params)

    async def token(self, namespace: str, account: str, *, seconds: int) -> str:
        """A token of a service account, good for so long (TokenRequest)."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        head = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        body = msgspec.json.encode({**head, "spec": {"expirationSeconds": seconds}})
        what = f"POST token of serviceaccounts {namespace}/{account}"
        answer = await self._transport.request("POST", path, body=body, content_type="application/json", what=what)
        try:
            return bounds.json(answer, msgspec.json.Decoder(_TokenRequest)).status.token
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{what}: the answer is no TokenRequest: {error}") from None

    async def delete(
        self, kind: Kind[Any], namespace: str, name: str, *, uid: str = "", grace: int | None = None
    ) -> bool:
        """Delete an object, only with this uid if given. Returns ``False`` if it did not exist."""
        options: dict[str, Any] = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        served = await self.served(kind)
        try:
            await self._transport.request(
                "DELETE",
                served.path(namespace, name),
                body=msgspec.json.encode(options),
                what=_what("DELETE", served, namespace, name),
            )
        except NotFound:
            return False
        return True

    async def _object(
        self,
        method: str,
        kind: Kind[T],
        namespace: str,
        name: str = "",
        *,
        body: Mapping[str, Any] | None = None,
        subresource: str = "",
        content_type: str = "application/json",
        params: Mapping[str, str] | None = None,
    ) -> T:
        served = await self.served(kind)
        path = served.path(namespace, name, subresource=subresource)
        whole = {**body, "apiVersion": served.api_version, "kind": served.kind} if body is not None else None
        encoded = msgspec.json.encode(whole) if whole is not None else None
        return await self._send(method, served, path, namespace, name, encoded, content_type, params)

    async def _send(
        self,
        method: str,
        kind: Kind[T],
        path: str,
        namespace: str,
        name: str,
        body: bytes | None,
        content_type: str,
        params: Mapping[str, str] | None,
    ) -> T:
        what = _what(method, kind, namespace, name)
        try:
            answer = await self._transport.request(
                method, path, params=params, body=body, content_type=content_type, what=what
            )
        except NotServed:
            self.forget(kind)
            raise
        try:
            return bounds.json(answer, msgspec.json.Decoder(kind.struct))
        except msgspec.MsgspecError as error:
            raise Unreachable(f"{what}: the answer is no {kind.kind}: {error}") from None

    async def serves(self, kind: Kind[Any]) -> bool:
        """True if the server serves the kind in exactly this version."""
        return any(each.name == kind.resource for each in await self._resources(kind))

    async def _resources(self, kind: Kind[Any]) -> Sequence[_Resource]:
        """Return the resources that the server serves in the kind's group and version."""
        try:
            answer = await self._transport.request("GET", kind.root, what=f"GET {kind.root}")
        except NotFound:
            return []
        try:
            return bounds.json(answer, msgspec.json.Decoder(_Resources)).resources or []
        except msgspec.MsgspecError as error:
            raise Unreachable(f"GET {kind.root}: the answer is no list of resources: {error}") from None


def _what(method: str, kind: Kind[Any], namespace: str, name: str) -> str:
    return f"{method} {kind.resource} {'/'.join(part for part in (namespace, name) if part)}".rstrip()
