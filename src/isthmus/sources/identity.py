"""What the own cluster is called: by the configuration, or else by what the cluster says of itself (KEP-2149)."""

from __future__ import annotations

from typing import Final

from isthmus import kube, logs
from isthmus.config import ConfigError
from isthmus.kube.objects.about import CLUSTER_PROPERTY
from isthmus.model.names import ClusterName, valid_cluster

PROPERTY: Final = "cluster.clusterset.k8s.io"

log = logs.get("sources")


async def cluster_name(client: kube.Client, *, configured: str = "") -> ClusterName:
    """The cluster's name. The configuration wins, and a property that says otherwise is warned of.

    ConfigError where nobody says it, or it cannot be one; KubeError where only the API server could say and does not.
    """
    try:
        said = (await client.get(CLUSTER_PROPERTY, PROPERTY)).spec.value.strip()
    except kube.NotFound:
        said = ""
    except kube.KubeError as why:
        if not configured:
            raise
        log.info("cluster property not read", name=PROPERTY, why=str(why))
        said = ""
    if configured and said and said != configured:
        log.warning("cluster has two names", configured=configured, property=said, used=configured)
    return _checked(configured or said, "cluster.name" if configured else f"ClusterProperty {PROPERTY}")


def _checked(name: str, source: str) -> ClusterName:
    if not name:
        raise ConfigError(f"cluster.name: not set, and the cluster has no ClusterProperty {PROPERTY} that says it")
    if not valid_cluster(name):
        raise ConfigError(
            f"{source}: '{name}' is no cluster's name: want at most 32 of a-z, 0-9 and -, "
            "beginning and ending with a letter or digit, and not 'default'"
        )
    return ClusterName(name)
