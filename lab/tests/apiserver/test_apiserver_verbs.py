"""Create, read, change, delete: what every kind has in common, over HTTP."""

from __future__ import annotations

import asyncio

from clusters.apiserver_world import Client, Object


def config(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


async def test_a_created_object_has_an_identity_and_can_be_read(client: Client) -> None:
    made = await client.made("configmaps", config("a", x="1"))
    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert made["kind"] == "ConfigMap"
    assert (await client.get("configmaps/a")).body == made


async def test_a_name_can_be_taken_once(client: Client) -> None:
    await client.made("configmaps", config("a"))
    again = await client.create("configmaps", config("a"))
    assert (again.status, again.reason) == (409, "AlreadyExists")
    assert again.body["message"] == 'configmaps "a" already exists'


async def test_a_generated_name_begins_as_asked(client: Client) -> None:
    made = await client.made("configmaps", {"metadata": {"generateName": "some-"}})
    assert made["metadata"]["name"].startswith("some-")
    assert len(made["metadata"]["name"]) == 10


async def test_what_is_not_there_is_not_found(client: Client) -> None:
    gone = await client.get("deployments/none")
    assert (gone.status, gone.body["message"]) == (404, 'deployments.apps "none" not found')
    assert (await client.get("/apis/nowhere/v1/things")).status == 404
    elsewhere = await client.create("/api/v1/namespaces/not-there/configmaps", config("a"))
    assert (elsewhere.status, elsewhere.body["message"]) == (404, 'namespaces "not-there" not found')


async def test_no_request_passes_without_the_token(client: Client) -> None:
    for token in ("", "Bearer wrong"):
        stranger = await client.call("GET", "configmaps", headers={"Authorization": token})
        assert (stranger.status, stranger.reason) == (401, "Unauthorized")


async def test_an_update_of_an_old_version_is_a_conflict_and_of_no_version_is_not(client: Client) -> None:
    old = await client.made("configmaps", config("a", x="1"))
    new = await client.call("PUT", "configmaps/a", old | {"data": {"x": "2"}})
    assert new.status == 200
    late = await client.call("PUT", "configmaps/a", old | {"data": {"x": "3"}})
    assert (late.status, late.reason) == (409, "Conflict")
    assert (await client.call("PUT", "configmaps/a", config("a", x="4"))).body["data"] == {"x": "4"}


async def test_an_update_that_changes_nothing_is_no_new_version(client: Client) -> None:
    made = await client.made("configmaps", config("a", x="1"))
    same = await client.call("PUT", "configmaps/a", made)
    assert same.revision == made["metadata"]["resourceVersion"]


async def test_many_patches_at_once_all_take_effect(client: Client) -> None:
    await client.made("configmaps", config("a"))
    replies = await asyncio.gather(*(client.patch("configmaps/a", {"data": {f"k{i}": "v"}}) for i in range(20)))
    assert {reply.status for reply in replies} == {200}
    assert len((await client.get("configmaps/a")).body["data"]) == 20


async def test_generation_counts_changes_of_spec_and_status_is_written_by_itself(client: Client) -> None:
    path = "serviceexports/a"
    made = await client.made("serviceexports", {"metadata": {"name": "a"}, "status": {"conditions": [{"type": "X"}]}})
    assert made["metadata"]["generation"] == 1
    assert "status" not in made
    labelled = await client.patch(path, {"metadata": {"labels": {"a": "b"}}, "status": {"conditions": []}})
    assert labelled.body["metadata"]["generation"] == 1
    assert "status" not in labelled.body
    changed = await client.patch(path, {"spec": {"exportedLabels": {"a": "b"}}})
    assert changed.body["metadata"]["generation"] == 2
    written = await client.patch(path + "/status", {"status": {"conditions": [{"type": "Y"}]}, "spec": None})
    assert written.body["status"] == {"conditions": [{"type": "Y"}]}
    assert written.body["spec"] == {"exportedLabels": {"a": "b"}}
    assert written.body["metadata"]["generation"] == 2


async def test_both_versions_of_a_kind_are_one_object(client: Client) -> None:
    await client.made("serviceexports", {"metadata": {"name": "a"}})
    base = f"/apis/multicluster.x-k8s.io/v1alpha1/namespaces/{client.namespace}/serviceexports"
    assert (await client.get(base + "/a")).body["apiVersion"] == "multicluster.x-k8s.io/v1alpha1"
    listed = (await client.get(base)).body
    assert listed["apiVersion"] == "multicluster.x-k8s.io/v1alpha1"
    assert listed["items"][0]["apiVersion"] == "multicluster.x-k8s.io/v1alpha1"
    assert (await client.get("serviceexports/a")).body["apiVersion"] == "multicluster.x-k8s.io/v1beta1"


async def test_a_deletion_can_name_what_it_means(client: Client) -> None:
    made = await client.made("configmaps", config("a"))
    other = await client.delete("configmaps/a", {"preconditions": {"uid": "another"}})
    assert (other.status, other.reason) == (409, "Conflict")
    right = await client.delete("configmaps/a", {"preconditions": {"uid": made["metadata"]["uid"]}})
    assert (right.status, right.body["status"]) == (200, "Success")
    assert (await client.get("configmaps/a")).status == 404


async def test_an_object_with_a_finalizer_goes_when_the_finalizer_does(client: Client) -> None:
    await client.made("configmaps", {"metadata": {"name": "a", "finalizers": ["example.com/wait"]}})
    marked = await client.delete("configmaps/a")
    assert marked.body["metadata"]["deletionTimestamp"]
    assert (await client.get("configmaps/a")).status == 200
    freed = await client.patch("configmaps/a", {"metadata": {"finalizers": None}})
    assert freed.status == 200
    assert (await client.get("configmaps/a")).status == 404


async def test_lists_are_of_one_namespace_or_of_all_and_selected(client: Client) -> None:
    for name in "abc":
        await client.made("configmaps", {"metadata": {"name": name, "labels": {"n": name, "test": client.namespace}}})

    async def names(path: str) -> list[str]:
        return [each["metadata"]["name"] for each in (await client.get(path)).body["items"]]

    assert await names("configmaps?labelSelector=n%20in%20(a,c)") == ["a", "c"]
    assert await names("configmaps?labelSelector=n,n!=b") == ["a", "c"]
    assert await names("configmaps?labelSelector=!nothing,test") == ["a", "b", "c"]
    assert await names("configmaps?fieldSelector=metadata.name=b") == ["b"]
    assert await names(f"/api/v1/configmaps?labelSelector=test={client.namespace}") == ["a", "b", "c"]


async def test_pages_are_of_one_moment(client: Client) -> None:
    for index in range(7):
        await client.made("configmaps", {"metadata": {"name": f"a{index}", "labels": {"mine": "yes"}}})
    first = (await client.get("configmaps?limit=3&labelSelector=mine")).body
    await client.delete("configmaps/a6")
    await client.made("configmaps", {"metadata": {"name": "a7", "labels": {"mine": "yes"}}})
    names = [each["metadata"]["name"] for each in first["items"]]
    page = first
    while "continue" in page["metadata"]:
        token = page["metadata"]["continue"]
        page = (await client.get(f"configmaps?limit=3&labelSelector=mine&continue={token}")).body
        assert page["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        names += [each["metadata"]["name"] for each in page["items"]]
    assert names == [f"a{index}" for index in range(7)]


async def test_a_collection_can_be_deleted_by_selector(client: Client) -> None:
    for name in "abc":
        await client.made("configmaps", {"metadata": {"name": name, "labels": {"n": name}}})
    gone = await client.delete("configmaps?labelSelector=n%20notin%20(b),n")
    assert [each["metadata"]["name"] for each in gone.body["items"]] == ["a", "c"]
    left = (await client.get("configmaps?labelSelector=n")).body["items"]
    assert [each["metadata"]["name"] for each in left] == ["b"]


async def test_a_dry_run_changes_nothing(client: Client) -> None:
    made = await client.call("POST", "configmaps?dryRun=All", config("a"))
    assert made.status == 201
    assert (await client.get("configmaps/a")).status == 404


async def test_bodies_that_make_no_sense_are_refused_with_a_reason(client: Client) -> None:
    assert (await client.call("POST", "configmaps", ["no"])).status == 400
    wrong = await client.create("configmaps", {"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "a"}})
    assert wrong.status == 400
    assert "Kind=Secret" in wrong.body["message"]
    bad = await client.create("configmaps", config("Not_A_Name"))
    assert (bad.status, bad.reason) == (422, "Invalid")
    assert bad.body["details"]["causes"][0]["field"] == "metadata.name"
    assert bad.body["message"].startswith('ConfigMap "Not_A_Name" is invalid: metadata.name: Invalid value: "Not_A_Na')


async def test_a_list_can_be_of_an_exact_moment(client: Client) -> None:
    await client.made("leases", {"metadata": {"name": "a"}})
    then = (await client.get("leases")).revision
    await client.made("leases", {"metadata": {"name": "b"}})
    past = (await client.get(f"leases?resourceVersion={then}&resourceVersionMatch=Exact")).body
    assert [each["metadata"]["name"] for each in past["items"]] == ["a"]
    assert past["metadata"]["resourceVersion"] == then
    future = await client.get("leases?resourceVersion=99999999&resourceVersionMatch=Exact")
    assert (future.status, future.reason) == (410, "Expired")
