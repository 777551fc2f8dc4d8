"""A pod's volumes: what is in them (pure), and how they come to be directories that are mounted into containers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from isthmus_lab.layout import Cluster
from isthmus_lab.node import claims
from isthmus_lab.node.config_data import ConfigData, Missing, sources_of
from isthmus_lab.node.objects import Container, Files, Pod, Projection, Volume
from isthmus_lab.node.sandbox import Volume as Bind

PRIVATE, PUBLIC = 0o600, 0o644
Content = dict[str, tuple[bytes, int]]
"""Path within the volume → bytes and mode."""


def contents(pod: Pod, data: ConfigData, fields: Mapping[str, str], *, token: str) -> dict[str, Content]:
    """Content of each volume that has its own. Raises Missing for an object that does not exist."""
    own = (each for each in pod.spec.volumes or () if each.host_path is None and each.persistent_volume_claim is None)
    return {each.name: _content(each, data, fields, token) for each in own}


def write(directory: Path, contents: Mapping[str, Content], *, before: Mapping[str, Content] | None = None) -> None:
    """Make the directories; an empty one keeps what the pod wrote there before its node was started anew.

    ``before`` is what was written last: files that are no longer in it are deleted, equal ones are not touched.
    A file is old or new to its readers, never half.
    """
    for volume, content in contents.items():
        (directory / volume).mkdir(parents=True, exist_ok=True)
        old = (before or {}).get(volume, {})
        for name in old.keys() - content.keys():
            (directory / volume / name).unlink(missing_ok=True)
        for name, (data, mode) in content.items():
            if old.get(name) != (data, mode):
                _put(directory, directory / volume / name, data, mode)


def _put(directory: Path, path: Path, data: bytes, mode: int) -> None:
    draft = directory / ".draft"  # beside the volumes: a pod never sees it
    draft.unlink(missing_ok=True)
    draft.touch(mode=mode)
    draft.write_bytes(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft.rename(path)


def unclaimed(pod: Pod, cluster: Cluster) -> None:
    """Raise Missing if a claim of the pod does not exist or is not bound yet."""
    space = pod.metadata.namespace
    for volume in pod.spec.volumes or ():
        claim = volume.persistent_volume_claim
        if claim is not None and not claims.directory(cluster, space, claim.claim_name).is_dir():
            raise Missing(f"volume {volume.name}: no claim {claim.claim_name} is bound in {space}")


def binds(pod: Pod, container: Container, directory: Path, cluster: Cluster) -> tuple[Bind, ...]:
    """Mounts of a container. Raises Missing for a volume that the pod does not declare."""
    volumes = {each.name: each for each in pod.spec.volumes or ()}
    result = []
    for mount in container.volume_mounts or ():
        if (volume := volumes.get(mount.name)) is None:
            raise Missing(f"container {container.name}: volumeMount {mount.name}: the pod has no such volume")
        source = Path(volume.host_path.path) if volume.host_path else directory / volume.name
        if (claim := volume.persistent_volume_claim) is not None:
            source = claims.directory(cluster, pod.metadata.namespace, claim.claim_name)
        if mount.sub_path:
            source /= _inside(mount.sub_path, f"volumeMount {mount.name}: subPath")
            if volume.empty_dir is not None or claim is not None:
                source.mkdir(parents=True, exist_ok=True)
        written = volume.empty_dir is not None or volume.host_path is not None or claim is not None
        result.append(Bind(str(source), mount.mount_path, read_only=mount.read_only or not written))
    return tuple(result)


def _content(volume: Volume, data: ConfigData, fields: Mapping[str, str], token: str) -> Content:
    if volume.empty_dir is not None:
        return {}
    if volume.projected is not None:
        result: Content = {}
        for source in volume.projected.sources or ():
            result |= _projection(source, data, fields, token)
        return result
    if volume.config_map is None and volume.secret is None and volume.downward_api is None:
        raise Missing(f"volume {volume.name}: of a kind that this node does not know")
    source = Projection(config_map=volume.config_map, secret=volume.secret, downward_api=volume.downward_api)
    return _projection(source, data, fields, token)


def _projection(source: Projection, data: ConfigData, fields: Mapping[str, str], token: str) -> Content:
    result: Content = {}
    for ref, files in sources_of(source.config_map, source.secret):
        mode = PRIVATE if ref.kind == "secret" else PUBLIC
        result |= {
            path: (content, mode)
            for path, content in _files(files, data.get(ref, {}), f"{ref.kind} {ref.name}").items()
        }
    for item in (source.downward_api.items if source.downward_api else None) or ():
        if item.field_ref is None or item.field_ref.field_path not in fields:
            raise Missing(f"downwardAPI {item.path}: only fieldRef of a known field can be had")
        result[_inside(item.path, "downwardAPI")] = fields[item.field_ref.field_path].encode(), PUBLIC
    if source.service_account_token is not None and token:
        result[_inside(source.service_account_token.path, "serviceAccountToken")] = token.encode(), PRIVATE
    return result


def _files(files: Files, data: Mapping[str, bytes], what: str) -> dict[str, bytes]:
    if files.items is None:
        return {_inside(key, what): value for key, value in data.items()}
    for item in files.items:
        if item.key not in data and not files.optional:
            raise Missing(f"{what}: has no key {item.key}")
    return {_inside(item.path, what): data[item.key] for item in files.items if item.key in data}


def _inside(path: str, what: str) -> str:
    """A path that stays within the volume."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not path:
        raise Missing(f"{what}: {path!r} leads out of the volume")
    return str(pure)
