"""Requests to an issuer of cert-manager, as objects in the API server (``keys.issuer``).

A pass gets all certificates that are due. Other requests with its label, whose certificates are in use or whose hosts
have changed, are deleted. One that failed stays as its own account, and is made again after a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from math import inf
from typing import Final

from isthmus import kube, logs
from isthmus.clusterset.keeping import answers
from isthmus.clusterset.keeping.answers import Issued, SigningRequest
from isthmus.config import KeysSection
from isthmus.kube.objects.cert_manager import CERTIFICATE_REQUEST, CertificateRequest

LABEL: Final = "isthmus.io/certificates-of"
"""Label of a request: ``roles`` of this cluster, or its ``peers``."""
PATIENCE: Final = 30.0
"""Seconds after which a request that is only waiting is a problem."""
RETRY_AFTER: Final = 600.0
"""Seconds after which a request that failed is deleted and made again. A person may delete it sooner."""

log = logs.get("keys")


class Issuer:
    """Has certificates signed by the configured issuer. ``use`` is the value of the label.

    ``reasons``: why there is no certificate yet, by what it is for.
    """

    def __init__(self, client: kube.Client, namespace: str, section: KeysSection, *, use: str) -> None:
        self.reasons: dict[str, str] = {}
        self._client = client
        self._namespace = namespace
        self._section = section
        self._use = use
        self._unused = False
        """True if the last pass had nothing to request and left no request."""
        self._asked: dict[str, float] = {}
        """Time at which each request was first seen to have no certificate."""
        self._final: set[str] = set()

    def __repr__(self) -> str:
        return f"<Issuer {self._section.issuer} for {self._use}: {len(self.reasons)} not signed>"

    def problems(self) -> list[str]:
        """Certificates that failed, or that have not been signed for a while, a sentence each."""
        now = asyncio.get_running_loop().time()
        return [
            f"{self._section.issuer_kind} {self._section.issuer} has not signed the certificate of {purpose}: {reason}"
            for purpose, reason in self.reasons.items()
            if purpose in self._final or now - self._asked.get(purpose, -inf) > PATIENCE
        ]

    async def certificates(self, due: Mapping[str, SigningRequest]) -> dict[str, Issued]:
        """Return the certificates that are signed. Never raises for what an issuer or the server does."""
        now = asyncio.get_running_loop().time()
        self._asked = {purpose: self._asked.get(purpose, now) for purpose in due}
        self._final &= due.keys()
        self.reasons = {}
        if not due and self._unused:
            return {}
        try:
            existing = await self._existing()
        except kube.KubeError as error:
            self._final = {*due}
            self.reasons = dict.fromkeys(due, _reason(error))
            return {}
        names = {answers.name(purpose, each, self._section): purpose for purpose, each in due.items()}
        for obsolete in existing.keys() - names.keys():
            await self._delete(obsolete)
        self._unused = not due
        signed = {}
        for name, purpose in names.items():
            if (issued := await self._look(purpose, name, due[purpose], existing.get(name))) is not None:
                signed[purpose] = issued
        return signed

    async def _existing(self) -> dict[str, CertificateRequest]:
        selector = f"{LABEL}={self._use}"
        listed = await self._client.list(CERTIFICATE_REQUEST, self._namespace, label_selector=selector)
        return {each.metadata.name: each for each in listed}

    async def _look(
        self, purpose: str, name: str, request: SigningRequest, observed: CertificateRequest | None
    ) -> Issued | None:
        if observed is None:
            await self._create(purpose, name, request)
            return None
        answer = answers.answer(observed, request)
        if answer.issued is not None:
            self._final.discard(purpose)
            return answer.issued
        self.reasons[purpose] = f"CertificateRequest {name}: {answer.reason}"
        if not answer.final:
            self._final.discard(purpose)
            return None
        now = asyncio.get_running_loop().time()
        if purpose not in self._final:
            self._asked[purpose] = now
            log.warning("certificate not issued", of=purpose, why=self.reasons[purpose])
        self._final.add(purpose)
        if now - self._asked[purpose] > RETRY_AFTER:
            await self._delete(name)
            self._asked[purpose] = now
        return None

    async def _create(self, purpose: str, name: str, request: SigningRequest) -> None:
        labels = {"app.kubernetes.io/part-of": "isthmus", LABEL: self._use}
        body = {"metadata": {"name": name, "labels": labels}, **answers.body(request, self._section)}
        try:
            await self._client.create(CERTIFICATE_REQUEST, self._namespace, body)
            self._final.discard(purpose)
            self.reasons[purpose] = f"CertificateRequest {name} was made just now"
            log.info("certificate requested", of=purpose, request=name)
        except kube.KubeError as error:
            self._final.add(purpose)
            self.reasons[purpose] = _reason(error)

    async def _delete(self, name: str) -> None:
        try:
            await self._client.delete(CERTIFICATE_REQUEST, self._namespace, name)
        except kube.KubeError as error:
            log.warning("request for a certificate not deleted", request=name, why=str(error))


def _reason(error: kube.KubeError) -> str:
    if isinstance(error, kube.NotServed):
        return "cert-manager is not installed: the API server has no CertificateRequests"
    if isinstance(error, kube.Forbidden):
        return f"apply the component issuer, which permits it: {error}"
    return str(error)
