"""Carries a rotation of the authority out: evidence in, files of the folder out.

A pass of the keeper first moves the folder to the next step, in memory, and writes the Secret afterwards as it does
with every change; restart and report follow once it is written. So a process that ends at any point leaves either the
step before or the whole of the next one, and the next process restarts the etcd where that was not done.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from cryptography import x509
from cryptography.x509.oid import NameOID

from isthmus import bounds, kube, logs
from isthmus.clusterset import certificates, joining, pki
from isthmus.clusterset.errors import PkiError
from isthmus.clusterset.joining import OwnCluster
from isthmus.clusterset.joining.rights import remote_user
from isthmus.clusterset.keeping import rotation
from isthmus.clusterset.keeping.rotation import Reader, Step
from isthmus.config import KeysSection
from isthmus.etcd import Tls, served_certificate
from isthmus.kube.objects.apps import STATEFUL_SET, StatefulSet
from isthmus.kube.objects.core import CONFIG_MAP
from isthmus.model.names import ClusterName
from isthmus.reflector import Transient
from isthmus.times import timestamp

AUTHORITY_ROTATION: Final = "isthmus-authority-rotation"
"""ConfigMap in which a person requests a rotation, and in which its state is displayed. Nothing in it is secret."""
REQUESTED: Final = "requested"
"""Field of a person: the time before which an authority must have been made to be replaced."""
ETCD: Final = "isthmus-etcd"
"""StatefulSet of the own etcd, which reads the authorities of clients only when it starts."""
TRUSTED: Final = "isthmus.io/trusted-authorities"
"""Annotation of its pods: digest of the bundle with which they started. Another value restarts them."""
MANAGER: Final = "isthmus-keys"
PART: Final = {"app.kubernetes.io/part-of": "isthmus"}

log = logs.get("keys")


class Rotation:
    """Rotates the authority of one cluster. ``readers``: peers that read the own etcd by a certificate.

    ``published`` returns the digest of the trust bundle that the own etcd was last seen to have.
    """

    def __init__(
        self,
        client: kube.Client,
        home: OwnCluster,
        section: KeysSection,
        *,
        namespace: str,
        published: Callable[[], str],
    ) -> None:
        self.readers: Mapping[ClusterName, Reader] = {}
        self.requests: Mapping[str, str] = {}
        """Fields of the ConfigMap, when it was last read."""
        self.problem = ""
        self.step = Step.STEADY
        self.waits: tuple[str, ...] = ()
        """Reasons why the present step is not complete."""
        self._client = client
        self._home = home
        self._section = section
        self._namespace = namespace
        self._published = published
        self._complete_since: datetime | None = None
        """Time since which nothing holds the step up. A process that has just started begins the pause anew."""
        self._displayed: dict[str, str] | None = None

    def __repr__(self) -> str:
        return f"<Rotation: {self.sentence()}>"

    def sentence(self) -> str:
        """Describe the state."""
        match self.step:
            case Step.STEADY:
                return "one authority, which signs"
            case Step.TRUSTING:
                state = "another authority is trusted, and will sign next"
            case Step.SIGNING:
                state = "another authority signs, and the old one will be forgotten"
        return f"{state}; waits for: {'; '.join(self.waits)}" if self.waits else state

    async def advance(self) -> list[str]:
        """Move the folder to the next step if the present one is complete; returns what was done, for the log."""
        folder, now = self._home.folder, datetime.now(UTC)
        if not (folder.path / "ca.crt").exists():
            return []
        try:
            data = self.requests = await self._data()
            self.problem = ""
            self.step = rotation.step(folder)
            if self.step is Step.STEADY:
                self.waits = ()
                return self._begin(data.get(REQUESTED, ""), now)
            return await self._finish_step(now)
        except (kube.KubeError, PkiError) as error:
            self.problem = f"the authority is not rotated: {AUTHORITY_ROTATION}: {error}"
            log.warning("authority not rotated", why=str(error))
            return []

    def _begin(self, requested: str, now: datetime) -> list[str]:
        folder = self._home.folder
        issuer = f"{self._section.issuer_kind} {self._section.issuer}"
        if self._section.issuer and (sentence := rotation.ending(folder.authority, now)):
            self.problem = f"{sentence}; {issuer} has to sign by another one"
        if not (reason := rotation.due(folder.authority, requested, now)):
            return []
        if self._section.issuer:
            self.waits = (f"the authority is that of {issuer}, and is replaced there: {reason}",)
            return []
        folder.begin_rotation(self._home.name)
        self._enter(Step.TRUSTING, rotation.Progress(timestamp(now), timestamp(now)))
        return [f"another authority, trusted beside the old one: {reason}"]

    async def _finish_step(self, now: datetime) -> list[str]:
        folder = self._home.folder
        progress = rotation.progress(folder, timestamp(now))
        folder.save(rotation.FILE, msgspec.json.encode(progress))
        own, peers = await self._own_reasons(), rotation.unconfirmed(self.step, folder, self.readers, self._manual())
        self.waits = (*own, *peers)
        overdue = rotation.overdue(bounds.timestamp(progress.step_began), self._section.rotation_wait, now)
        if own or (peers and not overdue):
            self._complete_since = None
            return []
        self._complete_since = self._complete_since or now
        if now - self._complete_since < bounds.span(self._section.rotation_pause):
            return []
        if peers:
            log.warning("authority is rotated without peers that did not confirm it", peers=peers)
        if self.step is Step.TRUSTING:
            folder.switch()
            self._enter(Step.SIGNING, rotation.Progress(progress.began, timestamp(now)))
            return ["the new authority signs"]
        folder.end_rotation()
        (folder.path / rotation.FILE).unlink()
        self._enter(Step.STEADY, None)
        return ["the old authority is forgotten"]

    def _enter(self, step: Step, progress: rotation.Progress | None) -> None:
        self.step, self.waits, self._complete_since = step, (), None
        if progress is not None:
            self._home.folder.save(rotation.FILE, msgspec.json.encode(progress))

    def _manual(self) -> list[ClusterName]:
        """Peers that authenticate by a password, from which nothing confirms that they refreshed."""
        prefix = remote_user(ClusterName(""))
        return [
            ClusterName(user.removeprefix(prefix)) for user in self._home.folder.readers() if user.startswith(prefix)
        ]

    async def _own_reasons(self) -> list[str]:
        """Reasons why the own etcd has not completed the step."""
        trusted = pki.digest(self._home.folder.bundle)
        if self.step is Step.TRUSTING:
            if reason := await self._rollout(trusted):
                return [reason]
            if self._published() != trusted:
                return ["the trust bundle is not in the own etcd yet"]
            if not self._home.folder.tried:
                return [f"{self._section.issuer_kind} {self._section.issuer} has not signed a certificate to try yet"]
            if not all([await joining.trusts_next(store) for store in self._home.stores()]):
                return [
                    "the own etcd does not admit the new authority: restart it, it reads its authorities at its start"
                ]
            return []
        path = self._home.folder.path
        tls = Tls("", str(path / "admin.crt"), str(path / "admin.key"))
        for endpoint in (each for store in self._home.stores() for each in store.etcd.endpoints):
            try:
                shown = await served_certificate(endpoint, tls)
            except Transient as error:
                return [f"the own etcd cannot be reached: {error}"]
            if not pki.issued(shown, self._home.folder.authority):
                return [f"the own etcd at {endpoint} still shows a certificate of the old authority"]
        return []

    async def _rollout(self, trusted: str) -> str:
        """Reason why pods of the own etcd did not all start with a bundle; empty also without a StatefulSet."""
        if (etcd := await self._etcd()) is None:
            return ""
        count = 1 if etcd.spec.replicas is None else etcd.spec.replicas
        done = (
            _trusted(etcd) == trusted
            and etcd.status.observed_generation >= etcd.metadata.generation
            and (etcd.status.updated_replicas or 0) >= count
            and (etcd.status.ready_replicas or 0) >= count
        )
        return "" if done else f"StatefulSet {ETCD} is restarting its pods"

    async def settle(self) -> None:
        """Restart the own etcd for another bundle, and display the state. To be called once the Secrets are written."""
        try:
            await self._restart()
            await self._display()
        except kube.KubeError as error:
            self.problem = f"the rotation of the authority: {error}"
            log.warning("etcd not restarted, or rotation not displayed", why=str(error))

    async def _restart(self) -> None:
        """Restart its pods unless they started with this bundle. Without any rotation they are left alone."""
        if (etcd := await self._etcd()) is None:
            return
        current = _trusted(etcd)
        trusted = pki.digest(self._home.folder.bundle)
        if current != trusted and (current or rotation.step(self._home.folder) is not Step.STEADY):
            body = {"spec": {"template": {"metadata": {"annotations": {TRUSTED: trusted}}}}}
            await self._client.patch(STATEFUL_SET, self._namespace, ETCD, body, field_manager=MANAGER)
            log.info("own etcd restarts, since it is to trust other authorities")

    async def _etcd(self) -> StatefulSet | None:
        try:
            return await self._client.get(STATEFUL_SET, ETCD, self._namespace)
        except kube.NotFound:
            return None

    async def _display(self) -> None:
        authority = x509.load_pem_x509_certificate(self._home.folder.authority)
        names = [each.value for each in authority.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        data = {
            "step": str(rotation.step(self._home.folder)),
            "authority": str(names[0] if names else authority.subject.rfc4514_string()),
            "made": timestamp(authority.not_valid_before_utc + certificates.SKEW),
            "ends": timestamp(authority.not_valid_after_utc),
            "waitsFor": "; ".join(self.waits),
            "peers": ", ".join(sorted({*self.readers, *self._manual()})),
        }
        if data != self._displayed:
            body = {"metadata": {"labels": PART}, "data": data}
            await self._client.apply(CONFIG_MAP, self._namespace, AUTHORITY_ROTATION, body, field_manager=MANAGER)
            self._displayed = data

    async def _data(self) -> dict[str, str]:
        try:
            data = (await self._client.get(CONFIG_MAP, AUTHORITY_ROTATION, self._namespace)).data or {}
        except kube.NotFound:
            data = {}
        if self._displayed is not None and not self._displayed.items() <= data.items():
            self._displayed = None  # it was deleted or changed
        return data


def _trusted(etcd: StatefulSet) -> str:
    """Digest of the bundle with which its pods are to start; empty if none was set."""
    return (etcd.spec.template.metadata.annotations or {}).get(TRUSTED, "")
