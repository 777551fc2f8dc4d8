"""The decoding boundary, checked: outside of isthmus.bounds nothing calls what fails on, or misreads, a hostile value.

Refused are references to the conversions in REFUSED, calls of those in PARSERS with anything but constants, and imports
of ``re``. A module whose input is the kernel, our own configuration or our own processes may be listed in EXEMPT, with
the names that it uses and the reason; an entry that is no longer needed is refused as well.

    boundary.py [FILE…]     all of our packages without arguments
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).resolve().parent.parent
SOURCES: Final = ("src/isthmus", "lab/isthmus_lab/apiserver")

PARSERS: Final = frozenset(
    {
        *("int", "float", "timedelta", "Decimal"),
        *("IPv4Address", "IPv6Address", "IPv4Network", "IPv6Network", "IPv4Interface", "IPv6Interface"),
    }
)
"""Types that parse what they are called with. With constants they cannot fail; as annotations they parse nothing."""
REFUSED: Final = frozenset(
    {
        *("fromisoformat", "fromtimestamp", "utcfromtimestamp", "strptime", "strftime"),
        *("ip_address", "ip_network", "ip_interface", "inet_pton", "inet_aton"),
        *("isdigit", "isdecimal", "isnumeric", "literal_eval"),
    }
)
APPLYING: Final = frozenset({"map", "starmap", "partial", "filter"})
"""Functions that call their first argument."""


class Exemption(NamedTuple):
    """Names that a module may use, and why."""

    names: frozenset[str]
    reason: str


def _exempt(names: str, reason: str) -> Exemption:
    return Exemption(frozenset(names.split()), reason)


EXEMPT: Final[dict[str, Exemption]] = {
    "isthmus/bounds.py": _exempt(
        "re int float timedelta fromisoformat ip_address ip_network IPv4Network inet_pton isdigit", "it is the boundary"
    ),
    "isthmus/expressions.py": _exempt("re", "patterns are constants, and match at most 1,024 characters"),
    "isthmus/admin/machine.py": _exempt("int isdecimal", "files of /proc and sysctls"),
    "isthmus/datapath/core/libbpf.py": _exempt("int", "pointers, sizes and numbers that libbpf returned, by ctypes"),
    "isthmus/datapath/core/tc.py": _exempt("int", "indices and results of the kernel"),
    "isthmus/datapath/core/namespaces.py": _exempt("int", "/proc/PID/stat, and a cgroup's list of processes"),
    "isthmus/datapath/core/requirements.py": _exempt("re int", "/proc/self/status, and the kernel's release"),
    "isthmus/datapath/core/shapes.py": _exempt("inet_pton", "addresses of rows, decoded when they became rows"),
    "isthmus/datapath/services/callers.py": _exempt("re", "/proc/PID/net/fib_trie"),
    "isthmus/dns/upstream.py": _exempt("int", "/proc/sys/net/ipv4/ip_local_port_range"),
    "isthmus/proxy/steering.py": _exempt("re int", "/proc/PID/fd"),
    "isthmus/host_user.py": _exempt("int", "/proc/self/uid_map, and a variable that the lab sets for its processes"),
    "isthmus/protos.py": _exempt("int", "tables of field numbers in our own modules"),
    "isthmus/cli/flows.py": _exempt("strptime", "an option, which is refused where it is none"),
    "isthmus/cli/install.py": _exempt("int", "an option, and a number that the plan has checked"),
    "isthmus/installation/plan.py": _exempt("re int isdecimal", "options, contexts, and versions of the cluster"),
    "isthmus/installation/progress.py": _exempt("int", "numbers of workloads, which the API server has validated"),
    "isthmus/installation/reading.py": _exempt(
        "re int ip_network", "objects of the cluster's own components, read once by a command of an administrator"
    ),
    "isthmus/installation/upgrading.py": _exempt("re int", "three numbers of at most six digits, in an image's tag"),
    "isthmus/installation/rendering.py": _exempt("int", "paths in our own manifests"),
    "isthmus/datapath/core/pods_cgroup.py": _exempt("re", "/proc/self/cgroup and names of cgroups"),
    "isthmus/cli/verification/programs/call.py": _exempt("float", "arguments of the command that starts it"),
    "isthmus_lab/apiserver/cel.py": _exempt(
        "re int float", "rules of definitions of kinds, which administrators write"
    ),
    "isthmus_lab/apiserver/jsonpath.py": _exempt(
        "re", "constant patterns on printer columns, which administrators write"
    ),
    "isthmus_lab/apiserver/openapi.py": _exempt("re", "patterns of definitions of kinds, which administrators write"),
    "isthmus_lab/apiserver/selectors.py": _exempt("re", "constant patterns on a request's line, of 8 KiB at most"),
    "isthmus_lab/apiserver/validation.py": _exempt("re", "constant patterns on names whose length was judged before"),
}


class Offence(NamedTuple):
    """A name that is refused, and where."""

    line: int
    name: str


def offences(source: str) -> Iterator[Offence]:
    """What is refused in a module's text, in the order of its lines."""
    found = {each for node in ast.walk(ast.parse(source)) for each in _of(node)}
    yield from sorted(found)


