"""Make the descriptors by which the lab's API server reads protobuf, from the Go modules that Kubernetes publishes.

    make kube-protos        needs Go, and protoc out of grpcio-tools from PyPI, which it installs into .cache

A ``generated.proto`` does not have all that JSON needs, so three facts of the Go types beside it (``types.go``) are
put where descriptors have a place for them:

- the name in JSON (``json_name``); it is empty where Go embeds a struct, whose fields JSON has one level up;
- whether JSON leaves a scalar out when it is zero (``field_presence``): Go writes every scalar that is no pointer, zero
  or not, and a tag with ``omitempty`` keeps a zero out of JSON.

Comments are left out. The modules are those pinned in tests/kubetools/kubernetes; they are under the Apache License
2.0, as this repository is.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor_pb2 import FeatureSet, FieldDescriptorProto, FileDescriptorProto

ROOT = Path(__file__).resolve().parent.parent
PINS = ROOT / "tests" / "kubetools" / "kubernetes"
TARGET = ROOT / "lab" / "isthmus_lab" / "apiserver" / "kubernetes.binpb"
MODULES = ("k8s.io/api", "k8s.io/apimachinery", "k8s.io/apiextensions-apiserver")
PACKAGES = (
    *(
        f"k8s.io/api/{package}"
        for package in (
            "apps/v1",
            "authentication/v1",
            "autoscaling/v1",
            "autoscaling/v2",
            "batch/v1",
            "coordination/v1",
            "core/v1",
            "discovery/v1",
            "events/v1",
            "networking/v1",
            "policy/v1",
            "rbac/v1",
            "scheduling/v1",
            "storage/v1",
        )
    ),
    "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1",
)

Presence = FeatureSet.FieldPresence
SCALARS = set(FieldDescriptorProto.Type.values()) - {FieldDescriptorProto.TYPE_MESSAGE}


class GoField(NamedTuple):
    """What Go's struct tags have of a field."""

    json: str
    zero_is_left_out: bool


_STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
_FIELD = re.compile(r"^\t(?:(\w+)\s+)?(\*?)([\w.\[\]*]+)\s+`json:\"([^\"]*)\"\s.*?protobuf:\"([^\"]*)\"", re.MULTILINE)


def go_fields(package: Path) -> dict[tuple[str, str], GoField]:
    """The fields of a package's structs, by struct and name in the .proto."""
    found = {}
    for source in sorted(package.glob("*.go")):
        for struct, body in _STRUCT.findall(source.read_text()):
            for _, pointer, kind, tag, proto in _FIELD.findall(body):
                named = re.search(r"\bname=(\w+)", proto)
                embedded = kind.rpartition(".")[2]
                name = named[1] if named else embedded[:1].lower() + embedded[1:]
                shown, *options = tag.split(",")
                found[struct, name] = GoField(
                    "" if "inline" in options else shown, not pointer and "omitempty" in options
                )
    return found


def modules() -> dict[str, Path]:
    """Where the pinned modules are on this machine."""
    command = ["go", "list", "-mod=readonly", "-m", "-f", "{{.Path}} {{.Dir}}", *MODULES]
    subprocess.run(["go", "mod", "download", *MODULES], cwd=PINS, check=True)
    listed = subprocess.run(command, cwd=PINS, check=True, capture_output=True, text=True).stdout
    return {path: Path(directory) for path, directory in (line.split() for line in listed.splitlines())}


def compiled(tree: Path) -> descriptor_pb2.FileDescriptorSet:
    """What protoc makes of the packages and all they import."""
    output = tree / "all.binpb"
    files = [f"{package}/generated.proto" for package in PACKAGES]
    flags = (f"-I{tree}", "--include_imports", f"--descriptor_set_out={output}")
    subprocess.run([sys.executable, "-m", "grpc_tools.protoc", *flags, *files], check=True)
    return descriptor_pb2.FileDescriptorSet.FromString(output.read_bytes())


def annotate(file: FileDescriptorProto, fields: dict[tuple[str, str], GoField]) -> list[str]:
    """Turn a proto2 file into the same of edition 2023, with what Go has of its fields; those Go has no tag for."""
    file.syntax = "editions"
    file.edition = descriptor_pb2.EDITION_2023
    file.ClearField("options")
    features = file.options.features
    features.field_presence = FeatureSet.EXPLICIT
    features.enum_type = FeatureSet.CLOSED
    features.repeated_field_encoding = FeatureSet.EXPANDED
    features.json_format = FeatureSet.LEGACY_BEST_EFFORT
    unknown = []
    for message in file.message_type:
        for field in message.field:
            said = fields.get((message.name, field.name))
            if said is None:
                unknown.append(f"{file.package}.{message.name}.{field.name}")
                field.json_name = field.name
                continue
            field.json_name = said.json
            single = field.label != FieldDescriptorProto.LABEL_REPEATED
            if single and field.type in SCALARS and said.zero_is_left_out:
                field.options.features.field_presence = FeatureSet.IMPLICIT
    return unknown


def main() -> None:
    """Write the set, and print what Go had no tag for."""
    found = modules()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        for path, directory in found.items():
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).symlink_to(directory)
        whole = compiled(tree)
        unknown = []
        for file in whole.file:
            unknown += annotate(file, go_fields((tree / file.name).parent))
    TARGET.write_bytes(whole.SerializeToString(deterministic=True))
    print(f"{TARGET.relative_to(ROOT)}: {len(whole.file)} files, {TARGET.stat().st_size} bytes; Go has no tag for:")
    print(*unknown, sep="\n")


if __name__ == "__main__":
    main()
