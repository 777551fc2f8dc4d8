"""Write the reference pages that follow from the code: docs/configuration.md, docs/api.md and docs/metrics.md.

tools/reference.py            write the pages
tools/reference.py --check    exit 1 and name the pages that differ from what the code says
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import inspect as types

from isthmus import config, metrics

ROOT: Final = Path(__file__).resolve().parent.parent
GENERATED: Final = "<!-- Written by tools/reference.py; `make reference` writes it again. -->"

NOT_OURS: Final = {"apiVersion", "kind", "metadata"}
"""Fields that every object has."""


def configuration() -> str:
    """Return the page of all options, a section of the page for each section of the file."""
    lines = [
        "# Configuration",
        GENERATED,
        "",
        "Every process reads one TOML file (`--config`), then environment variables, then `--set` flags; the later",
        "wins. The option `pin` of the section `[datapath]` is `ISTHMUS_DATAPATH_PIN` in the environment and",
        "`--set datapath.pin=…` on the command line. Lists are separated by commas there. An unknown section or",
        "option, or a value of the wrong type, ends the process with one line that names it.",
    ]
    for field in msgspec.structs.fields(config.Config):
        section = field.type
        lines += ["", f"## [{field.name}]", "", _plain(inspect.getdoc(section) or ""), ""]
        lines += ["| option | type | default | meaning |", "|---|---|---|---|"]
        descriptions = attribute_docstrings(section)
        for option in msgspec.structs.fields(section):
            cells = (_type(option.type), _value(option.default), _plain(descriptions[option.name]))
            lines.append(f"| `{option.name}` | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def attribute_docstrings(struct: type) -> dict[str, str]:
    """Return the docstring below each annotated attribute of a class, empty for an attribute without one."""
    [definition] = ast.parse(inspect.getsource(struct)).body
    assert isinstance(definition, ast.ClassDef)
    docstrings = {
        node.target.id: ""
        for node in definition.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node, following in zip(definition.body, definition.body[1:], strict=False):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(following, ast.Expr):
            docstrings[node.target.id] = ast.literal_eval(following.value)
    return docstrings


def api() -> str:
    """Return the page of our own resources, from the definitions in deploy/crds."""
    definitions = [yaml.safe_load(path.read_text()) for path in sorted((ROOT / "deploy/crds").glob("*.yaml"))]
    own = [each for each in definitions if each["spec"]["group"] == "isthmus.io"]
    lines = [
        "# API reference",
        GENERATED,
        "",
        "The resources of the group `isthmus.io`. ServiceExport and ServiceImport are those of the",
        "[Multi-Cluster Services API](mcs.md); supported fields of Gateway API routes are in [proxy.md](proxy.md).",
    ]
    for definition in own:
        spec = definition["spec"]
        for version in spec["versions"]:
            lines += _resource(spec, version)
    return "\n".join(lines) + "\n"


def _resource(spec: Mapping[str, Any], version: Mapping[str, Any]) -> Iterator[str]:
    names, schema = spec["names"], version["schema"]["openAPIV3Schema"]
    yield from ("", f"## {names['kind']}", "", f"`{spec['group']}/{version['name']}`, {spec['scope'].lower()}", "")
    if short := names.get("shortNames"):
        yield from (f"Short name: `{', '.join(short)}`.", "")
    if description := schema.get("description"):
        yield from (_plain(description), "")
    yield from ("| field | type | meaning |", "|---|---|---|")
    for part, described in schema["properties"].items():
        if part not in NOT_OURS:
            yield from _fields({"properties": {part: described}}, "")
    rules = list(_rules(schema, ""))
    if rules:
        yield from ("", "Rules that the API server checks:", "")
        yield from (f"- {rule}" for rule in rules)


def _fields(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    required = set(schema.get("required", ()))
    for name, described in schema.get("properties", {}).items():
        where = f"{path}.{name}".lstrip(".")
        notes = [_plain(described.get("description", ""))]
        notes += [f"Default `{json.dumps(described['default'])}`."] if "default" in described else []
        notes += ["Required."] if name in required else []
        kind, inner = _schema_type(described)
        if notes != [""] or inner is None:
            yield f"| `{where}` | {kind} | {' '.join(filter(None, notes))} |"
        if inner is not None:
            yield from _fields(inner, where + ("[]" if described.get("type") == "array" else ""))


def _schema_type(schema: Mapping[str, Any]) -> tuple[str, Mapping[str, Any] | None]:
    """Return a field's type in words, and the schema of the fields inside it if it has some."""
    if "enum" in schema:
        return " or ".join(f"`{word}`" for word in schema["enum"]), None
    if schema.get("type") == "array":
        inner, fields = _schema_type(schema["items"])
        bound = f", at most {schema['maxItems']}" if "maxItems" in schema else ""
        return f"list of {inner}{bound}", fields
    if isinstance(schema.get("additionalProperties"), dict):
        return f"map of {_schema_type(schema['additionalProperties'])[0]}", None
    kind = schema.get("format") or schema.get("type") or "int or string"
    bounds = [schema.get("minimum"), schema.get("maximum")]
    if any(bound is not None for bound in bounds):
        low, high = ("" if bound is None else str(bound) for bound in bounds)
        kind += f" {low}–{high}"
    return kind, schema if schema.get("properties") else None


