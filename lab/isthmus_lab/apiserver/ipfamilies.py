"""A Service's address families: what it asks for, what it had and what the cluster has → what it gets. Pure.

As on a real server, in three steps: what a write leaves out is kept (``keep``), what is invalid whatever the
cluster has is refused (``problems``), and what is left open is decided (``decide``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from isthmus import bounds
from isthmus.bounds import OutOfBounds
from isthmus_lab.apiserver.errors import Problem
from isthmus_lab.apiserver.objects import Object

FAMILIES: Final = ("IPv4", "IPv6")
POLICIES: Final = ("PreferDualStack", "RequireDualStack", "SingleStack")
SINGLE: Final = "SingleStack"
HEADLESS: Final = ["None"]


def keep(before: Object, spec: Object) -> None:
    """Keep fields that an update omits. A change to SingleStack drops the second address and family."""
    ip, ips = spec.get("clusterIP") or "", _list(spec, "clusterIPs")
    had_ip, had_ips = before.get("clusterIP") or "", _list(before, "clusterIPs")
    if ip != had_ip and ips == had_ips:
        ips = [ip] if ip else []
    ip, ips, families = ip or had_ip, ips or had_ips, _list(spec, "ipFamilies")
    policy = spec.get("ipFamilyPolicy") or before.get("ipFamilyPolicy")
    if policy == SINGLE:
        ips = ips[:1] if ips == had_ips else ips
        families = families[:1] if families == _list(before, "ipFamilies") else families
    kept = {"clusterIP": ip, "clusterIPs": ips, "ipFamilies": families, "ipFamilyPolicy": policy}
    for name, value in kept.items():
        spec.pop(name, None)
        if value:
            spec[name] = value


def problems(spec: Object, before: Object) -> list[Problem]:
    """Problems that do not depend on the cluster's families: those of the first check that fails."""
    if "ExternalName" in (spec.get("type"), before.get("type", "")):
        before = {}
    if spec.get("type") == "ExternalName":
        return []
    kinds = (_malformed(spec), _released(spec, before), _moved(spec, before))
    return next((first for first in map(list, kinds) if first), [])


def decide(spec: Object, before: Object, configured: Sequence[str]) -> list[Problem]:
    """Write policy and families into a Service; what is wrong where the cluster cannot have that."""
    if _settled(spec, before):
        return []
    loose = _is_loose(spec)
    policy = spec["ipFamilyPolicy"] = _policy(spec)
    families, problems = _list(spec, "ipFamilies"), []
    ips = [] if spec.get("clusterIP") == "None" else _list(spec, "clusterIPs")
    for index in range(len(families), len(ips)):
        families.append(family_of(ips[index]))
        if families[-1] not in configured:
            problems.append(_wrong(f"clusterIPs[{index}]", ips, f"{families[-1]} is not configured on this cluster"))
    if not loose and not problems:
        problems = list(_unserved(policy, families, configured))
    if problems:
        return problems
    families = families or [configured[0]]
    if len(families) == 1 and policy != SINGLE and (loose or len(configured) > 1):
        families.append(next(each for each in FAMILIES if each not in families))
    spec["ipFamilies"] = families
    return []


def family_of(address: Any) -> str:
    """'IPv4' or 'IPv6', '' for what is no address or has a zone."""
    try:
        return f"IPv{bounds.ip(address).version}"
    except OutOfBounds:
        return ""


def _is_loose(spec: Object) -> bool:
    """Headless and without a selector: whoever makes its endpoints may have any family."""
    return spec.get("clusterIP") == "None" and not spec.get("selector")


def _policy(spec: Object) -> str:
    return str(spec.get("ipFamilyPolicy") or ("RequireDualStack" if _is_loose(spec) else SINGLE))


def _settled(spec: Object, before: Object) -> bool:
    """One that prefers two stacks is not given a second because the cluster has got one."""
    same = ("type", "ipFamilyPolicy", "clusterIPs", "ipFamilies")
    return before.get("ipFamilyPolicy") == "PreferDualStack" and all(spec.get(n) == before.get(n) for n in same)


def _unserved(policy: str, families: list[str], configured: Sequence[str]) -> Iterator[Problem]:
    if policy == "RequireDualStack" and len(configured) < 2:
        yield _wrong("ipFamilyPolicy", policy, "this cluster is not configured for dual-stack services")
    for index, family in enumerate(families):
        if family not in configured:
            yield _wrong(f"ipFamilies[{index}]", family, "not configured on this cluster")


