"""Write the Helm chart deploy/chart from what kustomize applies: the bases and components of deploy/.

tools/chart.py            write the chart
tools/chart.py --check    exit 1 and name the files that differ from what deploy/ has

Every set of components is rendered. Where an object, a field or an element of a list is in some of the renderings, the
template has a condition on the components; everything else is text. Values are the variables of cluster.env, the images
and the components, so the objects of a release are those of ``kubectl kustomize`` with the same settings.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from isthmus import config
from isthmus.installation import plan, rendering
from isthmus.installation.merging import MERGE_KEYS
from isthmus.installation.rendering import Object

ROOT: Final = Path(__file__).resolve().parent.parent
DEPLOY: Final = ROOT / "deploy"
CHART: Final = DEPLOY / "chart"
GENERATED: Final = "Written by tools/chart.py from deploy/; `make chart` writes it again."
WRITTEN_BY_HAND: Final = ROOT / "tools" / "helm"
"""Templates with names in capitals, which are replaced."""

Set = frozenset[str]
"""Components of an installation."""
IMAGES: Final = {"isthmus": "IMAGE", "isthmus-envoy": "ENVOY-IMAGE"}
"""Stand-ins of images, by the name that the manifests have."""
VARIABLES_NAME: Final = "VARIABLES-NAME"
"""Stand-in of the name of the variables' ConfigMap."""
EXPRESSIONS: Final = {
    "IMAGE": "{{ .Values.image | quote }}",
    "ENVOY-IMAGE": "{{ .Values.envoyImage | quote }}",
    VARIABLES_NAME: '{{ include "isthmus.variablesName" . }}',
}
"""Expressions by the stand-in whose place they take."""

_IPV4: Final = r"((25[0-5]|2[0-4]\d|1?\d?\d)\.){3}(25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV6: Final = r"[0-9a-fA-F]*:[0-9a-fA-F:.]*"
ADDRESS: Final = rf"({_IPV4}|{_IPV6})"
CIDR: Final = rf"({_IPV4}/(3[0-2]|[12]?\d)|{_IPV6}/(12[0-8]|1[01]\d|\d?\d))"
LISTENER: Final = rf"({_IPV4}|\[{_IPV6}\]):\d{{1,5}}"
LABEL_VALUE: Final = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"


class ChartError(Exception):
    """The bases have something that the chart cannot express; the message names it."""


def matching(pattern: str, **more: Any) -> Object:
    """Schema of a text."""
    return {"type": "string", "pattern": f"^{pattern}$", **more}


def listing(pattern: str, **more: Any) -> Object:
    """Schema of a list of texts."""
    return {"type": "array", "items": matching(pattern), **more}


class Value(Struct, frozen=True):
    """A value of the chart, which is a variable of the ConfigMap."""

    path: str
    variable: str
    schema: Object
    comment: str
    example: str = ""
    """What values.yaml shows of a value that has no default."""


VALUES: Final = (
    Value(
        "cluster.name",
        plan.NAME,
        matching(r"([a-z0-9][-a-z0-9]{0,30})?[a-z0-9]", maxLength=plan.NAME_LENGTH, **{"not": {"const": "default"}}),
        "Required: who this cluster is in the clusterset, a name and a number of its own (1 to 255), never changed.",
        "c1",
    ),
    Value("cluster.id", plan.ID, {"type": "integer", "minimum": 1, "maximum": plan.IDS}, "", "1"),
    Value(
        "cluster.podRanges",
        "ISTHMUS_CLUSTER_POD_RANGES",
        listing(CIDR),
        "CIDRs of this cluster's pods, Services and nodes: no peer may name one of them.",
    ),
    Value("cluster.serviceRanges", "ISTHMUS_CLUSTER_SERVICE_RANGES", listing(CIDR), ""),
    Value("cluster.nodeRanges", "ISTHMUS_CLUSTER_NODE_RANGES", listing(CIDR), ""),
    Value(
        "cluster.region",
        "ISTHMUS_CLUSTER_REGION",
        matching(r"\S*"),
        "Where this cluster is, and what policies may select it by. Peers read them.",
    ),
    Value("cluster.zone", "ISTHMUS_CLUSTER_ZONE", matching(r"\S*"), ""),
    Value(
        "cluster.labels",
        "ISTHMUS_CLUSTER_LABELS",
        {
            "type": "object",
            "propertyNames": {"pattern": r"^[A-Za-z0-9]([-A-Za-z0-9_./]{0,315}[A-Za-z0-9])?$"},
            "additionalProperties": matching(LABEL_VALUE),
        },
        "",
    ),
    Value(
        "cluster.network",
        plan.NETWORK,
        matching(r"\S*"),
        "With the component islands: the network that pods of this cluster reach each other on, and where clusters of\n"
        "other networks reach this one's gateways, as address:port of the Service isthmus-gateway.",
    ),
    Value("cluster.gateways", "ISTHMUS_CLUSTER_GATEWAYS", listing(r"\S+:\d{1,5}"), ""),
    Value(
        "dns.clusterDns",
        plan.DNS,
        listing(ADDRESS, minItems=1),
        "Required: what pods have as nameserver in /etc/resolv.conf: kubectl -n kube-system get service kube-dns",
        "[10.96.0.10]",
    ),
    Value(
        "dns.listen",
        "ISTHMUS_DNS_LISTEN",
        listing(LISTENER),
        "Addresses of the name servers on each node. Without: the link-local one of each family.",
    ),
)
OF_FILES: Final = ("cluster.env", "islands/islands.env")
"""Files with the variables of an installation; those of the second belong to its component."""
FAMILIES: Final = {"type": "array", "items": {"enum": ["IPv4", "IPv6"]}, "minItems": 1, "uniqueItems": True}
COMPONENTS: Final = {
    "keys": "Makes and renews this cluster's keys. Without it they are made by hand (docs/install.md).",
    "mirror": "Copies the peers' records into the own etcd.",
    "routes": "Routes of the Gateway API, whose definitions the cluster must have.",
    "islands": "A gateway for clusters of other networks; needs routes and cluster.network.",
    "monitoring": "Second addresses for Prometheus, and its annotations.",
    "replicated": "Three etcds, for clusters of three nodes or more; needs keys (docs/install.md).",
    "issuer": "Rights to request certificates, for settings.keys.issuer; needs keys (docs/clusterset.md).",
}