def _rules(schema: Mapping[str, Any], path: str) -> Iterator[str]:
    for rule in schema.get("x-kubernetes-validations", ()):
        yield f"`{path or '.'}`: {rule.get('message') or rule['rule']}"
    for name, inner in schema.get("properties", {}).items():
        yield from _rules(inner, f"{path}.{name}".lstrip("."))
    if isinstance(schema.get("items"), dict):
        yield from _rules(schema["items"], f"{path}[]")


def metrics_page() -> str:
    """Return the page of all metrics: those of every process first, then those of some."""
    lines = [
        "# Metrics",
        GENERATED,
        "",
        "Every process with `monitor.listen` serves `/metrics` in Prometheus' text format",
        "([ports](install.md#health-and-metrics)).",
        "`PROCESS` in a name is one of the processes in its row. Each process also has Prometheus' own",
        "`process_*` (memory, CPU, descriptors). Labels name imports, not the derived Services that carry them;",
        f"at most {metrics.SERIES:,} services, exports or imports have series of their own, in fair shares of",
        f"namespaces; the rest share the service `{metrics.OTHER}`. Counters begin with 0 when a process",
        "starts, except those that the kernel keeps (`calls`, `bytes`, `dns_questions`), which outlive an agent.",
        "",
        "Rules to page on are in `deploy/monitoring/rules.yaml`: each alert has the command that finds the cause, and",
        "a link into [troubleshooting](troubleshooting.md#alerts). Grafana's dashboards of the clusterset and of",
        "nodes are beside it.",
        "",
        "| metric | type | labels | processes | meaning |",
        "|---|---|---|---|---|",
    ]
    for each in metrics.ALL:
        processes = ", ".join(each.processes)
        name = each.exposed(each.processes[0])
        if len(each.processes) > 1:
            name = name.replace(f"isthmus_{each.processes[0]}_", "isthmus_PROCESS_")
        labels = ", ".join(f"`{label}`" for label in each.labels)
        lines.append(f"| `{name}` | {each.kind} | {labels} | {processes} | {each.help} |")
    return "\n".join(lines) + "\n"


def _type(annotation: Any) -> str:
    """Return the type of an option in words."""
    described = types.type_info(annotation)
    if isinstance(described, types.VarTupleType):
        item = _type_of(described.item_type)
        return f"list of {item}" if item.startswith("`") else f"list of {item}s"
    return _type_of(described)


def _type_of(described: types.Type) -> str:
    match described:
        case types.Metadata(type=inner):
            return _type_of(inner)
        case types.LiteralType(values=values):
            return " or ".join(f"`{word}`" for word in values)
        case types.UnionType(types=several):
            return " or ".join(map(_type_of, several))
        case types.BoolType():
            return "bool"
        case types.IntType(ge=low, le=high) | types.FloatType(ge=low, le=high):
            kind = "int" if isinstance(described, types.IntType) else "float"
            if high is not None:
                return f"{kind} {low or 0}–{high}"
            return kind
        case _:
            return "string"


def _value(value: Any) -> str:
    return f"`{msgspec.json.encode(value).decode()}`"


def _plain(text: str) -> str:
    """Return reStructuredText of a docstring as one line of Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", " ".join(text.split()))


PAGES: Final = {"docs/configuration.md": configuration, "docs/api.md": api, "docs/metrics.md": metrics_page}


def main(arguments: Iterable[str]) -> int:
    """Write or check the pages. The exit code is 1 if a checked page differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a page differs")
    check = parser.parse_args([*arguments]).check
    different = [name for name, page in PAGES.items() if _read(ROOT / name) != page()]
    if check:
        for name in different:
            print(f"{name}: differs from the code; write it again by `make reference`", file=sys.stderr)
        return 1 if different else 0
    for name in different:
        (ROOT / name).write_text(PAGES[name]())
        print(f"wrote {name}")
    return 0


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
