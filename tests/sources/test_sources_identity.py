"""Where the own cluster's name comes from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from clusters.fake_apiserver import FakeApiServer, running, status

from isthmus import kube
from isthmus.config import ConfigError
from isthmus.kube.access import Access
from isthmus.kube.transport import Transport
from isthmus.sources.identity import cluster_name

ABOUT = "/apis/about.k8s.io"
PROPERTY = "clusterproperties/cluster.clusterset.k8s.io"


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with running() as server:
        server.served = {f"{ABOUT}/v1alpha1": ["clusterproperties"]}
        yield server


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[kube.Client]:
    async with kube.Client(Transport(Access(server=server.url))) as client:
        yield client


async def test_the_property_names_the_cluster_where_nothing_is_configured(
    server: FakeApiServer, client: kube.Client
) -> None:
    server.put(f"{ABOUT}/v1alpha1/{PROPERTY}", spec={"value": "north\n"})
    assert await cluster_name(client) == "north"


async def test_the_configuration_wins_and_the_other_name_is_said(
    server: FakeApiServer, client: kube.Client, capsys: pytest.CaptureFixture[str]
) -> None:
    server.put(f"{ABOUT}/v1alpha1/{PROPERTY}", spec={"value": "north"})
    assert await cluster_name(client, configured="south") == "south"
    assert "cluster has two names" in capsys.readouterr().err


@pytest.mark.parametrize("served", [True, False], ids=["no property", "no such kind"])
async def test_nobody_who_says_it_is_an_error_that_names_both_ways(
    server: FakeApiServer, client: kube.Client, served: bool
) -> None:
    if not served:
        server.served = {"/apis/other/v1": []}
    with pytest.raises(ConfigError, match=r"cluster\.name: not set, and .* ClusterProperty cluster\.clusterset"):
        await cluster_name(client)
    assert await cluster_name(client, configured="south") == "south"


async def test_a_server_that_does_not_tell_matters_only_where_it_is_asked(
    server: FakeApiServer, client: kube.Client
) -> None:
    server.put(f"{ABOUT}/v1alpha1/{PROPERTY}", spec={"value": "north"})
    for _ in range(2):
        server.fail(status(403, "Forbidden"), on=lambda request: request.path.endswith(PROPERTY))
    assert await cluster_name(client, configured="south") == "south"
    with pytest.raises(kube.Forbidden):
        await cluster_name(client)


@pytest.mark.parametrize("name", ["default", "North", "-north", "n" * 33])
async def test_a_name_that_cannot_be_one_says_who_gave_it(
    server: FakeApiServer, client: kube.Client, name: str
) -> None:
    with pytest.raises(ConfigError, match=r"^cluster\.name: "):
        await cluster_name(client, configured=name)
    server.put(f"{ABOUT}/v1alpha1/{PROPERTY}", spec={"value": name})
    with pytest.raises(ConfigError, match=r"^ClusterProperty cluster\.clusterset\.k8s\.io: "):
        await cluster_name(client)