def _of(node: ast.AST) -> Iterator[Offence]:
    match node:
        case ast.Import(names=names):
            yield from (Offence(node.lineno, "re") for each in names if each.name == "re")
        case ast.ImportFrom(module="re"):
            yield Offence(node.lineno, "re")
        case ast.ImportFrom(names=names):
            yield from (Offence(node.lineno, each.name) for each in names if each.name in REFUSED and each.asname)
        case ast.Call(func=func):
            applied = node.args[:1] if _name(func) in APPLYING else []
            keys = [each.value for each in node.keywords if each.arg == "key"]
            yield from (Offence(each.lineno, _name(each)) for each in (*applied, *keys) if _name(each) in PARSERS)
            if _name(func) in PARSERS and not _constant(node):
                yield Offence(node.lineno, _name(func))
        case ast.Attribute(value=ast.Name("time"), attr="strftime"):
            pass  # of this machine's clock
        case ast.Attribute(attr=name) | ast.Name(id=name) if name in REFUSED:
            yield Offence(node.lineno, name)


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _constant(call: ast.Call) -> bool:
    values = [*call.args, *(each.value for each in call.keywords)]
    return all(isinstance(each, ast.Constant) for value in values for each in _leaves(value))


def _leaves(node: ast.expr) -> Iterator[ast.expr]:
    """The operands of an expression of constants: ``-1``, ``2 * 60``."""
    match node:
        case ast.UnaryOp(operand=operand):
            yield from _leaves(operand)
        case ast.BinOp(left=left, right=right):
            yield from _leaves(left)
            yield from _leaves(right)
        case _:
            yield node


def problems(path: Path, exempt: Exemption | None) -> Iterator[str]:
    """A line for each offence of a file, and for each name that its exemption has and the file does not use."""
    names = exempt.names if exempt is not None else frozenset()
    found = list(offences(path.read_text()))
    for line, name in found:
        if name not in names:
            yield f"{path}:{line}: {name}: decode by isthmus.bounds, or list the module in {Path(__file__).name}"
    for name in sorted(names - {each.name for each in found}):
        yield f"{path}: {name} is exempt and not used: take it out of EXEMPT in {Path(__file__).name}"


def main(files: list[str]) -> int:
    """1 if anything is refused."""
    paths = [Path(each) for each in files] or sorted(path for each in SOURCES for path in (ROOT / each).rglob("*.py"))
    roots = [ROOT / "src", ROOT / "lab"]
    keys = {
        path: next((str(path.relative_to(root)) for root in roots if path.is_relative_to(root)), "") for path in paths
    }
    missing = (
        [] if files else [f"{key}: exempt, and there is no such file" for key in EXEMPT.keys() - set(keys.values())]
    )
    lines = [*missing, *(line for path in paths for line in problems(path, EXEMPT.get(keys[path])))]
    print(*lines, sep="\n", end="\n" if lines else "")
    return min(1, len(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
