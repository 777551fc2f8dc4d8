"""Redirects: what overrides a service on this node, from policies and pods, or from a proxy on the node.

Each row is one owner's override, with a rule for each port that has a target now. Which of several counts for a port is
decided in port_redirects.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Final

from isthmus.loadbalancer import refusals
from isthmus.loadbalancer.claims import ClaimRules
from isthmus.model.balancing import Target
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.redirects import LocalRedirect, ProxyRedirect, Redirect, Rule
from isthmus.model.services import Pod, Port, Service
from isthmus.model.tables import LOCAL_REDIRECTS, PODS, PROXY_REDIRECTS, REDIRECTS
from isthmus.statedb import Derived, Reader

LOCAL: Final = "CiliumLocalRedirectPolicy "
"""How the owners of local redirects begin."""

ENDED: Final = frozenset({"Succeeded", "Failed"})

Key = tuple[ServiceName, str]


def derived(cluster: ClusterName, node: str, *, rules: ClaimRules) -> Derived[Redirect]:
    """The declaration of the table, as this node of this cluster sees it."""
    return Derived(
        REDIRECTS,
        compute=partial(compute, cluster=cluster, node=node, rules=rules),
        reads={LOCAL_REDIRECTS: by_policy, PROXY_REDIRECTS: by_proxy, PODS: by_pod},
    )


def compute(reader: Reader, key: Key, *, cluster: ClusterName, node: str, rules: ClaimRules) -> Iterator[Redirect]:
    """One owner's redirect of one service, where it has a target now and may have the address it names."""
    service, owner = key
    proxied = reader.get(PROXY_REDIRECTS, key)
    if proxied is not None:
        yield from _kept(_of_proxy(proxied, cluster))
    elif owner.startswith(LOCAL):
        policy = reader.get(LOCAL_REDIRECTS, ServiceName(owner.removeprefix(LOCAL)))
        if policy is None or policy.subject != service:
            return
        if not policy.address or refusals.of_policy(policy, rules=rules) is None:
            here = [pod for pod in reader.by(PODS, "namespace", _namespace(policy.name)) if _answers(pod, policy, node)]
            yield from _kept(_of_policy(policy, here, cluster))


def by_policy(reader: Reader, old: LocalRedirect | None, new: LocalRedirect | None) -> Iterator[Key]:
    """A policy affects its redirect of the service it names, and of the one that it named."""
    for row in (old, new):
        if row is not None:
            yield _key(row)


def by_proxy(reader: Reader, old: ProxyRedirect | None, new: ProxyRedirect | None) -> Iterator[Key]:
    """One row, one redirect."""
    row = new or old
    if row is not None:
        yield row.service, row.owner


def by_pod(reader: Reader, old: Pod | None, new: Pod | None) -> Iterator[Key]:
    """A pod affects the policies of its namespace that select it, or did."""
    rows = [row for row in (old, new) if row is not None]
    for policy in reader.by(LOCAL_REDIRECTS, "namespace", _namespace(rows[0].name)):
        if any(_selected(pod, policy) for pod in rows):
            yield _key(policy)


def _key(policy: LocalRedirect) -> Key:
    return policy.subject, LOCAL + policy.name


def _namespace(name: str) -> str:
    return name.partition("/")[0]


def _selected(pod: Pod, policy: LocalRedirect) -> bool:
    return all(requirement.met_by(pod.labels) for requirement in policy.selector)


def _answers(pod: Pod, policy: LocalRedirect, node: str) -> bool:
    here = not pod.node or pod.node == node
    return here and pod.ready and pod.phase not in ENDED and _selected(pod, policy)


def _kept(row: Redirect) -> Iterator[Redirect]:
    if row.rules:
        yield row


def _of_proxy(row: ProxyRedirect, cluster: ClusterName) -> Redirect:
    rules = [
        Rule(number, "TCP", (Target(listener.address, listener.port, "TCP", cluster, proxy=True),))
        for listener in row.listeners
        for number in listener.ports or (0,)
    ]
    return Redirect(service=row.service, owner=row.owner, kind="proxy", rules=tuple(rules), created=row.created)


def _of_policy(policy: LocalRedirect, pods: list[Pod], cluster: ClusterName) -> Redirect:
    backend_ports = counting_ports(policy)
    named = len(backend_ports) > 1
    rules: list[Rule] = []
    for port in backend_ports:
        targets = _targets(pods, port, named=named, cluster=cluster)
        if targets:
            rules += [
                Rule(number, port.protocol, targets, port_name)
                for number, port_name in _frontends(policy, port, named=named)
            ]
    return Redirect(
        service=policy.subject,
        owner=LOCAL + policy.name,
        kind="local",
        rules=tuple(rules),
        address=policy.address,
        skip=tuple(sorted({address for pod in pods for address in pod.addresses})) if policy.skip_from_backend else (),
        created=policy.created,
    )


def counting_ports(policy: LocalRedirect) -> tuple[Port, ...]:
    """The backend ports that calls go to: of several, the first of the protocol where one called port is listed.

    Cilium pairs the ports of both sides by name only where the policy lists several called ports, or none.
    """
    if len(policy.ports) != 1:
        return policy.backend_ports
    return tuple(port for port in policy.backend_ports if port.protocol == policy.ports[0].protocol)[:1]


def shortcomings(policy: LocalRedirect, pods: Iterable[Pod], service: Service | None, *, node: str) -> Iterator[str]:
    """Why a policy redirects less than it seems to, as sentences without a subject; nothing where it does all."""
    selected = [pod for pod in pods if _selected(pod, policy)]
    ready = [pod for pod in selected if _answers(pod, policy, node)]
    counting = counting_ports(policy)
    if not ready:
        yield f"none of the {len(selected)} pods it selects is ready" if selected else "selects no pod of this node"
    for port in counting if ready else ():
        if not _targets(ready, port, named=len(counting) > 1, cluster=ClusterName("")):
            name = f" named '{port.name}'" if len(counting) > 1 else ""
            yield f"none of its {len(ready)} ready pods declares port {port.port}/{port.protocol}{name}"
    if len(counting) < len(policy.backend_ports):
        first = f"port {counting[0].port}/{counting[0].protocol}" if counting else "no port of that protocol"
        yield f"lists one called port and {len(policy.backend_ports)} backend ports: the first counts, {first}"
    known = {(port.port, port.protocol) for port in service.ports} if service is not None else set()
    for called in policy.ports:
        if service is not None and (called.port, called.protocol) not in known:
            yield f"lists port {called.port}/{called.protocol}, which Service {service.name} does not have"


def _targets(pods: Iterable[Pod], port: Port, *, named: bool, cluster: ClusterName) -> tuple[Target, ...]:
    """The pods that say they have a port: its number and protocol, and its name where there are several."""
    return tuple(
        sorted(
            Target(address, port.port, port.protocol, cluster)
            for pod in pods
            if any(_same(each, port, named=named) for each in pod.ports)
            for address in pod.addresses
        )
    )


def _same(one: Port, other: Port, *, named: bool) -> bool:
    return (one.port, one.protocol) == (other.port, other.protocol) and (
        not named or one.name.lower() == other.name.lower()
    )


def _frontends(policy: LocalRedirect, port: Port, *, named: bool) -> Iterator[tuple[int, str | None]]:
    """The called ports (0: every) that go to a pod's port, each with the name that a Service's port must have there."""
    name = port.name.lower() if named else None
    if not policy.ports:
        yield 0, name
    for called in policy.ports:
        if called.protocol != port.protocol:
            continue
        if policy.service:
            yield called.port, name
        elif not named or called.name.lower() == name:
            yield called.port, None
