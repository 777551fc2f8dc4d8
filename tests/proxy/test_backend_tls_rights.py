"""BackendTLSPolicies with the rights of ``deploy/routes/rbac.yaml`` and the API's own definition, on kube-apiserver."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from clusters.apiserver_world import TIMEOUT
from clusters.kube_apiserver import KubeApiServer
from clusters.rights import GROUP, KINDS, user
from machine import certificates, programs

from isthmus import kube
from isthmus.desired import ApiTarget
from isthmus.kube.objects.core import CONFIG_MAP
from isthmus.kube.objects.gateway import BACKEND_TLS_POLICY
from isthmus.model.names import ServiceName
from isthmus.model.services import Port, Service
from isthmus.model.tables import AUTHORITIES, BACKEND_TLS, BACKEND_TLS_OBJECTS, SERVICES
from isthmus.processes.start import tables_of
from isthmus.proxy import backend_tls_objects
from isthmus.sources.backend_tls import Authorities, policy
from isthmus.statedb import Database, Derivations
from isthmus_lab.realapi import definitions

pytestmark = [pytest.mark.kube, pytest.mark.needs("gateway-conformance")]

RBAC = Path(__file__).resolve().parents[2] / "deploy" / "routes" / "rbac.yaml"
POLICY = {
    "metadata": {"name": "safe"},
    "spec": {
        "targetRefs": [{"group": "", "kind": "Service", "name": "safe"}],
        "validation": {
            "hostname": "safe.example",
            "caCertificateRefs": [{"group": "", "kind": "ConfigMap", "name": "ca"}],
            "subjectAltNames": [{"type": "URI", "uri": "spiffe://example/safe"}],
        },
    },
}


async def allow(admin: kube.Client, process: str) -> None:
    """The role that deploy/ binds to a process, for the user of its name."""
    name = f"isthmus-{process}-routes"
    [role] = [
        each for each in yaml.safe_load_all(RBAC.read_text()) if each["metadata"]["name"] == name and "rules" in each
    ]
    await admin.apply(KINDS["ClusterRole"], "", name, role, field_manager="test")
    binding: dict[str, Any] = {
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": name},
        "subjects": [user(process)],
    }
    await admin.apply(KINDS["ClusterRoleBinding"], "", name, binding, field_manager="test")


async def test_the_operator_reads_a_policys_authority_and_writes_its_status_and_an_agent_may_list_none(
    kube_apiserver: KubeApiServer, tmp_path: Path
) -> None:
    await kube_apiserver.ready()
    file = programs.BUILT / "gateway-crds" / "gateway.networking.k8s.io_backendtlspolicies.yaml"
    definition = yaml.safe_load(file.read_text())
    authority = certificates.Authority(tmp_path).cert.read_text()
    async with (
        await kube.connect(kube_apiserver.section()) as admin,
        await kube.connect(kube_apiserver.section("operator")) as operator,
        await kube.connect(kube_apiserver.section("agent")) as agent,
        asyncio.timeout(TIMEOUT),
    ):
        await admin.apply(definitions.DEFINITION, "", definition["metadata"]["name"], definition, field_manager="test")
        for process in ("operator", "agent"):
            await allow(admin, process)
        await admin.create(CONFIG_MAP, "default", {"metadata": {"name": "ca"}, "data": {"ca.crt": authority}})
        while not await admin.serves(BACKEND_TLS_POLICY):
            admin.forget(BACKEND_TLS_POLICY)
            await asyncio.sleep(0.05)
        await admin.create(BACKEND_TLS_POLICY, "default", POLICY)

        declared = backend_tls_objects.derived()
        db = Database(*tables_of([declared]))
        derivations = Derivations(db, declared)
        reading = asyncio.create_task(Authorities(db, operator, read_every=0.1).run())
        stored = policy(await admin.get(BACKEND_TLS_POLICY, "safe", "default"))
        with db.write() as txn:
            txn.put(SERVICES, Service(name=ServiceName("default/safe"), source="kubernetes", ports=(Port("http", 80),)))
            txn.put(BACKEND_TLS, stored)
        await db.until(lambda now: any(row.certificates for row in now.all(AUTHORITIES)))
        reading.cancel()
        while derivations.step():
            pass
        target, rows = ApiTarget(operator, backend_tls_objects.KINDS), [*db.snapshot().all(BACKEND_TLS_OBJECTS)]
        while await target.update(rows):  # the definition and the role reach the server's parts one by one
            operator.forget(BACKEND_TLS_POLICY)
            await asyncio.sleep(0.05)
        status = (await admin.get(BACKEND_TLS_POLICY, "safe", "default")).status
        assert status is not None
        [entry] = status.ancestors or []
        assert [(each["type"], each["status"]) for each in entry["conditions"]] == [
            ("Accepted", "True"),
            ("ResolvedRefs", "True"),
        ]
        assert (await agent.get(CONFIG_MAP, "ca", "default")).data == {"ca.crt": authority}
        with pytest.raises(kube.Forbidden):
            await agent.list(CONFIG_MAP)
