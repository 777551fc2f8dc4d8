"""Columns of rows for people: chosen ones for the tables we know, and sensible ones for any other. Pure.

Rows are decoded JSON. A row of an import shows the import's name, since people do not type ``derived-…``.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from isthmus.bounds import since_epoch
from isthmus.model.balancing import SCOPES
from isthmus.model.hosts import joined
from isthmus.times import timestamp

Row = Mapping[str, Any]

SHOWN: Final = 3
"""Items of a list for which a narrow column has room."""


class Column(NamedTuple):
    """A column: its head, its text of a row, whether only ``-o wide`` shows it."""

    head: str
    text: Callable[[Row], str]
    wide: bool = False


UNREADABLE: Final = "?"
"""Text of a cell whose field another version does not have, or writes differently: it costs that cell."""


def cell(column: Column, row: Row) -> str:
    """Return the text of a column for a row."""
    try:
        return column.text(row)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        return UNREADABLE


ALIASES: Final = {
    "svc": "services",
    "serviceimports": "imports",
    "svcim": "imports",
    "serviceexports": "export_marks",
    "svcex": "export_marks",
    "endpointslices": "endpoint_sets",
    "endpoints": "endpoint_sets",
    "ns": "namespaces",
}

CLUSTER_SCOPED: Final = {
    "clusters",
    "own_ranges",
    "peer_policies",
    "namespaces",
    "nodes",
    "draining",
    "xds",
    "xds_refused",
    "xds_served",
    "route_refusals",
    "envoy_checks",
    "gateway_checks",
    "refused_gateways",
    "trust_bundles",
    "identities",
    "caller_addresses",
    "signed_to",
    "paths",
}
OWN_NAME: Final = {"faults", "services", "names", "refused_claims", "xds", "xds_refused", "xds_served"}
"""Tables whose rows are called by their own name, whatever they belong to."""


def table_name(typed: str) -> str:
    """Resolve a table's name, which may be an alias or in the singular."""
    name = typed.lower().replace("-", "_")
    name = ALIASES.get(name, name)
    return f"{name}s" if f"{name}s" in COLUMNS else name


def names(row: Row) -> list[str]:
    """Return the names that select a row, the one that users know first: ``namespace/name``, or a bare name."""
    key = row.get("key")
    inner = key if isinstance(key, Mapping) else {}
    names = [row.get("import_of"), row.get("service"), inner.get("service"), row.get("name")]
    names.append((row.get("route") or ("", ""))[1])
    names.append((row.get("drain") or {}).get("target"))
    names += [row.get("policy"), row.get("pod"), row.get("address")] if not any(names) else []
    if not any(names) and "service_account" in row:  # a number of an account
        names = [str(row["number"]), f"{row['namespace']}/{row['service_account']}"]
    if not any(names) and isinstance(key, Sequence):
        names = [key if isinstance(key, str) else " ".join(map(str, key))]
    return list(dict.fromkeys(name for name in names if name))


def title(table: str, row: Row) -> str:
    """Return a row's cell in the column NAME."""
    name: str = row.get("name", "") if table in OWN_NAME else next(iter(names(row)), "")
    return name.partition("/")[2] or name


def namespace(table: str, row: Row) -> str | None:
    """The namespace a row is in; None for what is in none."""
    if table in CLUSTER_SCOPED:
        return None
    return next((name.partition("/")[0] for name in names(row) if "/" in name), None)


def columns(table: str, sample: Row) -> Sequence[Column]:
    """The columns of a table; for an unknown one they follow from its first row."""
    return COLUMNS.get(table) or [
        Column(head.upper().replace("_", "-"), _field(head)) for head in sample if head not in {"name", "service"}
    ]


def text(value: Any) -> str:
    """Any JSON value in one line."""
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case list():
            return _some([text(each) for each in value])
        case dict():
            return " ".join(f"{name}={text(each)}" for name, each in value.items() if text(each))
        case str() if len(value) > 60:
            return value[:57] + "..."
        case _:
            return str(value)


def _field(name: str) -> Callable[[Row], str]:
    return lambda row: text(row.get(name))


