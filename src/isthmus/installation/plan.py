"""Facts and flags → what is installed: variables of cluster.env, components, images, and what speaks against it. Pure.

A flag precedes the value of an existing installation, and that precedes a fact: a second run changes nothing by itself,
and warns where the cluster has become another one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec import Struct

from isthmus.installation import rendering
from isthmus.installation.facts import UNKNOWN, Facts, Known
from isthmus.installation.reading import NODE_CIDRS
from isthmus.installation.rendering import ISLANDS, ROUTES
from isthmus.model.hosts import family
from isthmus.model.names import valid_cluster

OLDEST_KUBERNETES: Final = (1, 29)
IDS: Final = 255
"""Largest number of a cluster, as in Cilium (clusterset.max_connected_clusters)."""
NAME_LENGTH: Final = 32
LINK_LOCAL: Final = {"IPv4": "169.254.7.1", "IPv6": "fd00:169:254:7::1"}
"""Addresses of the node's name server and Envoy, which deploy/agent gives the node."""
NAME: Final = "ISTHMUS_CLUSTER_NAME"
ID: Final = "ISTHMUS_CLUSTER_ID"
DNS: Final = "ISTHMUS_DNS_CLUSTER_DNS"
NETWORK: Final = "ISTHMUS_CLUSTER_NETWORK"
THROUGH_MIRROR: Final = "ISTHMUS_CLUSTERSET_THROUGH_MIRROR"
ISSUERS_NAME: Final = "ISTHMUS_KEYS_ISSUER"
KEYS: Final = "keys"
ISSUER: Final = "issuer"
"""Component with the rights that keys.issuer needs. A plan adds it wherever that is set."""
REPLICATED: Final = "replicated"
REPLICAS: Final = 3
"""Etcds of the component replicated, and the number of nodes from which on a new installation has it."""


class Flags(Struct, frozen=True, kw_only=True):
    """Wishes of the user."""

    context: str = ""
    """Context of the kubeconfig, whose name the cluster has unless another one is given."""
    name: str = ""
    id: int = 0
    settings: Mapping[str, str] = {}
    """Variables by name, ``ISTHMUS_SECTION_FIELD``."""
    components: tuple[str, ...] = ()
    """Components beside the default ones, and beside those that are installed."""
    without: tuple[str, ...] = ()
    images: Mapping[str, str] = {}
    taken_ids: frozenset[int] = frozenset()
    """Ids of other clusters that are known."""


class Choice(Struct, frozen=True):
    """A variable's value and its origin."""

    variable: str
    value: str
    origin: str


class Plan(Struct, frozen=True, kw_only=True):
    """Variables, components and images of an installation, and what speaks against it."""

    choices: tuple[Choice, ...]
    components: tuple[str, ...]
    images: Mapping[str, str]
    warnings: tuple[str, ...]
    blockers: tuple[str, ...]

    @property
    def variables(self) -> dict[str, str]:
        """Values of the variables by name."""
        return {each.variable: each.value for each in self.choices}

    @property
    def options(self) -> rendering.Options:
        """The plan as options of :func:`rendering.render`."""
        return rendering.Options(components=self.components, variables=self.variables, images=self.images)


def plan(facts: Facts, flags: Flags, folder: Path) -> Plan:
    """Return the plan for a cluster. ``folder``: deploy/."""
    installed = facts.installed
    chosen = [*(installed.components if installed else _default_components(facts, flags, folder)), *flags.components]
    if ISLANDS in chosen:
        chosen.append(ROUTES)
    if flags.settings.get(ISSUERS_NAME, installed.variables.get(ISSUERS_NAME, "") if installed else ""):
        chosen.append(ISSUER)
    every = rendering.components(folder)
    parts = tuple(each for each in every if each in {*chosen} - {*flags.without})
    images = _images(facts, flags, folder)
    choices = tuple(_choices(facts, flags, folder, parts))
    variables = {each.variable: each.value for each in choices}
    return Plan(
        choices=choices,
        components=parts,
        images={name: image for name, image in images.items() if name == "isthmus" or ROUTES in parts},
        warnings=(*_warnings(facts, flags, variables, parts), *_old_images(images, flags, folder)),
        blockers=tuple(_blockers(facts, variables, parts, {*flags.components} - {*every})),
    )


def _default_components(facts: Facts, flags: Flags, folder: Path) -> tuple[str, ...]:
    """Components of a new installation: those of deploy/, and several etcds where each has a node of its own."""
    components = rendering.default_components(folder)
    replicated = facts.workers >= REPLICAS and KEYS not in flags.without
    return (*components, REPLICATED) if replicated else components