def sets() -> list[Set]:
    """Every set of components that can be installed, the largest first."""
    names = rendering.components(DEPLOY)
    if missing := {*names} ^ {*COMPONENTS}:
        raise ChartError(f"COMPONENTS and deploy/ differ: {', '.join(sorted(missing))}")
    parts = (frozenset(each) for size in range(len(names), -1, -1) for each in combinations(names, size))
    return [
        each
        for each in parts
        if (rendering.ISLANDS not in each or rendering.ROUTES in each)
        and (plan.KEYS in each or not each & {plan.REPLICATED, plan.ISSUER})
    ]


def condition(present: Collection[Set], possible: Collection[Set]) -> str:
    """The shortest condition on components that holds for some of the possible sets and for no other."""
    literals = [(name, enabled) for name in COMPONENTS for enabled in (True, False)]
    choices = [(parts, holds) for size in (1, 2) for parts in combinations(literals, size) for holds in (all, any)]
    for parts, holds in choices:
        if {each for each in possible if holds((name in each) is enabled for name, enabled in parts)} == {*present}:
            terms = [f"{'' if enabled else 'not '}.Values.components.{name}" for name, enabled in parts]
            word = "and" if holds is all else "or"
            return terms[0] if len(terms) == 1 else f"{word} {' '.join(f'({term})' for term in terms)}"
    raise ChartError(f"no condition on two components holds for exactly {sorted(map(sorted, present))}")


def conditional(lines: Sequence[str], present: Collection[Set], possible: Collection[Set]) -> list[str]:
    """Lines that are there for some sets of components."""
    if len(present) == len(possible):
        return [*lines]
    return [f"{{{{- if {condition(present, possible)} }}}}", *lines, "{{- end }}"]


