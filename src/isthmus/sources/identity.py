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
    """Return the cluster's name. The configuration wins; a property with another value is logged.

    Raises ConfigError if neither gives a valid name, and KubeError if none is configured and the API server cannot be
    read.
    """
    try:
        named = (await client.get(CLUSTER_PROPERTY, PROPERTY)).spec.value.strip()
    except kube.NotFound:
        named = ""
    except kube.KubeError as error:
        if not configured:
            raise
        log.info("cluster property not read", name=PROPERTY, why=str(error))
        named = ""
    if configured and named and named != configured:
        log.warning("cluster has two names", configured=configured, property=named, used=configured)
    return _checked(configured or named, "cluster.name" if configured else f"ClusterProperty {PROPERTY}")


def _checked(name: str, source: str) -> ClusterName:
    if not name:
        raise ConfigError(f"cluster.name: not set, and the cluster has no ClusterProperty {PROPERTY} that names it")
    if not valid_cluster(name):
        raise ConfigError(
            f"{source}: '{name}' is no cluster's name: want at most 32 of a-z, 0-9 and -, "
            "beginning and ending with a letter or digit, and not 'default'"
        )
    return ClusterName(name)