def _sentence(name: str) -> Callable[[Row], str]:
    """The whole of a sentence about what is wrong: what it names often stands at its end."""
    return lambda row: str(row.get(name) or "")


def _all(name: str) -> Callable[[Row], str]:
    return lambda row: ",".join(map(str, row.get(name) or ()))


def _some(parts: Iterable[str], shown: int = SHOWN) -> str:
    found = list(parts)
    return ",".join(found[:shown]) + (f" +{len(found) - shown} more" if len(found) > shown else "")


def _called(port: Row) -> str:
    """A port by its number, with the protocol where that is not TCP."""
    return f"{port['port']}" if port["protocol"] == "TCP" else f"{port['port']}/{port['protocol']}"


def _ports(row: Row) -> str:
    return ",".join(f"{port['port']}/{port['protocol']}" for port in row["ports"])


def _frontend(key: Row) -> str:
    return f"{joined(key['address'], key['port'])}/{key['protocol']}{SCOPES[key.get('scope', 0)]}"


def _rule(rule: Row) -> str:
    matched = f"{rule['port'] or '*'}/{rule['protocol']}" + (f" {rule['port_name']}" if rule.get("port_name") else "")
    return f"{matched} to {' '.join(joined(each['address'], each['port']) for each in rule['targets'])}"


def _listener(row: Row) -> str:
    return f"{','.join(map(str, row['ports'])) or '*'} to {joined(row['address'], row['port'])}"


def _labels(row: Row) -> str:
    return ",".join(f"{key}={value}" for key, value in row.get("labels") or ())


def _tier(tier: Row) -> str:
    """``c1=9 c2=1 (at least 2)``."""
    minimum = f"{tier['min_percent']}%" if tier["min_percent"] else str(tier["min_healthy"])
    shares = [
        (each["cluster"] or "/".join(filter(None, (each["region"], each["zone"], _labels(each)))))
        + ("" if each["weight"] is None else f"={each['weight']}")
        for each in tier["shares"]
    ]
    return _some(shares) + (f" (at least {minimum})" if minimum != "1" else "")


def _check(row: Row) -> str:
    """``HTTP /ready every 5 s, dead after 3``."""
    check = row["check"]
    what = {"HTTP": f" {check['path']}", "GRPC": f" {check['service']}" if check["service"] else ""}
    port = f" at port {check['port']}" if check["port"] else ""
    timing = f"every {check['interval']:g} s, dead after {check['unhealthy_after']}"
    return f"{check['type']}{what.get(check['type'], '')}{port} {timing}"


def _requirement(row: Row) -> str:
    return " ".join(text(each) for each in (row["key"], row["operator"], row["values"]) if each)


def _unsigned(guard: Row) -> str:
    """Treatment of callers of a guarded port that prove nothing."""
    return "refuse" if guard["require"] and guard["protocol"] != "UDP" else "address"


def _callers(rule: Row) -> str:
    """Callers that a rule of an ExportPolicy allows, by cluster, namespace and service account: ``c2/shop/web``."""
    cluster = ",".join([*filter(None, [rule["cluster"]]), *(f"{key}={value}" for key, value in rule["labels"])])
    return "/".join([cluster or "*", rule["namespace"] or "*", rule["service_account"] or "*"])


def _affinity(row: Row) -> str:
    if row.get("affinity") != "ClientIP":
        return ""
    return f"ClientIP {row['affinity_timeout']}s" if row.get("affinity_timeout") else "ClientIP"


def _cluster_of(target: Row) -> str:
    return (target["cluster"] or "local") if target["address"] else "refused"


def _targets(row: Row) -> str:
    """Count targets by cluster: ``c2:1 c3:2``; a bar separates the tiers."""
    tiers = sorted({group["tier"] for group in row["groups"]})
    counts = [
        Counter(_cluster_of(target) for group in row["groups"] if group["tier"] == tier for target in group["targets"])
        for tier in tiers
    ]
    return (
        " | ".join(" ".join(f"{name}:{n}" for name, n in sorted(count.items())) for count in counts if count) or "none"
    )


