"""The whole demo: brings a lab up, prints and checks every step, and takes the lab down again."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from isthmus import kube
from isthmus.config import KubernetesSection
from isthmus.datapath import DatapathError
from isthmus_lab import examples, manifests, pod_exec, privileges, removal, startup
from isthmus_lab.demo import failover, islands, karmada, steps
from isthmus_lab.demo.programmed import programmed
from isthmus_lab.demo.report import Reporter, Step
from isthmus_lab.demo.stage import CLIENT, REFUSALS, SERVICE, Stage, StepFailed
from isthmus_lab.families import Families
from isthmus_lab.karmada import plane
from isthmus_lab.layout import Lab, Network
from isthmus_lab.record import ApiServer

_COUNTED: Final = {3: "three", 4: "four"}
FAILURES: Final = (
    *REFUSALS,
    StepFailed,
    startup.CannotStart,
    manifests.BadManifest,
    DatapathError,
    pod_exec.NoSuchPod,
    removal.StillThere,
)
"""Errors of a step that are reported as a sentence."""

TRY: Final = """
The lab is up. Try:
  isthmus lab exec --lab {name} c3 demo/client -- getent hosts echo.demo.svc.cluster.local
  kubectl --kubeconfig {kubeconfig} --context c1 apply -f {export}
  isthmus get plans --lab {name} --cluster c3 -w
and then: isthmus lab down --lab {name}"""


class Story(NamedTuple):
    """A story: its manifests, where its clusters are, and its steps, which begin with the manifests applied, if any."""

    manifests: tuple[Path, ...]
    places: tuple[tuple[str, str], ...]
    exporters: tuple[str, ...]
    steps: Callable[[Stage, Reporter], Iterable[tuple[str, Coroutine[Any, Any, str]]]]
    clusters: int = 3
    networks: tuple[Network, ...] = ("flat",)
    lacks: Callable[[], list[str]] = list
    """Returns further requirements that this machine lacks, as sentences."""
    without_bpf: bool = False
    """True if it runs in a lab without privileges, which uses nftables in place of BPF."""


async def run(
    story: Story,
    *,
    name: str,
    directory: Path | None,
    json: bool,
    keep: bool,
    apiserver: ApiServer = "small",
    families: tuple[Families, ...] = (("IPv4",),),
    doors: Sequence[socket.socket] = (),
) -> bool:
    """Run a story; whether every step held. A lab that is kept is left as it ends. ``doors``: as a start wants."""
    lab = Lab(name, story.clusters, networks=story.networks, families=families, places=story.places)
    reporter = Reporter(json=json)
    try:
        lab, notice = startup.located(lab)
        startup.check(lab, apiserver=apiserver)
        if privileges.CONFINED and not story.without_bpf:
            raise startup.CannotStart("this story wants BPF, since connects are to be rescued: run it as root (sudo)")
        if lacks := story.lacks():
            raise startup.CannotStart("; ".join(lacks))
        objects = _read(lab, (directory,) if directory else story.manifests)
        startup.reserve(lab)
    except FAILURES as error:
        reporter.end(Step("this machine can run the story", ok=False, seconds=0.0, detail=str(error)))
        return reporter.finish()
    if notice:
        reporter.say(notice)
    try:
        await _whole(story, lab, reporter, objects, _up(lab, apiserver, doors))
    finally:
        if keep:
            reporter.say(TRY.format(name=name, kubeconfig=lab.kubeconfig, export=examples.path("echo/export")))
        else:
            async with _step(reporter, "the lab is taken down without a trace") as details:
                await asyncio.to_thread(removal.remove, lab)
                details.append("no process, namespace, cgroup, map or file of it is left")
    return reporter.finish()


def _read(lab: Lab, directories: Iterable[Path]) -> dict[str, list[manifests.Manifest]]:
    per_directory = [manifests.of_lab(each, lab) for each in directories]
    return {
        cluster.name: [body for directory_manifests in per_directory for body in directory_manifests[cluster.name]]
        for cluster in lab.clusters
    }


async def _whole(
    story: Story,
    lab: Lab,
    reporter: Reporter,
    objects: dict[str, list[manifests.Manifest]],
    up: Coroutine[Any, Any, str],
) -> None:
    async with AsyncExitStack() as open_clients:
        if not await _passes(reporter, f"{_COUNTED[lab.size]} clusters come up", up):
            return
        stage = Stage(lab, {c.name: await _client(lab, c.name, open_clients) for c in lab.clusters})
        for name, step in (*_applied(stage, story, objects), *story.steps(stage, reporter)):
            if reporter.steps[-1].ok:
                await _passes(reporter, name, step)
            else:
                step.close()


def _applied(
    stage: Stage, story: Story, objects: dict[str, list[manifests.Manifest]]
) -> Iterable[tuple[str, Coroutine[Any, Any, str]]]:
    """The first step, where the story has manifests."""
    if story.manifests:
        files = " and ".join(map(examples.label, story.manifests))
        name = f"{files} {'is' if len(story.manifests) == 1 else 'are'} applied, all pods are ready"
        yield name, _apply(stage, objects, story.exporters)


async def _passes(reporter: Reporter, name: str, step: Awaitable[str]) -> bool:
    async with _step(reporter, name) as details:
        details.append(await step)
    return reporter.steps[-1].ok


@asynccontextmanager
async def _step(reporter: Reporter, name: str) -> AsyncIterator[list[str]]:
    """Reports a step's result, or why it did not hold."""
    details: list[str] = []
    reporter.begin(name)
    began, ok = time.monotonic(), False
    try:
        yield details
        ok = True
    except FAILURES as error:
        details.append(str(error))
    finally:
        detail = details[-1] if details else "interrupted"
        reporter.end(Step(name, ok=ok, seconds=round(time.monotonic() - began, 2), detail=detail))


