"""CustomResourceDefinitions: kinds that come and go while the server runs."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from clusters.apiserver_world import ApiServer, Client, Kubectl, Object, connected, until

from isthmus_lab.apiserver import jsonpath

WIDGETS = """
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: widgets, singular: widget, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    additionalPrinterColumns:
    - {name: Size, type: integer, jsonPath: .spec.size}
    - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
          spec:
            type: object
            x-kubernetes-preserve-unknown-fields: true
            properties:
              parts:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [name]
                items: {type: object, properties: {name: {type: string}}}
"""
ONE = "apiVersion: example.com/v1\nkind: Widget\nmetadata: {name: one}\nspec: {size: 3}\n"


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".a.b", [1]),
        ("{.a['b']}", [1]),
        (".list[0].n", ["x"]),
        (".list[-1].n", ["y"]),
        (".list[*].n", ["x", "y"]),
        ('.list[?(@.n=="y")].v', [2]),
        (r".dotted\.key", ["d"]),
        (".nothing.here", []),
    ],
)
def test_json_paths_find_what_they_say(path: str, expected: list[Any]) -> None:
    doc = {"a": {"b": 1}, "list": [{"n": "x", "v": 1}, {"n": "y", "v": 2}], "dotted.key": "d"}
    assert jsonpath.parse(path)(doc) == expected


def test_what_is_no_json_path_is_refused() -> None:
    with pytest.raises(ValueError, match="not a JSON path"):
        jsonpath.parse(".a[?(@.b>1)]")


async def test_a_defined_kind_is_served_shown_and_goes_with_its_definition(kubectl: Kubectl, client: Client) -> None:
    await kubectl("apply", "-f", "-", stdin=WIDGETS)
    await kubectl("wait", "--for=condition=Established", "crd/widgets.example.com", "--timeout=180s")
    await kubectl("apply", "-f", "-", stdin=ONE)
    base = f"/apis/example.com/v1/namespaces/{client.namespace}/widgets/one"
    status = {"conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(f"{base}/status", {"status": status})
    header, row = (line.split() for line in (await kubectl("get", "wd")).splitlines())
    assert (header, row[:3]) == (["NAME", "SIZE", "READY", "AGE"], ["one", "3", "True"])
    assert "customresourcedefinition.apiextensions.k8s.io" in await kubectl("get", "crd", "-o", "name")

    def parts(*names: str) -> Object:
        body = {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "one"}}
        return body | {"spec": {"parts": [{"name": name} for name in names]}}

    await client.apply(base, parts("a"), manager="alice")
    both = await client.apply(base, parts("b"), manager="bob")
    assert both.body["spec"]["parts"] == [{"name": "a"}, {"name": "b"}]
    await kubectl("delete", "crd", "widgets.example.com", "--timeout=180s")
    assert (await client.get(base)).status == 404
    assert "(NotFound)" in await kubectl("get", "widgets", fails=True)


@pytest.mark.slow
async def test_defined_kinds_survive_a_restart(own_server: ApiServer) -> None:
    async with connected(own_server, "here") as client:
        names = {"plural": "gadgets", "kind": "Gadget"}
        spec: Object = {"group": "example.com", "scope": "Cluster", "names": names}
        spec |= {"versions": [{"name": "v1", "served": True, "storage": True}]}
        definition = {"metadata": {"name": "gadgets.example.com"}, "spec": spec}
        created = await client.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        assert created.status == 201
        await client.until("/apis/example.com/v1", lambda body: body.get("resources"))
        body = {"apiVersion": "example.com/v1", "kind": "Gadget", "metadata": {"name": "a"}}
        await client.made("/apis/example.com/v1/gadgets", body)
        own_server.stop()
        own_server.start()
        await asyncio.to_thread(until, own_server.ready)
        assert (await client.get("/apis/example.com/v1/gadgets/a")).status == 200


async def test_a_definition_of_a_built_in_kind_changes_nothing(client: Client) -> None:
    group = "multicluster.x-k8s.io"
    spec: Object = {
        "group": group,
        "scope": "Namespaced",
        "names": {"plural": "serviceexports", "kind": "ServiceExport"},
    }
    spec |= {"versions": [{"name": "v1alpha1", "served": True, "storage": True}]}
    where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    made = await client.create(where, {"metadata": {"name": f"serviceexports.{group}"}, "spec": spec})
    assert made.status == 201
    await client.until(f"{where}/serviceexports.{group}", lambda body: body.get("status"))
    await client.made("serviceexports", {"metadata": {"name": "a"}})
    await client.delete(f"{where}/serviceexports.{group}")
    await client.until(f"{where}/serviceexports.{group}", lambda body: body.get("code") == 404)
    assert (await client.get("serviceexports/a")).status == 200