def _addresses(row: Row) -> str:
    targets = [target for group in row["groups"] for target in group["targets"]]
    addresses = [f"{joined(t['address'], t['port'])}@" if t["address"] else "" for t in targets]
    return _some([f"{address}{_cluster_of(t)}" for address, t in zip(addresses, targets, strict=True)], shown=10)


CONDITIONS: Final = ("ready", "terminating", "not ready", "gone")


def _condition(row: Row) -> str:
    """A backend's condition by its source, and by probes."""
    dead, lapsed = not row.get("healthy", True), row.get("lapsed", False)
    return CONDITIONS[row["condition"]] + (", dead" if dead else ", lapsed" if lapsed else "")


def _unix_time(row: Row) -> str:
    """The Unix time ``since`` of a row as RFC 3339; empty if it has none."""
    return timestamp(since_epoch(row["since"])) if row["since"] else ""


def _conditions(row: Row) -> str:
    counts = Counter(CONDITIONS[each["condition"]] for each in row["endpoints"])
    text = ", ".join(f"{n} {what}" for what, n in counts.items()) or "none"
    return f"{text}, lapsed" if row.get("lapsed") else text


def _link_condition(row: Row, kind: str) -> str:
    conditions = (row.get("status") or {}).get("conditions", ())
    return next((f"{each['status']} {each['reason']}" for each in conditions if each["type"] == kind), "")


PLAN: Final = [
    Column("PORT", lambda row: f"{row['key']['port']}/{row['key']['protocol']}{SCOPES[row['key'].get('scope', 0)]}"),
    Column("FRONTENDS", lambda row: _some([_frontend(key) for key in row["frontends"]])),
    Column("TARGETS", _targets),
    Column("AFFINITY", _affinity, wide=True),
    Column("AWAITED", _all("awaited"), wide=True),
    Column("REDIRECTED-BY", _field("redirected_by"), wide=True),
    Column("BUT-FOR", _all("skip"), wide=True),
    Column("ADDRESSES", _addresses, wide=True),
]

PROXIED: Final = [
    Column("OWNER", lambda row: str(row["owner"])),
    Column("CALLERS", _field("callers")),
    Column("LISTENERS", lambda row: _some([_listener(each) for each in row["listeners"]])),
    Column("WITHOUT", lambda row: _some([str(port) for each in row["left_out"] for port in each["ports"]])),
    Column("REASON", lambda row: "; ".join(each["why"] for each in row["left_out"])),
]

REFUSED: Final[Sequence[Column]] = [
    Column("CLUSTER", _field("cluster")),
    Column("KIND", _field("kind")),
    Column("REASON", _field("reason")),
    Column("MESSAGE", _sentence("message")),
]


def _port_routes(row: Row) -> str:
    callers = f"/{row['callers']}" if row["callers"] else ""
    return f"{row['port']}{callers}={_some([name for _, name in row['routes']])}"