async def _up(lab: Lab, apiserver: ApiServer, doors: Sequence[socket.socket]) -> str:
    startup.start(lab, images={}, apiserver=apiserver, doors=doors)
    await startup.follow(lab, lambda step: None)
    return f"{', '.join(c.name for c in lab.clusters)}: each its own etcd, API server, node, operator, agent and DNS"


async def _client(lab: Lab, cluster: str, stack: AsyncExitStack) -> kube.Client:
    section = KubernetesSection(kubeconfig=str(lab.kubeconfig), context=cluster)
    return await stack.enter_async_context(await kube.connect(section))


async def _apply(stage: Stage, objects: dict[str, list[manifests.Manifest]], exporters: tuple[str, ...]) -> str:
    problems = [problem for c, client in stage.clients.items() for problem in await manifests.apply(client, objects[c])]
    if problems:
        raise StepFailed("; ".join(problems))

    async def ready() -> bool:
        echo = [await stage.pods_ready(cluster, SERVICE) == 2 for cluster in exporters]
        clients = [await stage.pods_ready(cluster, CLIENT) >= 1 for cluster in stage.clients]
        return all(echo + clients)

    await stage.until("all pods are ready", ready)
    return f"two echo pods in {', '.join(exporters)}, a client pod everywhere"


def _of_export(stage: Stage, reporter: Reporter) -> Iterable[tuple[str, Coroutine[Any, Any, str]]]:
    through = ", through an Envoy" if stage.lab.loopback else ", and nothing stands in the way"
    apart = ", and is in no map" if programmed().ours_only else ""
    return (
        ("before the export, its name does not resolve", steps.not_resolved(stage)),
        ("exported in c1 and c2, c3 calls it by name", steps.exported(stage)),
        (f"sixty calls reach every pod{through}", _sixty(stage, reporter)),
        ("c1 loses its pods, c2 answers", steps.survived(stage)),
        (f"a plain Service works as ever{apart}", steps.plain_service(stage)),
        ("no longer exported, import, address and name are gone", steps.withdrawn(stage)),
    )


async def _sixty(stage: Stage, reporter: Reporter) -> str:
    problems, spread = await steps.called(stage)
    reporter.spread(spread)
    return problems


STORIES: Final = {
    "export": Story((examples.path("echo"),), (), steps.EXPORTERS, _of_export, without_bpf=True),
    "failover": Story((examples.path("failover"),), failover.PLACES, failover.CLUSTERS, failover.story),
    "karmada": Story((), karmada.PLACES, (), karmada.story, lacks=plane.missing),
    "islands": Story(
        (examples.path("failover"), examples.path("islands")),
        islands.PLACES,
        islands.CLUSTERS,
        islands.story,
        clusters=len(islands.CLUSTERS),
        networks=islands.NETWORKS,
        without_bpf=True,
    ),
}
