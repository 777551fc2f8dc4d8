"""Redirects: overrides of a service on this node, from policies and pods, or from a proxy on the node.

Each row is one owner's override, with a rule for each port that has a target now. port_redirects.py chooses between
several overrides of one port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from operator import attrgetter
from typing import Final

from isthmus.loadbalancer import refusals
from isthmus.loadbalancer.claims import ClaimRules
from isthmus.model.balancing import Target
from isthmus.model.names import ClusterName, ServiceName
from isthmus.model.names import derived as derived_name
from isthmus.model.redirects import LocalRedirect, ProxyRedirect, Redirect, Rule
from isthmus.model.services import ENDED, Import, Pod, Port, Service
from isthmus.model.tables import IMPORTS, LOCAL_REDIRECTS, PODS, PROXY_REDIRECTS, REDIRECTS, SERVICES
from isthmus.statedb import Derived, Reader, unit_of

LOCAL: Final = "CiliumLocalRedirectPolicy "
"""Prefix of the owner of a local redirect."""

Key = tuple[ServiceName, str]


def derived(cluster: ClusterName, node: str, *, rules: ClaimRules) -> Derived[Redirect]:
    """Declare the table for a node of a cluster."""
    return Derived(
        REDIRECTS,
        compute=partial(compute, cluster=cluster, node=node, rules=rules),
        reads={
            LOCAL_REDIRECTS: by_policy,
            PROXY_REDIRECTS: unit_of(attrgetter("service", "owner")),
            PODS: by_pod,
            SERVICES: by_named,
            IMPORTS: by_named,
        },
    )


def compute(reader: Reader, key: Key, *, cluster: ClusterName, node: str, rules: ClaimRules) -> Iterator[Redirect]:
    """Yield one owner's redirect of one service, if it has a target and its claim of an address is valid."""
    service, owner = key
    proxied = reader.get(PROXY_REDIRECTS, key)
    if proxied is not None:
        yield from _kept(_of_proxy(proxied, cluster))
    elif owner.startswith(LOCAL):
        policy = reader.get(LOCAL_REDIRECTS, ServiceName(owner.removeprefix(LOCAL)))
        if policy is None or redirected(reader, policy) != service:
            return
        if not policy.address or refusals.of_policy(policy, rules=rules) is None:
            here = [pod for pod in reader.by(PODS, "namespace", _namespace(policy.name)) if _answers(pod, policy, node)]
            yield from _kept(_of_policy(policy, here, cluster, service))


def redirected(reader: Reader, policy: LocalRedirect) -> ServiceName:
    """Return the service whose calls a policy redirects: the import of the given name, if no Service has that name."""
    name = policy.service
    imported = reader.get(IMPORTS, name) if name and not reader.by(SERVICES, "name", name) else None
    return policy.subject if imported is None else derived_name(name)


def by_policy(reader: Reader, old: LocalRedirect | None, new: LocalRedirect | None) -> Iterator[Key]:
    """A policy affects its redirects of the services that it names now and named before."""
    for row in (old, new):
        if row is not None:
            yield from _keys(row)


def by_named(reader: Reader, old: Service | Import | None, new: Service | Import | None) -> Iterator[Key]:
    """A Service or import that is added or deleted affects the policies that give its name."""
    if old is None or new is None:
        row = new or old
        for policy in reader.by(LOCAL_REDIRECTS, "named", row.name) if row is not None else ():
            yield from _keys(policy)


def by_pod(reader: Reader, old: Pod | None, new: Pod | None) -> Iterator[Key]:
    """A pod affects the policies of its namespace that select it, or selected it before."""
    rows = [row for row in (old, new) if row is not None]
    for policy in reader.by(LOCAL_REDIRECTS, "namespace", _namespace(rows[0].name)):
        if any(_selected(pod, policy) for pod in rows):
            yield from _keys(policy)


def _keys(policy: LocalRedirect) -> Iterator[Key]:
    """Yield the keys of a policy's redirect: of the Service that it names, and of an import of that name."""
    yield policy.subject, LOCAL + policy.name
    if policy.service:
        yield derived_name(policy.service), LOCAL + policy.name


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
    return Redirect(
        service=row.service,
        owner=row.owner,
        kind="proxy",
        rules=tuple(rules),
        created=row.created,
        callers=row.callers,
    )


