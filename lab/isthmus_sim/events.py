"""The events of a story: a list, one per line, which people can read, shorten and repeat.

    12.400 export c1 demo/echo team=red
    15.020 cut c1.a c2.etcd 40

The first number is the second at which it happens. Each event can be left out without harm to the others: that is what
makes a list that can be shrunk. A fault that lasts has its seconds as its last word and heals by itself.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from isthmus_lab.apiserver.errors import ApiError
from isthmus_lab.apiserver.kinds import MCS
from isthmus_lab.apiserver.objects import Object
from isthmus_sim.apiserver import PEOPLE, ApiServer
from isthmus_sim.clusters import Cluster, Clusters

NAMESPACES: Final = ("demo", "shop")
NAMES: Final = ("echo", "web")
LONGEST: Final = 45
"""Seconds of the longest fault."""


class Event(NamedTuple):
    """One line."""

    at: float
    verb: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join((f"{self.at:.3f}", self.verb, *self.words))

    @property
    def lasts(self) -> float:
        """Seconds until its effect ends by itself."""
        return float(self.words[-1]) if self.verb in FAULTS and self.verb not in MOMENTARY else 0.0


def parse(text: str) -> list[Event]:
    """The events of a file; empty lines and comments are skipped."""
    lines = (line.partition("#")[0].split() for line in text.splitlines())
    return [Event(float(line[0]), line[1], tuple(line[2:])) for line in lines if line]


# What tenants do.


async def _service(clusters: Clusters, cluster: str, key: str, port: str, form: str) -> None:
    """Recreate a Service, possibly with another type and other ports."""
    api, (namespace, name) = clusters[cluster].api, key.split("/")
    await _delete(api, "", "services", key)
    ports = [{"name": "http", "port": int(port), "targetPort": 8080}, {"name": "metrics", "port": 9090}]
    spec: Object = {"ports": ports, "selector": {"app": name}}
    spec |= {"clusterIP": "None"} if form == "headless" else {}
    spec |= {"sessionAffinity": "ClientIP"} if form == "affinity" else {}
    await _create(api, "", "services", namespace, {"metadata": {"name": name}, "spec": spec})


async def _unservice(clusters: Clusters, cluster: str, key: str) -> None:
    await _delete(clusters[cluster].api, "", "services", key)


async def _export(clusters: Clusters, cluster: str, key: str, label: str) -> None:
    """Export a Service, or change the labels of its export."""
    api, (namespace, name) = clusters[cluster].api, key.split("/")
    kind = api.kind(MCS, "serviceexports")
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": {"exportedLabels": {"team": label}}}
    body |= {"apiVersion": kind.api_version(), "kind": kind.kind}
    await api.api.apply(kind, namespace, name, body, author=PEOPLE, force=True)


async def _unexport(clusters: Clusters, cluster: str, key: str) -> None:
    await _delete(clusters[cluster].api, MCS, "serviceexports", key)


async def _pods(clusters: Clusters, cluster: str, key: str, count: str) -> None:
    """Set the number of ready endpoints of a Service."""
    api, (namespace, name) = clusters[cluster].api, key.split("/")
    number = cluster.removeprefix("c")
    third = NAMESPACES.index(namespace) * 10 + NAMES.index(name)
    addresses = [f"10.{number}.{third}.{each}" for each in range(1, int(count) + 1)]
    kind = api.kind("discovery.k8s.io", "endpointslices")
    body: Object = {
        "apiVersion": kind.api_version(),
        "kind": kind.kind,
        "metadata": {
            "name": f"{name}-abc",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "endpoints": [{"addresses": [each], "conditions": {"ready": True}} for each in addresses],
        "ports": [
            {"name": "http", "port": 8080, "protocol": "TCP"},
            {"name": "metrics", "port": 9090, "protocol": "TCP"},
        ],
    }
    await api.api.apply(kind, namespace, f"{name}-abc", body, author=PEOPLE, force=True)


async def _namespace(clusters: Clusters, cluster: str, name: str) -> None:
    """Delete a namespace with its contents and create it again; or create it if it does not exist."""
    api = clusters[cluster].api
    kind = api.kind("", "namespaces")
    try:
        await api.api.delete(kind, "", name)
    except ApiError as error:
        if error.code != 404:
            raise
    for _ in range(100):
        try:
            await api.api.create(kind, "", {"metadata": {"name": name}}, author=PEOPLE)
        except ApiError:
            await asyncio.sleep(0.1)
        else:
            return


async def _leave(clusters: Clusters, cluster: str, peer: str) -> None:
    """Two clusters stop following each other."""
    clusters[cluster].unlink(peer)
    clusters[peer].unlink(cluster)


async def _join(clusters: Clusters, cluster: str, peer: str) -> None:
    clusters[cluster].link(peer)
    clusters[peer].link(cluster)


# Faults.


async def _kill(clusters: Clusters, host: str, seconds: str) -> None:
    """Kill a replica; its kubelet starts another after a while."""
    clusters.kill(host)
    clusters.later(float(seconds), lambda: clusters.start(host))


async def _stop(clusters: Clusters, host: str, seconds: str) -> None:
    clusters.stop(host)
    clusters.later(float(seconds), lambda: clusters.start(host))


async def _pause(clusters: Clusters, host: str, seconds: str) -> None:
    clusters.pause(host)
    clusters.later(float(seconds), lambda: clusters.resume(host))


async def _cut(clusters: Clusters, source: str, target: str, seconds: str) -> None:
    """Swallow what one host sends to another."""
    clusters.network.cut(source, target)
    clusters.later(float(seconds), lambda: clusters.network.heal(source, target))


async def _slow(clusters: Clusters, source: str, target: str, milliseconds: str, seconds: str) -> None:
    clusters.network.slow(source, target, int(milliseconds))
    clusters.later(float(seconds), lambda: clusters.network.slow(source, target, -int(milliseconds)))


async def _reset(clusters: Clusters, one: str, other: str) -> None:
    clusters.network.reset(one, other)


async def _down(clusters: Clusters, server: str, seconds: str) -> None:
    """Stop a server for this long and start it again; an etcd forgets its users' tokens."""
    clusters.network.take_down(server, clusters.hosts)
    cluster = clusters.of(server)
    if server == cluster.etcd.name:
        cluster.etcd.restarted()
    else:
        cluster.api.store.break_watches()
    clusters.later(float(seconds), lambda: clusters.network.bring_up(server))


