"""Network namespaces of tests, by iproute2 alone: a bare Debian has no ``sysctl`` program."""

from __future__ import annotations

import subprocess


def ip(*arguments: str) -> None:
    """The ip command; an error fails the test."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def switch_on(namespace: str, *settings: str) -> None:
    """Write 1 to settings of a namespace, each a path below /proc/sys."""
    for setting in settings:
        ip("netns", "exec", namespace, "sh", "-c", f"echo 1 >/proc/sys/{setting}")