class _Dumper(yaml.SafeDumper):
    """YAML that Go's reader takes as Python's does: a text that looks like a number to either is quoted."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else '"' if re.match(r"[\d.+-]|(?:y|n|yes|no|on|off)$", text, re.IGNORECASE) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _text)


def dumped(value: Any) -> list[str]:
    """Lines of YAML that are no template."""
    text = yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10_000)
    text = text.replace("{{", '{{ "{{" }}')
    for name, expression in EXPRESSIONS.items():
        text = text.replace(f": {name}\n", f": {expression}\n")
    return text.splitlines()


def template(variants: Mapping[Set, Any], field: str = "") -> list[str]:
    """Lines of a template that renders the variant of each set of components. ``field``: where it is in its object."""
    values = list(variants.values())
    if all(each == values[0] for each in values):
        return dumped(values[0])
    if all(isinstance(each, Mapping) for each in values):
        return _map(variants, field)
    if all(isinstance(each, list) for each in values):
        return _list(variants, field)
    raise ChartError(f"{field}: differs between sets of components, and is neither a map nor a list")


def _map(variants: Mapping[Set, Any], field: str) -> list[str]:
    lines = []
    for key in dict.fromkeys(key for each in variants.values() for key in each):
        present = {parts: each[key] for parts, each in variants.items() if key in each}
        first, *others = present.values()
        if all(each == first for each in others):
            entry = dumped({key: first})
        elif not any(isinstance(each, Mapping | list) for each in present.values()):
            lines += _scalars(key, present, variants)
            continue
        else:
            entry = [f"{key}:", *(_indented(each) for each in template(present, f"{field}.{key}"))]
        lines += conditional(entry, present, variants)
    return lines


def _scalars(key: str, present: Mapping[Set, Any], possible: Collection[Set]) -> list[str]:
    """A field without parts, each of its values under a condition."""
    lines = []
    for value in dict.fromkeys(present.values()):
        having = [parts for parts, each in present.items() if each == value]
        lines += conditional(dumped({key: value}), having, possible)
    return lines


def _list(variants: Mapping[Set, Any], field: str) -> list[str]:
    """Elements in the order of the variant that has them all."""
    key = MERGE_KEYS.get(field.rpartition(".")[2], "")
    by_identity = {parts: {_identity(each, key): each for each in items} for parts, items in variants.items()}
    order = max((list(each) for each in by_identity.values()), key=len)
    lines = []
    for parts, items in by_identity.items():
        if list(items) != [each for each in order if each in items]:
            raise ChartError(f"{field}: no set of components has all elements in the order of {sorted(parts)}")
    for identity in order:
        present = {parts: items[identity] for parts, items in by_identity.items() if identity in items}
        first, *rest = template(present, f"{field}.{identity}")
        if first.startswith("{{-"):
            raise ChartError(f"{field}.{identity}: its first field is not in all sets of components")
        lines += conditional([f"- {first}", *(_indented(each) for each in rest)], present, variants)
    return lines


def _identity(item: Any, key: str) -> str:
    return str(item[key]) if key else json.dumps(item, sort_keys=True)


def _indented(line: str) -> str:
    return line if line.startswith("{{- ") or not line else f"  {line}"


def files() -> dict[str, str]:
    """Content of each file of the chart by its path."""
    possible = sets()
    result = {
        "Chart.yaml": _chart(),
        "values.yaml": _values(),
        "values.schema.json": json.dumps(_schema(), indent=2, ensure_ascii=False) + "\n",
        **{f"templates/{each.name}": _written_by_hand(each) for each in sorted(WRITTEN_BY_HAND.iterdir())},
    }
    renderings = {parts: _rendered(parts) for parts in possible}
    for kind, name in dict.fromkeys(key for each in renderings.values() for key in each):
        present = {parts: each[kind, name] for parts, each in renderings.items() if (kind, name) in each}
        lines = conditional(["---", *template(present, f"{kind} {name}")], present, possible)
        if kind == "CustomResourceDefinition":
            path = f"crds/{name.partition('.')[0]}.yaml"
        else:
            path = f"templates/{name.rpartition('-')[0] if kind == 'ConfigMap' else name}.yaml"
        result[path] = result.get(path, f"# {GENERATED}\n") + "\n".join(lines) + "\n"
    return result


def _written_by_hand(file: Path) -> str:
    words = {
        "GENERATED": GENERATED,
        "VARIABLES": "\n".join(_settings()),
        "HASH_LENGTH": str(rendering.HASH_LENGTH),
        "DNS_LISTEN": f"{plan.LINK_LOCAL['IPv4']}:53,[{plan.LINK_LOCAL['IPv6']}]:53",
        "PROXY_LISTEN": ",".join(plan.LINK_LOCAL.values()),
    }
    return re.sub(r"@([A-Z_]+)@", lambda match: words[match[1]], file.read_text())


def _rendered(parts: Set) -> dict[tuple[str, str], Object]:
    """Objects of a set of components by kind and name, without the Namespace and the variables."""
    ordered = tuple(each for each in rendering.components(DEPLOY) if each in parts)
    objects = rendering.render(DEPLOY, rendering.Options(components=ordered, images=IMAGES))
    name = rf"{rendering.VARIABLES}-[a-z0-9]{{{rendering.HASH_LENGTH}}}"
    plain = json.loads(re.sub(name, VARIABLES_NAME, json.dumps(objects)))
    return {
        (each["kind"], each["metadata"]["name"]): each
        for each in plain
        if each["kind"] != "Namespace" and each["metadata"]["name"] != VARIABLES_NAME
    }


def _chart() -> str:
    version = rendering.images(DEPLOY)["isthmus"].rpartition(":")[2]
    oldest = ".".join(map(str, plan.OLDEST_KUBERNETES))
    return f"""# {GENERATED}
