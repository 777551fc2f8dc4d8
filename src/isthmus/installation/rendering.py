"""The manifests of deploy/ as a list of objects, equal to what ``kubectl kustomize`` renders.

Only the fields of a kustomization that deploy/ uses are known, and any other is refused by name, so that a manifest
never has less effect here than with kubectl. A test compares both, object by object, for each set of components.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from msgspec import Struct

from isthmus.installation.merging import merged

Object = dict[str, Any]

ROUTES: Final = "routes"
ISLANDS: Final = "islands"
"""Component that patches what ``routes`` adds."""
PART_OF: Final = "app.kubernetes.io/part-of"
"""Label of every object that is applied; its value is ``isthmus``."""
VARIABLES: Final = "isthmus-cluster"
"""ConfigMap of the variables of cluster.env, without the suffix of its content."""
CLUSTER_SCOPED: Final = frozenset({
    "Namespace", "CustomResourceDefinition", "ClusterRole", "ClusterRoleBinding", "PriorityClass", "StorageClass",
    "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration",
})  # fmt: skip
ORDER: Final = (
    "Namespace", "CustomResourceDefinition", "PriorityClass", "ServiceAccount", "Role", "ClusterRole", "RoleBinding",
    "ClusterRoleBinding", "ConfigMap", "Secret", "NetworkPolicy", "Service",
)  # fmt: skip
"""Kinds that are applied before all others, in this order: what an object refers to precedes it."""
FIELDS: Final = frozenset({
    "apiVersion", "kind", "namespace", "resources", "components", "images", "configMapGenerator", "labels", "patches",
})  # fmt: skip
_HASH_LETTERS: Final = str.maketrans("013ae", "ghkmt")
"""Kustomize replaces these, so that a suffix spells no word (kyaml/hasher)."""
HASH_LENGTH: Final = 10


class RenderingError(Exception):
    """A kustomization cannot be rendered; the message names the file and the field."""


class Options(Struct, frozen=True, kw_only=True):
    """Differences between clusters."""

    components: tuple[str, ...] | None = None
    """Components instead of those that kustomization.yaml names."""
    variables: Mapping[str, str] = {}
    """Variables of cluster.env by name; others keep the values of the files."""
    images: Mapping[str, str] = {}
    """Image by the name that the manifests have: ``isthmus`` → ``registry.example/isthmus:0.1.0``."""


def render(folder: Path, options: Options = Options()) -> list[Object]:  # noqa: B008
    """Return the objects of a kustomization in the order in which they are applied."""
    built = _Build(options)
    root = _kustomization(folder)
    built.accumulate(folder, root, components=options.components)
    objects = [*built.objects.values(), *built.config_maps()]
    renamed = {plain: name for plain, name in built.names().items() if plain != name}
    images = _images(root.get("images", ()), options.images)
    labels = {key: value for each in root.get("labels", ()) for key, value in _pairs(each, folder).items()}
    finished = [_finished(each, root.get("namespace", ""), labels, renamed, images) for each in objects]
    return sorted(finished, key=lambda item: _rank(item["kind"]))


def components(folder: Path) -> list[str]:
    """Names of the components below a folder, in an order in which each may patch what an earlier one adds."""
    files = sorted(folder.glob("*/kustomization.yaml"))
    names = [each.parent.name for each in files if yaml.safe_load(each.read_text()).get("kind") == "Component"]
    order = (*default_components(folder), ROUTES, ISLANDS)
    return sorted(names, key=lambda name: order.index(name) if name in order else len(order))


def default_components(folder: Path) -> tuple[str, ...]:
    """Names of the components that kustomization.yaml has."""
    return tuple(_kustomization(folder).get("components", ()))


def images(folder: Path) -> dict[str, str]:
    """Images of kustomization.yaml by the name that the manifests use."""
    return _images(_kustomization(folder).get("images", ()), {})


def _rank(kind: str) -> int:
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


class _Build:
    """Objects and generated ConfigMaps while a kustomization and its components are read."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self.objects: dict[tuple[str, str], Object] = {}
        """Objects by kind and name."""
        self._data: dict[str, dict[str, str]] = {}
        """Data of the generated ConfigMaps by name."""

    def accumulate(self, folder: Path, root: Mapping[str, Any], components: Iterable[str] | None = None) -> None:
        """Add the resources of a kustomization, then what it generates, its components, and its patches."""
        for name in root.get("resources", ()):
            if (folder / name).is_dir():
                self.accumulate(folder / name, _kustomization(folder / name))
            else:
                for item in yaml.safe_load_all((folder / name).read_text()):
                    if item:
                        self.objects[item["kind"], item["metadata"]["name"]] = item
        for generator in root.get("configMapGenerator", ()):
            self._generate(folder, generator)
        for name in root.get("components", ()) if components is None else components:
            self.accumulate(folder / name, _kustomization(folder / name))
        for patch in root.get("patches", ()):
            self._patch(folder, patch)

    def _generate(self, folder: Path, generator: Mapping[str, Any]) -> None:
        name = generator["name"]
        _refuse(generator.keys() - {"name", "behavior", "envs", "files", "literals"}, folder, "configMapGenerator")
        data = {} if generator.get("behavior", "create") == "create" else dict(self._data[name])
        for file in generator.get("envs", ()):
            data |= variables(folder / file)
        for file in generator.get("files", ()):
            data[Path(file).name] = (folder / file).read_text()
        data |= dict(each.split("=", 1) for each in generator.get("literals", ()))
        self._data[name] = data

    def _patch(self, folder: Path, patch: Mapping[str, Any]) -> None:
        text = patch["patch"] if "patch" in patch else (folder / patch["path"]).read_text()
        content = yaml.safe_load(text)
        target = patch.get("target") or {"kind": content["kind"], "name": content["metadata"]["name"]}
        _refuse(target.keys() - {"kind", "name"}, folder, "patches.target")
        key = (target["kind"], target["name"])
        if key not in self.objects:
            return
        if isinstance(content, list):
            for operation in content:
                self.objects[key] = _operated(self.objects[key], operation, folder)
        elif content.get("$patch") == "delete":
            del self.objects[key]
        else:
            self.objects[key] = merged(self.objects[key], content)

    def _final_data(self, name: str) -> dict[str, str]:
        return {**self._data[name], **(self._options.variables if name == VARIABLES else {})}

    def names(self) -> dict[str, str]:
        """Names of the generated ConfigMaps with the suffix of their content, by the names without."""
        return {name: f"{name}-{_suffix(self._final_data(name))}" for name in self._data}

    def config_maps(self) -> list[Object]:
        """The generated ConfigMaps."""
        return [
            {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": self._final_data(plain)}
            for plain, name in self.names().items()
        ]


def variables(file: Path) -> dict[str, str]:
    """The variables of an env file."""
    lines = (line.strip() for line in file.read_text().splitlines())
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def _kustomization(folder: Path) -> dict[str, Any]:
    try:
        root: dict[str, Any] = yaml.safe_load((folder / "kustomization.yaml").read_text())
    except OSError as error:
        raise RenderingError(f"{folder / 'kustomization.yaml'}: cannot be read: {error.strerror}") from None
    _refuse(root.keys() - FIELDS, folder, "")
    return root


def _refuse(unknown: Iterable[str], folder: Path, where: str) -> None:
    if names := sorted(unknown):
        place = f"{where}: " if where else ""
        raise RenderingError(
            f"{folder / 'kustomization.yaml'}: {place}'{names[0]}' is not supported by isthmus install"
        )


def _pairs(entry: Mapping[str, Any], folder: Path) -> dict[str, str]:
    _refuse(entry.keys() - {"pairs"}, folder, "labels")
    return dict(entry["pairs"])


def _images(entries: Iterable[Mapping[str, str]], chosen: Mapping[str, str]) -> dict[str, str]:
    images = {}
    for entry in entries:
        name, tag, digest = entry.get("newName", entry["name"]), entry.get("newTag"), entry.get("digest")
        images[entry["name"]] = f"{name}@{digest}" if digest else f"{name}:{tag}" if tag else name
    return {**images, **chosen}


def _operated(item: Object, operation: Mapping[str, Any], folder: Path) -> Object:
    """Return an object with one operation of a JSON patch (RFC 6902) applied: ``add`` and ``replace`` to maps."""
    if operation["op"] not in ("add", "replace"):
        _refuse([operation["op"]], folder, "patches: op")
    copy: Object = json.loads(json.dumps(item))
    *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
    place: Any = copy
    for part in parents:
        place = place[int(part)] if isinstance(place, list) else place[part]
    if isinstance(place, list):
        if last == "-":
            place.append(operation["value"])
        elif operation["op"] == "replace":
            place[int(last)] = operation["value"]
        else:
            place.insert(int(last), operation["value"])
    else:
        place[last] = operation["value"]
    return copy


def _suffix(data: Mapping[str, str]) -> str:
    """Kustomize's suffix of a ConfigMap: its JSON as Go writes it, hashed.

    The hashed name is empty, since kustomize looks for a field that is called ``metadata/name`` (api/hasher/hasher.go).
    """
    fields = {"data": data or "", "kind": "ConfigMap", "name": ""}
    content = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for letter in "<>&\u2028\u2029":
        content = content.replace(letter, f"\\u{ord(letter):04x}")
    return hashlib.sha256(content.encode()).hexdigest()[:HASH_LENGTH].translate(_HASH_LETTERS)


def _finished(
    item: Object, namespace: str, labels: Mapping[str, str], renamed: Mapping[str, str], images: Mapping[str, str]
) -> Object:
    metadata = dict(item["metadata"])
    if namespace and item["kind"] not in CLUSTER_SCOPED:
        metadata["namespace"] = namespace
    metadata["labels"] = {**metadata.get("labels", {}), **labels}
    finished: Object = _changed({**item, "metadata": metadata}, lambda value: _with_names(value, renamed, images))
    return finished


def _changed(value: Any, change: Callable[[Mapping[str, Any]], Object]) -> Any:
    """Return a value with every map in it changed."""
    if isinstance(value, Mapping):
        return change({field: _changed(each, change) for field, each in value.items()})
    return [_changed(each, change) for each in value] if isinstance(value, list) else value


def _with_names(item: Mapping[str, Any], renamed: Mapping[str, str], images: Mapping[str, str]) -> Object:
    """Return a map with the final names of the ConfigMaps that it refers to, and of its image."""
    result = dict(item)
    for field in ("configMap", "configMapRef", "configMapKeyRef"):
        reference = result.get(field)
        if isinstance(reference, Mapping) and reference.get("name") in renamed:
            result[field] = {**reference, "name": renamed[reference["name"]]}
    if isinstance(image := result.get("image"), str) and image.partition(":")[0] in images:
        result["image"] = images[image.partition(":")[0]]
    return result