def derived_id(uid: str, used: Collection[int] = ()) -> int:
    """Number of a cluster that has none configured: from the UID of its namespace kube-system, the next free one."""
    first = int.from_bytes(hashlib.sha256(uid.encode()).digest()[:4], "big")
    numbers = ((first + step) % IDS + 1 for step in range(IDS))
    return next((each for each in numbers if each not in used), 0)


def derived_name(context: str) -> str:
    """Name of a cluster by its context: letters that a cluster's name cannot have become ``-``."""
    return re.sub(r"[^a-z0-9-]+", "-", context.lower()).strip("-")[-NAME_LENGTH:].strip("-")


def _choices(facts: Facts, flags: Flags, folder: Path, parts: Collection[str]) -> Iterator[Choice]:
    """Each variable of the installation with its value, the first source that has one."""
    files = [folder / "cluster.env", *(sorted((folder / ISLANDS).glob("*.env")) if ISLANDS in parts else [])]
    defaults = {name: value for file in files for name, value in rendering.variables(file).items()}
    before = facts.installed.variables if facts.installed else {}
    settings = dict(flags.settings)
    settings |= {NAME: flags.name} if flags.name else {}
    settings |= {ID: str(flags.id)} if flags.id else {}
    detected = dict(_detected(facts, flags, parts))
    for variable in dict.fromkeys((*defaults, *detected, *before, *settings)):
        if variable in settings:
            yield Choice(variable, settings[variable], "flag")
        elif before.get(variable):
            yield Choice(variable, before[variable], "installed")
        elif variable in detected:
            values, source = detected[variable].values, detected[variable].source
            yield Choice(variable, ",".join(values), source)
        else:
            yield Choice(variable, "" if variable in MUST_BE_FOUND else defaults.get(variable, ""), "default")


MUST_BE_FOUND: Final = (NAME, ID, DNS)
"""Variables whose value in cluster.env is an example."""


def _detected(facts: Facts, flags: Flags, parts: Collection[str]) -> Iterator[tuple[str, Known]]:
    """Variables whose values follow from facts."""
    named = facts.name if facts.name.values else Known((derived_name(flags.context),), "name of the context")
    number = Known((str(derived_id(facts.uid, flags.taken_ids)),), "from the UID of kube-system; --id chooses another")
    yield NAME, named
    yield ID, facts.id if facts.id.values else number
    if facts.dns.values:
        first = {family(each): each for each in reversed(facts.dns.values)}
        families = [family(each) for each in facts.dns.values]
        asked = tuple(first[each] for each in dict.fromkeys(families))
        more = tuple(each for each in (*facts.dns.values, *facts.dns_cache.values) if each not in asked)
        yield DNS, Known(asked, facts.dns.source)
        if more:
            yield "ISTHMUS_DNS_RESOLVERS", Known(tuple(dict.fromkeys(more)), facts.dns_cache.source or facts.dns.source)
    if facts.domain.values and facts.domain.values != ("cluster.local",):
        yield "ISTHMUS_DNS_CLUSTER_DOMAIN", facts.domain
    yield from (
        (variable, ranges)
        for variable, ranges in (
            ("ISTHMUS_CLUSTER_POD_RANGES", facts.pods if facts.pods.source != NODE_CIDRS else UNKNOWN),
            ("ISTHMUS_CLUSTER_SERVICE_RANGES", facts.services),
        )
        if ranges.values
    )
    if "IPv6" in facts.families.values:
        source = facts.families.source
        yield "ISTHMUS_CLUSTER_FAMILIES", facts.families
        yield "ISTHMUS_DNS_LISTEN", Known((f"{LINK_LOCAL['IPv4']}:53", f"[{LINK_LOCAL['IPv6']}]:53"), source)
        if ROUTES in parts:
            yield "ISTHMUS_PROXY_LISTEN", Known(tuple(LINK_LOCAL.values()), source)


def _images(facts: Facts, flags: Flags, folder: Path) -> dict[str, str]:
    """Image by its name in deploy/: an option's, else the installed one of a registry, else that of this version."""
    installed = facts.installed.images if facts.installed else {}
    kept = {name: image for name, image in installed.items() if re.split("[:@]", image)[0] != name}
    return {**rendering.images(folder), **kept, **flags.images}


def _old_images(images: Mapping[str, str], flags: Flags, folder: Path) -> Iterator[str]:
    """Kept images whose tag is not this version. A digest names no version."""
    for name, default in rendering.images(folder).items():
        image, version = images[name], default.rpartition(":")[2]
        if name not in flags.images and "@" not in image and image.rpartition(":")[2] != version:
            cure = f"isthmus upgrade, or {'--image' if name == 'isthmus' else '--envoy-image'}"
            yield f"image {name} is installed as {image}, not of {version} as this command: {cure}"


