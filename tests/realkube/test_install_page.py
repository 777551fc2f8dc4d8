"""What ``docs/install.md`` says is there: commands with their options, files, settings."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import click
import msgspec
import pytest
import yaml

from isthmus.cli import root
from isthmus.clusterset.links import link_secrets
from isthmus.config import Config

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "install.md").read_text()
JOINED = PAGE.replace("\\\n", " ")
COMMANDS = sorted(
    set(
        re.findall(
            rf"(?:^ +|-- +|`)(isthmus (?:{'|'.join(root.list_commands(click.Context(root)))})\b[^`\n…]*)",
            JOINED,
            re.MULTILINE,
        )
    )
)


@pytest.mark.parametrize("line", COMMANDS)
def test_its_commands_exist_with_their_options(line: str) -> None:
    _, *words = shlex.split(line)
    command: click.Command = root
    while isinstance(command, click.Group):
        found = command.get_command(click.Context(command), words.pop(0))
        assert found is not None, line
        command = found
    known = {option for each in command.params for option in each.opts}
    assert {word for word in words if word.startswith("-")} <= known


def test_it_has_commands() -> None:
    assert len(COMMANDS) > 5


def test_its_configuration_is_one() -> None:
    blocks = re.findall(r"    # c1/operator.toml\n((?:(?:    .*)?\n)+)", PAGE)
    first, mirrored = (
        msgspec.convert(tomllib.loads(re.sub("^    ", "", block, flags=re.MULTILINE)), Config) for block in blocks
    )
    assert (first.cluster.name, first.clusterset.directory) == ("c1", "c1/peers")
    assert (mirrored.clusterset.directory, mirrored.clusterset.mirrored) == ("c1/peers", "c1/mirrored")


def test_the_variables_it_explains_are_those_of_the_files() -> None:
    files = [ROOT / "deploy" / name for name in ("cluster.env", "islands/islands.env")]
    lines = [line for file in files for line in file.read_text().splitlines()]
    assert set(re.findall(r"^\| `(ISTHMUS_\w+)`", PAGE, re.MULTILINE)) == {
        line.partition("=")[0] for line in lines if line.startswith("ISTHMUS_")
    }


def test_the_secrets_it_makes_are_those_that_are_mounted_or_followed() -> None:
    mounted = set()
    for file in (ROOT / "deploy").glob("*/*.yaml"):
        for each in yaml.safe_load_all(file.read_text()):
            pod = (each.get("spec") or {}).get("template", {}).get("spec", {})
            mounted |= {v["secret"]["secretName"] for v in pod.get("volumes", ()) if "secret" in v}
    for file in (ROOT / "deploy" / "config").glob("*.toml"):
        mounted.add(tomllib.loads(file.read_text()).get("clusterset", {}).get("secret"))
    mounted |= {link_secrets.MIRRORED}  # by those who want a mirror
    mounted.discard(None)
    assert set(re.findall(r"secret generic (\S+)", PAGE)) == mounted


def test_every_file_it_names_is_there() -> None:
    for name in set(re.findall(r"`((?:deploy|tests)/[\w./-]+)`", PAGE)):
        assert (ROOT / name).exists(), name


def test_the_image_is_made_of_what_is_there() -> None:
    lines = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert copied
    for name in copied:
        assert (ROOT / name).exists(), name
        assert name.rstrip("/") not in ignored, name
