"""Templates that a StatefulSet or DaemonSet had, as ControllerRevisions: what ``kubectl rollout undo`` goes back to."""

from __future__ import annotations

from isthmus_lab.apiserver import kinds
from isthmus_lab.apiserver.api import Api, By, Deletion
from isthmus_lab.apiserver.kinds import Kind
from isthmus_lab.apiserver.objects import Object, at, labels_of, name_of, namespace_of
from isthmus_lab.apiserver.storage import Item
from isthmus_lab.controllers import pods

REVISION = kinds.CONTROLLER_REVISION


async def keep(api: Api, kind: Kind, owner: Object, template_hash: str, *, by: By) -> None:
    """Keep the template as it is, as the newest, and of those before as many as are wanted."""
    name, namespace = named(owner, template_hash), namespace_of(owner)
    known = sorted(pods.owned(api, REVISION, owner), key=_number)
    latest = _number(known[-1]) if known else 0
    mine = next((each for each in known if name_of(each.body) == name), None)
    if mine is None:
        template = owner["spec"]["template"]
        body = {
            "metadata": {
                "name": name,
                "labels": {**at(template, "metadata", "labels", default={}), "controller-revision-hash": template_hash},
                "ownerReferences": [pods.reference(kind, owner)],
            },
            "data": {"spec": {"template": {**template, "$patch": "replace"}}},
            "revision": latest + 1,
        }
        await api.create(REVISION, namespace, body, by=by)
    elif _number(mine) < latest:
        await api.edit(REVISION, namespace, name, lambda old: old | {"revision": latest + 1}, by=by)
    used = {labels_of(pod.body).get("controller-revision-hash") for pod in pods.owned(api, kinds.POD, owner)}
    unused = [each for each in known if labels_of(each.body).get("controller-revision-hash") not in used]
    for each in unused[: -at(owner, "spec", "revisionHistoryLimit", default=10) or None]:
        if name_of(each.body) != name:
            await api.delete(REVISION, namespace, name_of(each.body), Deletion(uid=each.body["metadata"]["uid"]))


def template(api: Api, owner: Object, name: str) -> Object | None:
    """The template of a revision, by the revision's name."""
    found = api.store.get(REVISION.qualified, f"{namespace_of(owner)}/{name}")
    kept = at(found.body, "data", "spec", "template") if found is not None else None
    return {key: value for key, value in kept.items() if key != "$patch"} if kept else None


def named(owner: Object, template_hash: str) -> str:
    """What the revision of a template is called."""
    return f"{name_of(owner)}-{template_hash}"


def _number(item: Item) -> int:
    return int(item.body.get("revision", 0))