apiVersion: v2
name: isthmus
description: A Kubernetes Service exported in one cluster, callable by name from every other
type: application
version: {version}
appVersion: "{version}"
kubeVersion: ">={oldest}.0-0"
"""


def _default(value: Value) -> str:
    if value.schema["type"] == "array":
        return "[]"
    return "{}" if value.schema["type"] == "object" else '""'


def _values() -> str:
    images = rendering.images(DEPLOY)
    parts = rendering.default_components(DEPLOY)
    lines = [
        f"# {GENERATED}",
        "# One image for all processes, and the same with an Envoy in it for the components routes and islands.",
        f"image: {images['isthmus']}",
        f"envoyImage: {images['isthmus-envoy']}",
        "# Address families of the Services, the preferred one first.",
        "families: [IPv4]",
    ]
    section = ""
    for each in VALUES:
        name, field = each.path.split(".")
        lines += [f"{name}:"] if name != section else []
        section = name
        lines += [f"  # {line}" for line in each.comment.splitlines()]
        lines += [f"  # {field}: {each.example}" if each.example else f"  {field}: {_default(each)}"]
    lines += ["components:"]
    for name, comment in COMPONENTS.items():
        lines += [f"  # {comment}", f"  {name}: {str(name in parts).lower()}"]
    lines += [
        "# Fields of the configuration for all processes, as section: {field: value} (docs/configuration.md).",
        "settings: {}",
    ]
    return "\n".join(lines) + "\n"


def _closed(properties: Mapping[str, Any], **more: Any) -> Object:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties), **more}


def _needs(component: str, other: str) -> Object:
    """Schema of components of which one needs another."""
    return {
        "if": {"properties": {component: {"const": True}}},
        "then": {"properties": {other: {"const": True}}},
    }


def _schema() -> Object:
    sections: dict[str, dict[str, Object]] = {}
    required: dict[str, list[str]] = {}
    for each in VALUES:
        name, field = each.path.split(".")
        sections.setdefault(name, {})[field] = each.schema
        required.setdefault(name, []).extend([field] if each.example else [])
    image = matching(r"[^\s{}]+")
    properties = {
        "image": image,
        "envoyImage": image,
        "families": FAMILIES,
        **{name: _closed(fields, required=required[name]) for name, fields in sections.items()},
        "components": _closed(
            {name: {"type": "boolean"} for name in COMPONENTS},
            allOf=[
                _needs(rendering.ISLANDS, rendering.ROUTES),
                _needs(plan.REPLICATED, plan.KEYS),
                _needs(plan.ISSUER, plan.KEYS),
            ],
        ),
        "settings": _closed(_fields()),
        "global": {"type": "object"},
    }
    islands = {"properties": {"components": {"properties": {"islands": {"const": True}}}}}
    network = {"properties": {"cluster": {"properties": {"network": {"minLength": 1}}}}}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": GENERATED,
        "title": "Values of Isthmus",
        **_closed(properties, required=list(sections)),
        "if": islands,
        "then": network,
    }


def _fields() -> dict[str, Object]:
    """Schema of the fields of the configuration, but for those that have values of their own."""
    sections = msgspec.json.schema(config.Config)["$defs"]
    own = {each.variable for each in VALUES} | {"ISTHMUS_CLUSTER_FAMILIES"}
    result = {}
    for name, reference in sections["Config"]["properties"].items():
        fields = sections[reference["$ref"].rpartition("/")[2]]["properties"]
        kept = {
            field: {key: each for key, each in schema.items() if key != "default"}
            for field, schema in fields.items()
            if f"{config.ENVIRONMENT}{name}_{field}".upper() not in own
        }
        if kept:
            result[name] = _closed(kept)
    return result


def _settings() -> Iterator[str]:
    """Lines of the helper that set the variables of the files: always, or only if the value is not empty."""
    always = rendering.variables(DEPLOY / OF_FILES[0])
    islands = rendering.variables(DEPLOY / OF_FILES[1])
    covered = {each.variable for each in VALUES}
    if unknown := sorted({*always, *islands} - covered):
        raise ChartError(f"{unknown[0]} has no value in the chart: add it to VALUES")
    for each in VALUES:
        line = f'{{{{- $_ := set $data "{each.variable}" (include "isthmus.text" .Values.{each.path}) }}}}'
        if each.variable in always:
            yield line
        else:
            value = f".Values.{each.path}"
            either = f"or {value} .Values.components.islands" if each.variable in islands else value
            yield from (f"{{{{- if {either} }}}}", line, "{{- end }}")


def main() -> None:
    """Write the chart, or compare it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    try:
        content = files()
    except (ChartError, rendering.RenderingError) as error:
        sys.exit(f"deploy/chart: {error}")
    if not check:
        shutil.rmtree(CHART, ignore_errors=True)
        for path, text in content.items():
            (CHART / path).parent.mkdir(parents=True, exist_ok=True)
            (CHART / path).write_text(text)
        return
    committed = {str(each.relative_to(CHART)): each.read_text() for each in CHART.rglob("*") if each.is_file()}
    stale = sorted(path for path in {*content, *committed} if content.get(path) != committed.get(path))
    if stale:
        sys.exit(f"deploy/chart: {', '.join(stale)}: differs from what deploy/ has; run make chart")


if __name__ == "__main__":
    main()
