"""The own cluster's name: from the configuration, or else from its ClusterProperty (KEP-2149)."""

from __future__ import annotations

from typing import Final

from isthmus import kube, logs
from isthmus.config import ConfigError
from isthmus.kube.objects.about import CLUSTER_PROPERTY
from isthmus.model.names import ClusterName, valid_cluster

PROPERTY: Final = "cluster.clusterset.k8s.io"

log = logs.get("sources")


async def cluster_name(client: kube.Client, *, configured: str = "") -> ClusterName:
    """The cluster's name. The configuration wins; a property of another value is logged.

    ConfigError where neither has it, or it is not a valid name; KubeError where it is not configured and the API server
    cannot be read.
    """
    try:
        found = (await client.get(CLUSTER_PROPERTY, PROPERTY)).spec.value.strip()
    except kube.NotFound:
        found = ""
    except kube.KubeError as why:
        if not configured:
            raise
        log.info("cluster property not read", name=PROPERTY, why=str(why))
        found = ""
    if configured and found and found != configured:
        log.warning("cluster has two names", configured=configured, property=found, used=configured)
    return _checked(configured or found, "cluster.name" if configured else f"ClusterProperty {PROPERTY}")


def _checked(name: str, source: str) -> ClusterName:
    if not name:
        raise ConfigError(f"cluster.name: not set, and the cluster has no ClusterProperty {PROPERTY} that names it")
    if not valid_cluster(name):
        raise ConfigError(
            f"{source}: '{name}' is no cluster's name: want at most 32 of a-z, 0-9 and -, "
            "beginning and ending with a letter or digit, and not 'default'"
        )
    return ClusterName(name)
