"""Peers' files from a Secret of the API server, in place of a mounted one that a kubelet renews within a minute."""

from __future__ import annotations

from pathlib import Path

from isthmus import kube
from isthmus.clusterset import links
from isthmus.config import Config
from isthmus.processes.observing import Shown, View
from isthmus.running import Tasks
from isthmus.sources import secret_files
from isthmus.sources.secret_files import SecretFiles


async def follow_peers(
    config: Config, client: kube.Client, tasks: Tasks, shown: Shown, *, mirrored: bool = False
) -> None:
    """Keep ``clusterset.directory`` as ``clusterset.secret`` is, from now on; nothing without such an option.

    ``mirrored``: as the Secret is by which a mirror's copies are read.
    Returns once the directory is complete, since tables await the peers that are known when the process starts: at
    once where an earlier process of this pod has filled it, so that a restart needs no API server.
    """
    if not config.clusterset.secret:
        return
    name = links.link_secrets.MIRRORED if mirrored else config.clusterset.secret
    files = SecretFiles(Path(config.clusterset.directory))
    reflector = secret_files.reflector(client, config.kubernetes.namespace, name, files, name="kubernetes/secrets")

    def problems() -> list[str]:
        reason = reflector.state.last_failure or "the API server has not answered yet"
        return [*client.problems(), f"it waits for the Secret {name}, which names its peers: {reason}"]

    tasks.start(reflector.name, reflector.run)
    shown.idle(View(problems=problems))
    await files.read.wait()