async def _trouble(clusters: Clusters, server: str, code: str, seconds: str) -> None:
    """Answer a third of the requests to an API server with an error."""
    trouble = clusters.of(server).api.trouble

    def end() -> None:
        trouble[int(code)] -= 1

    trouble[int(code)] += 1
    clusters.later(float(seconds), end)


async def _expire(clusters: Clusters, server: str) -> None:
    """Compact the history of a server, and end its watches."""
    cluster = clusters.of(server)
    if server == cluster.etcd.name:
        cluster.etcd.compact()
        for host in clusters.hosts:
            clusters.network.reset(host, server)
    else:
        cluster.api.store.compacted()
        cluster.api.store.break_watches()


async def _lose(clusters: Clusters, server: str, seconds: str) -> None:
    """Restart an etcd without its data."""
    await _down(clusters, server, seconds)
    clusters.of(server).etcd.clear()


async def _wipe(clusters: Clusters, host: str) -> None:
    """Lose the disk of a replica, and with it what it last knew of peers."""
    clusters.of(host).wipe(host)


async def _tokens(clusters: Clusters, server: str) -> None:
    """Make an etcd forget the tokens of its users."""
    clusters.of(server).etcd.expire_tokens()


VERBS: Final[dict[str, Callable[..., Any]]] = {
    "service": _service,
    "unservice": _unservice,
    "export": _export,
    "unexport": _unexport,
    "pods": _pods,
    "namespace": _namespace,
    "leave": _leave,
    "join": _join,
    "kill": _kill,
    "stop": _stop,
    "pause": _pause,
    "cut": _cut,
    "slow": _slow,
    "reset": _reset,
    "down": _down,
    "trouble": _trouble,
    "expire": _expire,
    "lose": _lose,
    "tokens": _tokens,
    "wipe": _wipe,
}
FAULTS: Final = frozenset(
    {"kill", "stop", "pause", "cut", "slow", "reset", "down", "trouble", "expire", "lose", "tokens", "wipe"}
)
MOMENTARY: Final = frozenset({"reset", "expire", "tokens", "wipe"})


async def happen(clusters: Clusters, event: Event) -> None:
    """Carry out an event. A change that the API server refuses (no namespace, no object) has no effect."""
    try:
        await VERBS[event.verb](clusters, *event.words)
    except ApiError as error:
        if error.code >= 500:
            raise


# Stories.


