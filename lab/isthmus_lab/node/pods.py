"""One pod: its network, its containers, its status, its end.

Level-triggered at the edges: the node starts a pod, or ends it with a grace period, and nothing
else; the pod writes its status to the API server, and leaves no process, interface or file when it ends.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from isthmus import kube, logs
from isthmus.kube.events import Recorder
from isthmus.reflector import Transient
from isthmus.times import timestamp
from isthmus_lab import images, own_programs, privileges
from isthmus_lab.network.pods import attach
from isthmus_lab.node import environment, probes, shared_host, status, volumes
from isthmus_lab.node.config_data import ConfigData, Missing, fetch
from isthmus_lab.node.containers import ContainerPlan, Runner
from isthmus_lab.node.objects import POD, Container, Pod
from isthmus_lab.node.pod_record import PodLocation, PodState, save_state
from isthmus_lab.node.sandbox import Sandbox
from isthmus_lab.node.status import ContainerState, Waiting

RETRY_AFTER: Final = 0.5
"""Seconds until the API server is tried again."""
REFRESH_INTERVAL: Final = 5.0
"""Seconds between two looks at the ConfigMaps and Secrets of a running pod's volumes."""

log = logs.get("node")


class PodRunner:
    """Runs one pod from being bound to this node until it is gone."""

    def __init__(
        self,
        pod: Pod,
        place: PodLocation,
        *,
        client: kube.Client,
        events: Recorder,
        own_images: Callable[[], Mapping[str, images.Image]],
        before: PodState | None = None,
    ) -> None:
        """``before`` is what an earlier process of this node remembered of the pod."""
        self.pod = pod
        self.place = place
        self._before = before
        self._client = client
        self._events = events
        self._images = own_images
        self._containers: list[Runner] = []
        self._inits: list[Runner] = []
        self._refused: list[ContainerState] = []
        self._changed = asyncio.Event()
        self._ending: asyncio.Future[float] = asyncio.get_running_loop().create_future()
        self._since: dict[str, tuple[str, str]] = {}
        self._written: dict[str, volumes.Content] = {}
        self._token_given = ""
        self._started = before.started if before else timestamp()

    def __repr__(self) -> str:
        return f"<PodRunner {self.pod.key} {self.place.address}: {[c.state for c in self._containers]}>"

    def container(self, name: str) -> Runner | None:
        """One of its containers, by name; the first if it is empty."""
        return next((each for each in [*self._containers, *self._inits] if name in ("", each.state.name)), None)

    def end(self, grace: float) -> None:
        """Idempotent: a second call changes nothing."""
        if not self._ending.done():
            self._ending.set_result(grace)

    async def run(self) -> None:
        """The pod's whole life; returns when nothing of it is left."""
        async with asyncio.TaskGroup() as group:
            publishing = group.create_task(self._publish())
            living = group.create_task(self._live())
            renewing = group.create_task(self._refresh_volumes())
            grace = await self._ending
            await asyncio.gather(*(each.stop(grace=grace) for each in [*self._inits, *self._containers]))
            for task in (living, renewing):
                task.cancel()
            await asyncio.wait([living, renewing])
            await self.place.clear()
            publishing.cancel()
        await self._delete_object()

    async def _live(self) -> None:
        try:
            plans = await self._until_known(await self._wait_for_config())
        except (environment.UnknownField, Missing) as error:
            self._refuse("CreateContainerConfigError", error)
            return
        self._refused = []
        if self._before is None:
            self._changed.set()  # else the last status written holds until it is known better
        namespace = self.place.namespace_path
        plugged = namespace is None or self.place.host_network or (self._before is not None and namespace.exists())
        if not plugged:
            await attach(self.place.plug)
        inits, mains = plans
        for plan in inits:
            self._inits.append(self._runner(plan, self._init_policy))
            if await self._inits[-1].run() != 0:
                return
        self._containers += [self._runner(plan, self.pod.spec.restart_policy) for plan in mains]
        self._changed.set()
        async with asyncio.TaskGroup() as group:
            for runner in self._containers:
                group.create_task(runner.run())

    async def _until_known(self, data: ConfigData) -> tuple[list[ContainerPlan], list[ContainerPlan]]:
        """Wait until every image has a stand-in (one may be added meanwhile); returns the containers to run."""
        while True:
            try:
                return self._plans(data)
            except images.UnknownImage as error:
                self._refuse("ErrImagePull", error)
                await asyncio.sleep(RETRY_AFTER)

    def _runner(self, plan: ContainerPlan, policy: str) -> Runner:
        before = self._before.of(plan.spec.name) if self._before else None
        return Runner(plan, policy=policy, changed=self._changed.set, say=self._record_event, before=before)

    def _record_event(self, reason: str, message: str, kind: Literal["Normal", "Warning"]) -> None:
        meta = self.pod.metadata
        named = {"namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
        self._events.record(POD, **named, reason=reason, message=message, type=kind)

    @property
    def _init_policy(self) -> str:
        return "Never" if self.pod.spec.restart_policy == "Never" else "OnFailure"

    async def _wait_for_config(self) -> ConfigData:
        """Wait until all ConfigMaps and Secrets exist, and write their volumes."""
        while True:
            try:
                data = await fetch(self._client, self.pod)
                volumes.unclaimed(self.pod, self.place.node.cluster)
                break
            except Missing as error:
                self._refuse("CreateContainerConfigError", error)
            except (Transient, kube.KubeError) as error:
                log.info("cannot be read", pod=self.pod.key, why=str(error))
            await asyncio.sleep(RETRY_AFTER)
        self._token_given = await self._token()
        self._fill(data)
        return data

    def _fill(self, data: ConfigData) -> None:
        """Volumes as the data say; Missing where one cannot be had."""
        fields = environment.fields(self.pod, self._addresses)
        contents = volumes.contents(self.pod, data, fields, token=self._token_given)
        volumes.write(self._volumes, contents, before=self._written)
        self._written = contents

    async def _refresh_volumes(self) -> None:
        """Update volumes from ConfigMaps and Secrets. Variables keep their values, as on any cluster."""
        while any(each.config_map or each.secret or each.projected for each in self.pod.spec.volumes or ()):
            await asyncio.sleep(REFRESH_INTERVAL)
            if self._written:
                try:
                    self._fill(await fetch(self._client, self.pod))
                except (Missing, Transient, kube.KubeError) as error:
                    log.debug("volumes stay as they are", pod=self.pod.key, why=str(error))

    async def _token(self) -> str:
        """A token of the pod's service account; empty where it asks for none, or the server gives none."""
        projected = [volume.projected.sources or () for volume in self.pod.spec.volumes or () if volume.projected]
        source = next(
            (s.service_account_token for sources in projected for s in sources if s.service_account_token), None
        )
        if source is None:
            return ""
        account = self.pod.spec.service_account_name or "default"
        try:
            return await self._client.token(self.pod.metadata.namespace, account, seconds=source.expiration_seconds)
        except (Transient, kube.KubeError) as error:
            log.info("no token", pod=self.pod.key, why=str(error))
            return ""

    @property
    def _addresses(self) -> environment.Addresses:
        return environment.Addresses(self.place.addresses, self.place.node.addresses)

    @property
    def _volumes(self) -> Path:
        return self.place.directory / "volumes"

    def _plans(self, data: ConfigData) -> tuple[list[ContainerPlan], list[ContainerPlan]]:
        spec = self.pod.spec
        inits, mains = spec.init_containers or (), spec.containers
        return [self._plan(c, data) for c in inits], [self._plan(c, data) for c in mains]

    def _plan(self, container: Container, data: ConfigData) -> ContainerPlan:
        image = images.find(container.image, own=self._images())
        env = environment.variables(
            self.pod,
            container,
            image=images.environment() | {"CLUSTER_NAME": self.place.node.cluster.name},
            data=data,
            addresses=self._addresses,
        )
        if self.place.node.cluster.lab.loopback:
            env |= shared_host.variables(self.place.node, self.place.address, path=env["PATH"])
        command, args = (
            [environment.expand(w, env) for w in each or ()] for each in (container.command, container.args)
        )
        answers = image.stand_in and not (command and shutil.which(command[0], path=images.PATH))
        if self.place.node.cluster.lab.loopback:
            shared_host.refuse(container, own_program=answers or (images.own_program(image) and not command))
        listens = images.stand_in(container.image, probes.ports(container), own=own_programs.location())
        own = answers or (bool(image.program) and not command)
        return ContainerPlan(
            spec=container,
            command=listens if answers else images.command(image, command, args),
            environment=env | own_programs.environment() if own else env,
            directory=("" if image.stand_in else container.working_dir) or "/",
            stand_in=answers,
            sandbox=Sandbox(
                scratch=self.place.directory / "scratch" / container.name,
                hostname=environment.hostname(self.pod),
                files=self._files(),
                volumes=volumes.binds(self.pod, container, self._volumes, self.place.node.cluster),
                programs=() if command else images.named_programs(image),
            ),
            cgroup=self.place.cgroup / container.name,
            namespace=self.place.namespace_path,
            logs=self.place.directory / "logs" / container.name,
            address=self.place.address,
        )

    def _files(self) -> tuple[tuple[str, str], ...]:
        return (
            ("/etc/resolv.conf", environment.resolv_conf(self.pod, self._name_server)),
            ("/etc/hosts", environment.hosts(self.pod, self.place.addresses)),
            ("/etc/hostname", environment.hostname(self.pod) + "\n"),
        )

    @property
    def _name_server(self) -> str:
        """The cluster DNS, as on any cluster; where nothing can step in between, the node's, which asks it."""
        scheme = self.place.node.cluster.schemes[0]
        return scheme.node_local if privileges.CONFINED else scheme.cluster_dns

    def _refuse(self, reason: str, error: Exception) -> None:
        waiting = Waiting(reason, str(error))
        refused = [ContainerState(c.name, c.image, waiting) for c in self.pod.spec.containers]
        if refused != self._refused:
            log.warning("pod cannot run", pod=self.pod.key, why=str(error))
            self._record_event("Failed", str(error), "Warning")
            self._refused = refused
            self._changed.set()

    async def _publish(self) -> None:
        """Write every state that lasts long enough, the newest only."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            self._save_state()
            try:
                await self._write_status(self._body())
            except Transient as error:
                log.info("status not written yet", pod=self.pod.key, why=str(error))
                self._changed.set()
                await asyncio.sleep(RETRY_AFTER)
            except (kube.NotFound, kube.Conflict):
                return  # it is deleted, or another of its name exists: the watch is about to deliver that
            except kube.KubeError as error:
                log.warning("status is refused", pod=self.pod.key, why=str(error))  # others' pods go on

    def _save_state(self) -> None:
        states = [[runner.state for runner in runners] for runners in (self._inits, self._containers)]
        meta = self.pod.metadata
        save_state(self.place, PodState(meta.namespace, meta.name, self.place.number, self._started, *states))

    async def _write_status(self, body: dict[str, Any]) -> None:
        meta = self.pod.metadata
        patch = {"metadata": {"uid": meta.uid}, "status": body}
        await self._client.patch(POD, meta.namespace, meta.name, patch, subresource="status")

    def _body(self) -> dict[str, Any]:
        mains = [runner.state for runner in self._containers] or self._refused
        mains = mains or [ContainerState(c.name, c.image) for c in self.pod.spec.containers]
        build = partial(
            status.body,
            self.pod,
            mains,
            inits=[runner.state for runner in self._inits],
            addresses=self._addresses,
            started=self._started,
        )
        now = timestamp()
        for kind, state in status.conditions(build(transitions={})).items():
            if self._since.get(kind, ("", ""))[0] != state:
                self._since[kind] = (state, now)
        return build(transitions={kind: when for kind, (_, when) in self._since.items()})

    async def _delete_object(self) -> None:
        """Delete the object at the API server: nothing of the pod is left."""
        meta = self.pod.metadata
        while True:
            try:
                await self._client.delete(POD, meta.namespace, meta.name, uid=meta.uid, grace=0)
            except Transient:
                await asyncio.sleep(RETRY_AFTER)
            except kube.KubeError:
                return  # another of its name, or refused: not ours to insist
            else:
                return