def _malformed(spec: Object) -> Iterator[Problem]:
    ip, ips, families = spec.get("clusterIP") or "", _list(spec, "clusterIPs"), _list(spec, "ipFamilies")
    if ip and ips[:1] != [ip]:
        yield _wrong("clusterIPs", ips, "first value must match `clusterIP`")
    if ips and not ip:
        yield _wrong("clusterIPs", ips, "must be empty when `clusterIP` is not specified")
    for index, family in enumerate(families):
        if family not in FAMILIES:
            yield _unsupported(f"ipFamilies[{index}]", family, FAMILIES)
        if family in families[:index]:
            yield Problem(f"spec.ipFamilies[{index}]", "Duplicate value", value=family)
    policy = spec.get("ipFamilyPolicy")
    if policy and policy not in POLICIES:
        yield _unsupported("ipFamilyPolicy", policy, POLICIES)
    yield from _malformed_addresses(ips, families)


def _malformed_addresses(ips: list[str], families: list[str]) -> Iterator[Problem]:
    if ips == HEADLESS:
        return
    if ips[:1] == HEADLESS:
        yield _wrong("clusterIPs", ips, "'None' must be the first and only value")
    bad = [index for index, ip in enumerate(ips) if not family_of(ip) and (index or ip != "None")]
    for index in bad:
        yield _wrong(
            f"clusterIPs[{index}]", ips[index], "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
        )
    if len(ips) > 2:
        yield _wrong("clusterIPs", ips, "may only hold up to 2 values")
    if bad or "None" in ips:
        return
    if len(ips) > 1 and len({*map(family_of, ips)}) != len(ips):
        yield _wrong("clusterIPs", ips, "may specify no more than one IP for each IP family")
    for index, (ip, family) in enumerate(zip(ips, families, strict=False)):
        if family in FAMILIES and family_of(ip) != family:
            yield _wrong(
                f"clusterIPs[{index}]", ip, f"expected an {family} value as indicated by `ipFamilies[{index}]`"
            )


def _released(spec: Object, before: Object) -> Iterator[Problem]:
    """The second address and family need a dual-stack policy, and are removed only with SingleStack."""
    policy, ips, families = _policy(spec), _list(spec, "clusterIPs"), _list(spec, "ipFamilies")
    single = policy == SINGLE
    for what, new, had in (
        ("cluster IP", ips, _list(before, "clusterIPs")),
        ("IP family", families, _list(before, "ipFamilies")),
    ):
        if not single and 0 < len(new) < len(had):
            yield _wrong("ipFamilyPolicy", policy, f"must be 'SingleStack' to release the secondary {what}")
    for what, new in (("cluster IPs", ips), ("IP families", families)):
        if single and len(new) == 2:
            reason = f"must be 'RequireDualStack' or 'PreferDualStack' when multiple {what} are specified"
            yield _wrong("ipFamilyPolicy", policy, reason)


def _moved(spec: Object, before: Object) -> Iterator[Problem]:
    """The first address and family are immutable, except for a headless Service."""
    ips, had = _list(spec, "clusterIPs"), _list(before, "clusterIPs")
    if ips == had == HEADLESS:
        return
    for index, (ip, was) in enumerate(zip(ips, had, strict=False)):
        if ip != was and (index == 0 or len(ips) == len(had)):
            yield _wrong(f"clusterIPs[{index}]", ips, "may not change once set")
    if HEADLESS in (ips, had):
        return
    families, were = _list(spec, "ipFamilies"), _list(before, "ipFamilies")
    for index, (family, was) in enumerate(zip(families, were, strict=False)):
        if family != was and (index == 0 or len(families) == len(were)):
            yield _wrong("ipFamilies[0]", families, "may not change once set")


def _list(spec: Object, name: str) -> list[str]:
    return list(spec.get(name) or ())


def _wrong(field: str, value: Any, reason: str) -> Problem:
    return Problem(f"spec.{field}", "Invalid value", reason, value)


def _unsupported(field: str, value: str, choices: Sequence[str]) -> Problem:
    supported = ", ".join(f'"{each}"' for each in choices)
    return Problem(f"spec.{field}", "Unsupported value", f"supported values: {supported}", value)