def story(chance: random.Random, names: Sequence[str], *, count: int, seconds: float) -> list[Event]:
    """This many random events within some seconds, after the Services of all clusters exist.

    Half of them follow another one at once, in the same cluster: what goes wrong is seldom one thing.
    """
    events = _beginning(chance, names)
    at, cluster = 0.0, names[0]
    for _ in range(count):
        if chance.random() < 0.5:
            at += chance.uniform(0.0, 4.0)
        else:
            at, cluster = chance.uniform(20.0, seconds), chance.choice(list(names))
        verb = chance.choices(list(CHANCES), weights=list(CHANCES.values()))[0]
        other = chance.choice([each for each in names if each != cluster])
        events.append(Event(round(max(at, 20.0), 3), verb, _words(chance, cluster, other, verb)))
    return sorted(events)


CHANCES: Final = {
    "service": 6,
    "unservice": 2,
    "export": 8,
    "unexport": 4,
    "pods": 8,
    "namespace": 2,
    "leave": 1,
    "join": 3,
    "kill": 4,
    "stop": 2,
    "pause": 2,
    "cut": 5,
    "slow": 2,
    "reset": 3,
    "down": 3,
    "trouble": 3,
    "expire": 2,
    "lose": 1,
    "tokens": 2,
    "wipe": 1,
}
"""Relative frequency of each verb."""


def _beginning(chance: random.Random, names: Sequence[str]) -> list[Event]:
    events = []
    for cluster in names:
        for key in (f"{namespace}/{name}" for namespace in NAMESPACES for name in NAMES):
            at = round(chance.uniform(0.0, 5.0), 3)
            events.append(Event(at, "service", (cluster, key, "80", "plain")))
            events.append(Event(at, "pods", (cluster, key, str(chance.randrange(1, 4)))))
            if chance.random() < 0.6:
                events.append(Event(round(chance.uniform(5.0, 15.0), 3), "export", (cluster, key, "red")))
    return sorted(events)


def _words(chance: random.Random, cluster: str, other: str, verb: str) -> tuple[str, ...]:
    key = f"{chance.choice(NAMESPACES)}/{chance.choice(NAMES)}"
    host = f"{cluster}.{chance.choice('ab')}"
    servers = (f"{cluster}.api", f"{cluster}.etcd", f"{other}.etcd")
    seconds = str(chance.choice((1, 2, 5, 10, 20, LONGEST)))
    server = chance.choice(servers[:2])
    match verb:
        case "service":
            return (
                cluster,
                key,
                chance.choice(("80", "81")),
                chance.choice(("plain", "plain", "headless", "affinity")),
            )
        case "unservice" | "unexport":
            return (cluster, key)
        case "export":
            return (cluster, key, chance.choice(("red", "blue")))
        case "pods":
            return (cluster, key, str(chance.randrange(4)))
        case "namespace":
            return (cluster, chance.choice(NAMESPACES))
        case "leave" | "join":
            return (cluster, other)
        case "kill" | "stop":
            return (host, seconds)
        case "pause":
            return (host, str(chance.choice((1, 2, 3))))
        case "cut":
            ends = [host, chance.choice(servers)]
            chance.shuffle(ends)
            return (*ends, seconds)
        case "slow":
            ends = [host, chance.choice(servers)]
            chance.shuffle(ends)
            return (*ends, str(chance.choice((50, 300, 1500))), seconds)
        case "wipe":
            return (host,)
        case "reset":
            return (host, chance.choice(servers))
        case "down":
            return (server, seconds)
        case "trouble":
            return (servers[0], chance.choice(("409", "429", "500")), seconds)
        case "expire":
            return (server,)
        case "lose":
            return (servers[1], seconds)
        case _:
            return (servers[1],)


async def _create(api: ApiServer, group: str, resource: str, namespace: str, body: Object) -> None:
    await api.api.create(api.kind(group, resource), namespace, body, author=PEOPLE)


async def _delete(api: ApiServer, group: str, resource: str, key: str) -> None:
    namespace, name = key.split("/")
    try:
        await api.api.delete(api.kind(group, resource), namespace, name)
    except ApiError as error:
        if error.code != 404:
            raise


def begin(cluster: Cluster) -> list[Any]:
    """The events that create the namespaces of a cluster."""
    kind = cluster.api.kind("", "namespaces")
    return [
        cluster.api.api.create(kind, "", {"metadata": {"name": name}}, author=PEOPLE)
        for name in ("kube-system", *NAMESPACES)
    ]