def _of_policy(policy: LocalRedirect, pods: list[Pod], cluster: ClusterName, service: ServiceName) -> Redirect:
    backend_ports = counting_ports(policy)
    named = len(backend_ports) > 1
    rules: list[Rule] = []
    for port in backend_ports:
        targets = _targets(pods, port, named=named, undeclared=_takes_undeclared(policy), cluster=cluster)
        if targets:
            rules += [
                Rule(number, port.protocol, targets, port_name)
                for number, port_name in _frontends(policy, port, named=named)
            ]
    return Redirect(
        service=service,
        owner=LOCAL + policy.name,
        kind="local",
        rules=tuple(rules),
        address=policy.address,
        skip=tuple(sorted({address for pod in pods for address in pod.addresses})) if policy.skip_from_backend else (),
        created=policy.created,
    )


def counting_ports(policy: LocalRedirect) -> tuple[Port, ...]:
    """Return the backend ports in effect: with a single frontend port, the first of its protocol.

    As in Cilium, frontend and backend ports are paired by name only if the policy lists several frontend ports or none.
    """
    if len(policy.ports) != 1:
        return policy.backend_ports
    return tuple(port for port in policy.backend_ports if port.protocol == policy.ports[0].protocol)[:1]


def shortcomings(policy: LocalRedirect, pods: Iterable[Pod], service: Service | None, *, node: str) -> Iterator[str]:
    """Yield the reasons why a policy redirects fewer calls than it states, as sentences without a subject."""
    selected = [pod for pod in pods if _selected(pod, policy)]
    ready = [pod for pod in selected if _answers(pod, policy, node)]
    counting = counting_ports(policy)
    if not ready:
        yield f"none of the {len(selected)} pods it selects is ready" if selected else "selects no pod of this node"
    for port in counting if ready else ():
        undeclared = _takes_undeclared(policy)
        if not _targets(ready, port, named=len(counting) > 1, undeclared=undeclared, cluster=ClusterName("")):
            name = f" named '{port.name}'" if len(counting) > 1 else ""
            yield f"none of its {len(ready)} ready pods declares port {port.port}/{port.protocol}{name}"
    if len(counting) < len(policy.backend_ports):
        first = f"port {counting[0].port}/{counting[0].protocol}" if counting else "no port of that protocol"
        yield f"lists one called port and {len(policy.backend_ports)} backend ports: the first counts, {first}"
    service_ports = {(port.port, port.protocol) for port in service.ports} if service is not None else set()
    for port_called in policy.ports:
        if service is not None and (port_called.port, port_called.protocol) not in service_ports:
            yield f"lists port {port_called.port}/{port_called.protocol}, which Service {service.name} does not have"


def _takes_undeclared(policy: LocalRedirect) -> bool:
    """True if pods that declare no port at all are targets, as in Cilium: with a single port of a Service."""
    return bool(policy.service) and len(policy.ports) == 1


def _targets(
    pods: Iterable[Pod], port: Port, *, named: bool, undeclared: bool, cluster: ClusterName
) -> tuple[Target, ...]:
    """Targets on the pods that declare a port: its number and protocol, and its name if there are several.

    ``undeclared``: and on pods that declare no port.
    """
    return tuple(
        sorted(
            Target(address, port.port, port.protocol, cluster)
            for pod in pods
            if (undeclared and not pod.ports) or any(_same(each, port, named=named) for each in pod.ports)
            for address in pod.addresses
        )
    )


def _same(first: Port, second: Port, *, named: bool) -> bool:
    return (first.port, first.protocol) == (second.port, second.protocol) and (
        not named or first.name.lower() == second.name.lower()
    )


def _frontends(policy: LocalRedirect, port: Port, *, named: bool) -> Iterator[tuple[int, str | None]]:
    """Yield (frontend port or 0 for every port, required name of the Service's port or ``None``) of a backend port."""
    name = port.name.lower() if named else None
    if not policy.ports:
        yield 0, name
    for port_called in policy.ports:
        if port_called.protocol != port.protocol:
            continue
        if policy.service:
            yield port_called.port, name
        elif not named or port_called.name.lower() == name:
            yield port_called.port, None
