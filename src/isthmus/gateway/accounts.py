"""The account of a calling pod, which its node's Envoy passes to a gateway in the ClientHello. Pure.

The node offers a second protocol (ALPN) after the member's own: hashes of the pod's namespace and service account. The
gateway chooses a chain by it, so that TCP and HTTP are judged alike before any byte of the call, and no pod receives
it. TLS protects it from changes on the way. It is the member's claim: the chain takes certificates of that member only,
so a node names accounts of its own cluster alone. A reader of the ClientHello learns hashes, as from the SNI.

Rules name a namespace, a service account, or both, so each has a hash of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Final

from isthmus.identity.allow import Accounts
from isthmus.model.hosts import canonical
from isthmus.model.names import ClusterName
from isthmus.model.services import ENDED, Pod
from isthmus.model.xds import Resource
from isthmus.proxy.messages import ANY_PREFIX, message, packed
from isthmus.proxy.resources import ADS, resource

PREFIX: Final = "isthmus-caller/"
FILTER_STATE: Final = "envoy.extensions.filters.network.set_filter_state.v3.Config"
PROTOCOLS: Final = "envoy.network.application_protocols"
"""Key of the filter state from which Envoy takes the protocols that it offers, separated by commas."""
CEL: Final = f"{ANY_PREFIX}envoy.extensions.formatter.cel.v3.Cel"
"""Type of the formatter of ``%CEL%``, an empty message. Newer Envoys have the formatter without configuration."""
SOURCE: Final = "isthmus.source"
"""Key of the filter state with the address of the calling pod."""


def passed(namespace: str, service_account: str) -> str:
    """Return the protocol that names an account."""
    return f"{PREFIX}{_hash('namespace', namespace)}.{_hash('account', service_account)}"


def _hash(kind: str, name: str) -> str:
    """Hash of 128 bits: nobody can find a second name with the same one."""
    return blake2b(name.encode(), digest_size=16, person=kind.encode()).hexdigest()


def matchers(member: str, allowed: Accounts, *, unproven: bool) -> Iterator[dict[str, str]]:
    """Yield matchers of the protocols that an allowed caller offers, as Envoy lists them: quoted, separated by commas.

    ``member``: its member's protocol. ``unproven``: callers without an account are allowed.
    """
    if unproven:
        yield {"exact": f"'{member}'"}
    for namespace, account in sorted(allowed):
        if namespace and account:
            yield {"exact": f"'{member}','{passed(namespace, account)}'"}
        elif namespace:
            yield {"prefix": f"'{member}','{PREFIX}{_hash('namespace', namespace)}."}
        else:
            yield {"suffix": f".{_hash('account', account)}'"}


def config_name(island: ClusterName) -> str:
    """Name of the filter configuration, shared by all listeners of an island: a new pod changes no listener."""
    return f"callers of {island}"


def passing(island: ClusterName) -> dict[str, Any]:
    """Return a network filter of a node that passes the account of the calling pod to the gateways of an island."""
    name = config_name(island)
    discovery = {"config_source": ADS, "type_urls": [f"{ANY_PREFIX}{FILTER_STATE}"]}
    return {"name": name, "config_discovery": discovery | {"default_config": packed(FILTER_STATE)}}


def config(island: ClusterName, unit: str, own: str, pods: Iterable[Pod]) -> Resource:
    """Return the configuration of :func:`passing` for the pods of a node; without pods nothing is passed.

    ``own``: the protocol of the node's cluster. An address that two accounts share is passed for neither.
    """
    cel = {"name": "envoy.formatter.cel", "typed_config": message("google.protobuf.Any")(type_url=CEL)}
    values: list[dict[str, Any]] = []
    for account, addresses in sorted(_by_account(pods).items()):
        is_source = " || ".join(f"filter_state['{SOURCE}'] == b'{each}'" for each in addresses)
        offered = f"%CEL({is_source} ? '{own},{passed(*account)}' : '')%"
        values.append({"object_key": PROTOCOLS, "format_string": _text(offered, [cel]), "skip_if_empty": True})
    if values:
        source = _text("%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%", [])
        values.insert(0, {"object_key": SOURCE, "format_string": source, "factory_key": "envoy.string"})
    typed = packed(FILTER_STATE, on_new_connection=values)
    return resource("extension", config_name(island), f"cluster {island}", unit, typed_config=typed)


def _by_account(pods: Iterable[Pod]) -> dict[tuple[str, str], list[str]]:
    accounts: dict[str, set[tuple[str, str]]] = {}
    for pod in pods:
        if pod.service_account and not pod.host_network and pod.phase not in ENDED:
            for address in filter(canonical, pod.addresses):
                accounts.setdefault(address, set()).add((pod.name.partition("/")[0], pod.service_account))
    found: dict[tuple[str, str], list[str]] = {}
    for address in sorted(accounts):
        if len(accounts[address]) == 1:
            found.setdefault(accounts[address].copy().pop(), []).append(address)
    return found


def _text(text: str, formatters: list[dict[str, Any]]) -> dict[str, Any]:
    return {"text_format_source": {"inline_string": text}, "formatters": formatters}