COLUMNS: Final[Mapping[str, Sequence[Column]]] = {
    "peer_policies": [Column("DISTRUSTED", lambda row: "yes" if row["distrusted"] else "no")],
    "own_ranges": [Column("RANGES", _all("ranges")), Column("ADDRESSES", _all("addresses"))],
    "clusters": [
        Column("ID", lambda row: str(row["id"] or "?")),
        Column("STATE", lambda row: f"{row['state']}{' (own)' if row['own'] else ''}"),
        Column("SYNCED", _all("synced")),
        Column("SINCE", _field("since")),
        Column("DROPPED", _field("dropped"), wide=True),
        Column("FAILURES", _field("failures"), wide=True),
        Column("REGION", _field("region"), wide=True),
        Column("ZONE", _field("zone"), wide=True),
        Column("LABELS", _labels, wide=True),
        Column("NETWORK", _field("network"), wide=True),
        Column("GATEWAYS", _all("gateways"), wide=True),
        Column("VERSION", _field("version"), wide=True),
        Column("ENDPOINTS", _all("endpoints"), wide=True),
        Column("REASON", lambda row: row["reason"]),
    ],
    "exports": [
        Column("CLUSTER", _field("cluster")),
        Column("TYPE", _field("type")),
        Column("PORTS", _ports),
        Column("AFFINITY", _affinity, wide=True),
        Column("CREATED", _field("created")),
    ],
    "export_marks": [Column("CREATED", _field("created")), Column("UID", _field("uid"), wide=True)],
    "own_exports": [
        Column("EXPORTED", lambda row: "yes" if row["export"] else "no"),
        Column("REASON", _sentence("reason")),
        Column("MESSAGE", _sentence("message"), wide=True),
    ],
    "over_quota": [Column("LIMIT", _field("limit"))],
    "refused_records": REFUSED,
    "peer_refusals": REFUSED,
    "failures": [
        Column("CLUSTER", lambda row: _cluster_of(row["key"])),
        Column("ADDRESS", lambda row: _frontend(row["key"])),
        Column("REASON", _sentence("reason")),
        Column("FAILURES", _field("failures")),
        Column("ERROR", _sentence("error"), wide=True),
    ],
    "faults": [
        Column("TABLE", _sentence("part")),
        Column("KIND", _sentence("kind")),
        Column("CAUSE", _field("cause")),
        Column("SINCE", lambda row: timestamp(since_epoch(row["since"]))),
        Column("TRIES", _field("tries")),
        Column("ERROR", _sentence("error")),
        Column("WHERE", _sentence("where"), wide=True),
        Column("UID", _field("uid"), wide=True),
    ],
    "caller_failures": [
        Column("CALLER", lambda row: row["pod"] or f"network namespace {row['caller']}"),
        Column("CLUSTER", lambda row: _cluster_of(row["key"])),
        Column("ADDRESS", lambda row: _frontend(row["key"])),
        Column("REASON", _sentence("reason")),
        Column("FAILURES", _field("failures")),
        Column("AGENT", lambda row: {"answers": "connects", "dead": "does not either"}.get(row["verdict"], "")),
    ],
    "denials": [
        Column("CALLER", lambda row: row["pod"] or f"network namespace {row['caller']}"),
        Column("CLUSTER", lambda row: _cluster_of(row["key"])),
        Column("ADDRESS", lambda row: _frontend(row["key"])),
        Column("CONNECTS", _field("connects")),
        Column("LAST", lambda row: timestamp(since_epoch(row["last"]))),
    ],
    "observed": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "imports": [
        Column("TYPE", _field("type")),
        Column("IPS", _all("ips")),
        Column("PORTS", _ports),
        Column("CLUSTERS", _all("clusters")),
        Column("AFFINITY", _affinity, wide=True),
        Column("DERIVED", _field("derived"), wide=True),
    ],
    "merged": [
        Column("TYPE", _field("type")),
        Column("PORTS", _ports),
        Column("CLUSTERS", _all("clusters")),
        Column("CONFLICTS", lambda row: ",".join(each["reason"] for each in row["conflicts"])),
    ],
    "services": [
        Column("IMPORT", lambda row: row["import_of"].partition("/")[2]),
        Column("SOURCE", _field("source")),
        Column("TYPE", lambda row: "Headless" if row["headless"] else row["type"]),
        Column("CLUSTER-IP", _all("cluster_ips")),
        Column("PORTS", _ports),
        Column("AFFINITY", _affinity, wide=True),
        Column("EXTERNAL-IPS", lambda row: ",".join([*row["external_ips"], *row["load_balancer_ips"]]), wide=True),
        Column("SELECTOR", lambda row: ",".join(f"{k}={v}" for k, v in row["selector"]), wide=True),
    ],
    "endpoint_sets": [
        Column("CLUSTER", _field("cluster")),
        Column("SOURCE", _field("source")),
        Column("PART", _field("part")),
        Column("ENDPOINTS", lambda row: _some([each["address"] for each in row["endpoints"]])),
        Column("CONDITIONS", _conditions),
    ],
    "frontends": [
        Column("ADDRESS", lambda row: _frontend(row["key"])),
        Column("TYPE", _field("type")),
        Column("PORT-NAME", _field("port_name")),
        Column("SERVICE", _field("service"), wide=True),
        Column("SHADOWED", _all("shadowed"), wide=True),
    ],
    "backends": [
        Column("CLUSTER", lambda row: _cluster_of(row["key"])),
        Column("ADDRESS", lambda row: _frontend(row["key"])),
        Column("CONDITION", _condition),
        Column("NODE", _field("node")),
        Column("SOURCE", _field("source"), wide=True),
        Column("ZONE", _field("zone"), wide=True),
        Column("POD", _field("pod"), wide=True),
        Column("PORT-NAMES", _all("port_names"), wide=True),
        Column("SERVICE", lambda row: row["key"]["service"], wide=True),
    ],
    "plans": PLAN,
    "route_plans": PLAN,
    "checks": [
        Column("CLUSTER", lambda row: _cluster_of(row["key"])),
        Column("ADDRESS", lambda row: _frontend(row["key"])),
        Column("CHECK", _check),
    ],
    "probes": [
        Column("CLUSTER", lambda row: _cluster_of(row["key"])),
        Column("ADDRESS", lambda row: _frontend(row["key"])),
        Column("HEALTHY", _field("healthy")),
        Column("SINCE", lambda row: timestamp(since_epoch(row["since"])) if row["since"] else ""),
        Column("REASON", _sentence("reason")),
    ],
    "redirects": [
        Column("OWNER", _field("owner")),
        Column("ADDRESS", _field("address"), wide=True),
        Column("RULES", lambda row: _some([_rule(rule) for rule in row["rules"]])),
        Column("SKIP", _all("skip"), wide=True),
    ],
    "port_redirects": [
        Column("PORT", lambda row: f"{row['key']['port']}/{row['key']['protocol']} {row['key']['family']}"),
        Column("CALLS", lambda row: "not meant by a local redirect" if row["key"]["original"] else "all"),
        Column("OWNER", _field("owner")),
        Column("TARGETS", lambda row: _some([joined(each["address"], each["port"]) for each in row["targets"]])),
        Column("SKIP", _all("skip"), wide=True),
    ],
    "policies": [
        Column("KIND", _field("policy_kind")),
        Column("TARGET", lambda row: f"{row['kind']} {row['target'].partition('/')[2]}"),
        Column("TIERS", lambda row: " | ".join(_tier(each) for each in row["tiers"]) or row["locality"]),
        Column("AFFINITY", _affinity, wide=True),
        Column("HEALTH-CHECK", lambda row: _check({"check": row["health"]}) if row["health"] else "", wide=True),
        Column("INVALID", _sentence("invalid")),
    ],
    "refused_claims": [
        Column("KIND", _field("kind")),
        Column("CLAIM", _field("type")),
        Column("ADDRESS", _field("address")),
        Column("REASON", _sentence("reason")),
        Column("MESSAGE", _sentence("message"), wide=True),
    ],
    "export_policies": [
        Column("EXPORT", lambda row: row["target"] or "(all)"),
        Column("ALLOW", lambda row: _some([_callers(each) for each in row["allow"]]) or "nobody"),
        Column("AUDIT", lambda row: text(row["audit"])),
        Column("ENFORCE", _field("enforce"), wide=True),
        Column("UNSIGNED", lambda row: "refuse" if row["require"] else "address", wide=True),
        Column("ESTABLISHED", lambda row: "cut" if row["cut"] else "keep", wide=True),
        Column("INVALID", _sentence("invalid")),
    ],
    "allowed_callers": [
        Column("EXPORT", lambda row: row["scope"][1] or "(all)"),
        Column("IDENTITIES", lambda row: str(sum(len(numbers) for _, numbers in row["identities"]))),
    ],
    "excess_policies": [
        Column("IDENTITIES", _field("identities")),
        Column("CLUSTERS", lambda row: _some(row["clusters"])),
        Column("LIMIT", _field("limit")),
    ],
    "identity_objects": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "export_policy_objects": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "guards": [
        Column("ADDRESS", _field("address")),
        Column("PORT", lambda row: f"{row['port']}/{row['protocol']}"),
        Column("AUDIT", lambda row: text(row["audit"])),
        Column("UNSIGNED", _unsigned, wide=True),
        Column("ESTABLISHED", lambda row: "cut" if row["cut"] else "keep", wide=True),
    ],
    "address_identities": [Column("IDENTITY", _field("number"))],
    "address_use": [],
    "permits": [Column("IDENTITY", _field("identity"))],
    "caller_refusals": [
        Column("CALLER", lambda row: row["caller"] or "(unknown)"),
        Column("REASON", _field("reason")),
        Column("CALLS", _field("count")),
        Column("LAST", lambda row: timestamp(since_epoch(row["last"]))),
        Column("IDENTITY", _field("identity"), wide=True),
    ],
    "identities": [
        Column("CLUSTER", _field("cluster")),
        Column("ACCOUNT", lambda row: f"{row['namespace']}/{row['service_account']}"),
        Column("UNUSED-SINCE", _field("unused_since"), wide=True),
    ],
    "caller_addresses": [Column("CLUSTER", _field("cluster")), Column("IDENTITY", _field("number"))],
    "sources": [Column("IDENTITY", _field("identity")), Column("ADDRESSES", _all("addresses"))],
    "host_sources": [Column("IDENTITY", _field("identity")), Column("UID", _field("uid"), wide=True)],
    "paths": [
        Column("STATE", _field("state")),
        Column("REASON", _field("reason")),
        Column("LAST", lambda row: timestamp(since_epoch(row["last"]))),
        Column("ADDRESS", _field("address"), wide=True),
    ],
    "signed_to": [Column("ADDRESS", _field("address")), Column("CLUSTER", _field("cluster"))],
    "drains": [
        Column("KIND", lambda row: row["drain"].get("kind", "")),
        Column("TARGET", lambda row: row["drain"].get("target", "")),
        Column("STARTED", lambda row: row["drain"].get("started", "")),
        Column("INVALID", _sentence("invalid")),
    ],
    "links": [
        Column("CLUSTER", _field("name")),
        Column("ID", lambda row: text(row.get("id"))),
        Column("ENDPOINTS", _all("endpoints")),
        Column("READY", lambda row: _link_condition(row, "Ready")),
        Column("ACCEPTED", lambda row: _link_condition(row, "Accepted")),
        Column("INVALID", _sentence("invalid")),
    ],
    "draining": [
        Column("BY", _field("by")),
        Column("TARGET", lambda row: f"{row['drain']['kind']} {row['drain']['target']}"),
        Column("LEFT", lambda row: f"{row['left']}%"),
        Column("CONNECTIONS", lambda row: "closed" if row["closing"] else "kept"),
        Column("SINCE", lambda row: row["drain"].get("started", "")),
        Column("REASON", lambda row: row["drain"].get("reason", "")),
    ],
    "drain_objects": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "local_redirects": [
        Column("SERVICE", _field("service")),
        Column("ADDRESS", _field("address")),
        Column("PORTS", _ports),
        Column("SELECTOR", lambda row: ",".join(_requirement(each) for each in row["selector"])),
        Column("CREATED", _field("created"), wide=True),
    ],
    "proxy_redirects": PROXIED,
    "proxy_listeners": PROXIED,
    "routes": [
        Column("KIND", _field("kind")),
        Column("PARENTS", lambda row: _some([f"{each['kind']} {each['name']}" for each in row["parents"]])),
        Column("MATCHES", _field("matches")),
        Column("INVALID", _sentence("invalid")),
    ],
    "attachments": [
        Column("ROUTES", lambda row: _some([_port_routes(each) for each in row["ports"]])),
        Column("REFUSED", lambda row: _some([each["route"][1] for each in row["refused"]])),
    ],
    "route_parts": [
        Column("ROUTE", lambda row: " ".join(row["route"])),
        Column("PORT", _field("port")),
        Column("MATCHES", lambda row: str(len(row["matches"]))),
        Column("PROBLEM", _sentence("problem")),
    ],
    "backend_tls": [
        Column("TARGETS", lambda row: _some([f"{each['kind']} {each['name']}" for each in row["targets"]])),
        Column("HOSTNAME", _field("hostname")),
        Column("AUTHORITIES", lambda row: _some(row["authorities"])),
        Column("INVALID", _sentence("invalid")),
    ],
    "authorities": [Column("PROBLEM", _sentence("problem"))],
    "l4_routes": [
        Column("KIND", _field("kind")),
        Column("PARENTS", lambda row: _some([f"{each['kind']} {each['name']}" for each in row["parents"]])),
        Column("BACKENDS", lambda row: _some([f"{each['to']['name']}={each['weight']}" for each in row["backends"]])),
        Column("INVALID", _sentence("invalid")),
    ],
    "routed_ports": [
        Column("PORT", lambda row: f"{row['key']['port']}/{row['key']['protocol']} {row['key']['family']}"),
        Column("OWNER", _field("owner")),
        Column("TARGETS", _targets),
    ],
    "grants": [
        Column("FROM", lambda row: _some([" ".join(each) for each in row["sources"]])),
        Column("TO", lambda row: _some([" ".join(each).strip() for each in row["targets"]])),
    ],
    "xds_served": [],
    "envoy_checks": [
        Column("HEALTHY", _field("healthy")),
        Column("SINCE", _unix_time),
        Column("REASON", _sentence("reason")),
    ],
    "island_pods": [
        Column("CLUSTER", _field("cluster")),
        Column("HOSTNAME", _field("hostname")),
        Column("ADDRESSES", lambda row: _some(row["addresses"])),
        Column("PORTS", lambda row: _some(sorted({_called(port) for port in row["ports"]}))),
        Column("IMPORT", _field("import_of"), wide=True),
    ],
    "island_listeners": [
        Column("CLUSTER", _field("cluster")),
        Column("PORT", lambda row: f"{row['port']}/{row['protocol']}"),
        Column("LISTENS", lambda row: _some([joined(each, row["listen_port"]) for each in row["addresses"]])),
        Column("IMPORT", _field("import_of"), wide=True),
    ],
    "gateway_checks": [
        Column("CLUSTER", _field("cluster")),
        Column("GATEWAY", _field("address")),
        Column("HEALTHY", _field("healthy")),
        Column("RTT", lambda row: f"≤ {row['round_trip'] * 1000:g} ms" if row["round_trip"] else ""),
        Column("SINCE", _unix_time),
        Column("REASON", _sentence("reason")),
    ],
    "refused_gateways": [
        Column("CLUSTER", _field("cluster")),
        Column("GATEWAY", _field("address")),
        Column("REASON", _sentence("message")),
    ],
    "trust_bundles": [Column("CLUSTERS", lambda row: _some(row["clusters"]))],
    "xds": [
        Column("TYPE", _field("type")),
        Column("OWNER", _field("owner")),
        Column("VERSION", _field("version"), wide=True),
    ],
    "xds_refused": [
        Column("TYPE", _field("type")),
        Column("OWNER", _field("owner")),
        Column("ERROR", _sentence("error")),
    ],
    "route_refusals": [
        Column("ROUTES", lambda row: _some([f"{each['kind']} {each['name']}" for each in row["routes"]])),
        Column("MESSAGE", lambda row: row["routes"][0]["message"] if row["routes"] else ""),
    ],
    "names": [
        Column("TYPE", _field("type")),
        Column("ANSWERS", lambda row: _some(row["answers"])),
        Column("TTL", _field("ttl"), wide=True),
    ],
    "records": [Column("KIND", _field("kind"))],
    "refusals": [Column("BYTES", lambda row: str(len(b64decode(row["value"]))))],
    "objects": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "policy_objects": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "route_objects": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "backend_tls_objects": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "l4_route_objects": [Column("KIND", _field("kind")), Column("OBJECT", lambda row: row["name"])],
    "namespaces": [
        Column("STATUS", lambda row: "Terminating" if row["terminating"] else "Active"),
        Column("ANNOTATIONS", lambda row: ",".join(f"{k}={v}" for k, v in row["annotations"]), wide=True),
    ],
    "nodes": [
        Column("ADDRESSES", _all("addresses")),
        Column("ZONE", _field("zone")),
        Column("REGION", _field("region")),
    ],
    "ignored_pods": [
        Column("REASON", _field("reason")),
        Column("ADDRESSES", _all("addresses")),
    ],
    "pods": [
        Column("READY", _field("ready")),
        Column("PHASE", _field("phase")),
        Column("ADDRESSES", _all("addresses")),
        Column("NODE", _field("node")),
    ],
}