def _blockers(
    facts: Facts, variables: Mapping[str, str], parts: Collection[str], unknown: Collection[str]
) -> Iterator[str]:
    for name in sorted(unknown):
        yield f"there is no component '{name}'"
    if not valid_cluster(variables[NAME]):
        yield f"'{variables[NAME]}' is no cluster's name (at most 32 of a-z, 0-9 and -): add --name"
    if not variables[ID].isdecimal() or not 1 <= int(variables[ID]) <= IDS:
        yield f"'{variables[ID]}' is no cluster's number (1 to {IDS}): add --id"
    if not variables[DNS]:
        yield "the cluster DNS is unknown: add --set dns.cluster_dns=ADDRESS, the nameserver in pods' /etc/resolv.conf"
    if (version := _version(facts)) and version < OLDEST_KUBERNETES:
        yield f"Kubernetes {facts.version} is older than {'.'.join(map(str, OLDEST_KUBERNETES))}"
    if facts.old_kernels and facts.kernels.values and len(facts.old_kernels) == _node_count(facts):
        yield "no node has a kernel that the datapath runs on (Linux 5.10): docs/install.md, Without the datapath"
    if facts.karmada.values == ("its control plane",):
        yield "this is a Karmada control plane, which runs no pods: install in its members"
    for other in facts.implementations.values:
        yield f"{other} implements the MCS API here: both would write the same ServiceImports"
    if ROUTES in parts and not facts.gateway_api.values:
        yield "component routes: the cluster has no definitions of the Gateway API (gateway.networking.k8s.io)"
    if variables.get(THROUGH_MIRROR, "false") != "false" and not {"keys", "mirror"} <= {*parts}:
        yield "clusterset.through_mirror wants the components keys and mirror: add --with keys --with mirror"
    if REPLICATED in parts and KEYS not in parts:
        yield "component replicated: `isthmus keys` makes the users of each etcd, so it needs the component keys"
    if ISSUER in parts and KEYS not in parts:
        yield "keys.issuer: `isthmus keys` requests its certificates, so it needs the component keys"
    if ISLANDS in parts and not variables.get(NETWORK):
        yield "component islands: add --set cluster.network=NAME, another one in each island"


def _warnings(facts: Facts, flags: Flags, variables: Mapping[str, str], parts: Collection[str]) -> Iterator[str]:
    if facts.installed and (REPLICATED in facts.installed.components) != (REPLICATED in parts):
        yield (
            "the StatefulSet of the etcd cannot be changed so; first: "
            "kubectl -n isthmus-system delete statefulset isthmus-etcd --cascade=orphan"
        )
    if facts.old_kernels and len(facts.old_kernels) < _node_count(facts):
        nodes = ", ".join(facts.old_kernels)
        yield f"no datapath on {nodes}: kernels older than Linux 5.10; calls take kube-proxy's path"
    if not facts.pods.values and not variables.get("ISTHMUS_CLUSTER_POD_RANGES"):
        yield "pod ranges are unknown, so a peer may publish addresses in them: --set cluster.pod_ranges=CIDR,…"
    if not facts.services.values and not variables.get("ISTHMUS_CLUSTER_SERVICE_RANGES"):
        yield "Service ranges are unknown, so a peer may publish addresses in them: --set cluster.service_ranges=CIDR,…"
    if not facts.load_balancer.values:
        yield "nothing is known to give Services of type LoadBalancer an address: peers reach them by nodes' ports"
    if facts.socket_lb:
        yield "Cilium translates pods' connects, too (socket LB): clusterset names are ours, plain Services its own"
    elif not facts.proxy.values:
        yield "no kube-proxy was found: in namespaces of a mesh, calls of the clusterset need what replaces it"
    if facts.meshes.values:
        yield f"{facts.meshes}: pods with a sidecar are left alone (docs/install.md, Beside a service mesh)"
    if facts.definitions.values:
        yield f"the definitions of the MCS API are there ({facts.definitions}): they are taken over"
    for variable, fact in _detected(facts, flags, ()):
        before = facts.installed.variables.get(variable) if facts.installed else None
        if before and variable not in (NAME, ID) and before != ",".join(fact.values) and variable not in flags.settings:
            setting = variable.removeprefix("ISTHMUS_").lower().replace("_", ".", 1)
            yield (
                f"{setting} is installed as {before}, and {fact.source} has {fact}: "
                f"--set {setting}={','.join(fact.values)} changes it"
            )
    yield from facts.unread


def _node_count(facts: Facts) -> int:
    return sum(int(match[1]) for each in facts.kernels.values if (match := re.search(r"\((\d+)\)$", each)))


def _version(facts: Facts) -> tuple[int, ...]:
    match = re.match(r"v?(\d+)\.(\d+)", str(facts.version))
    return tuple(map(int, match.groups())) if match else ()
