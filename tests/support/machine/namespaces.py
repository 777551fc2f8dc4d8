"""Network namespaces of tests, by iproute2 alone: a bare Debian has no ``sysctl`` program."""

from __future__ import annotations

import subprocess


def ip(*arguments: str) -> None:
    """The ip command; an error fails the test."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True)


def put(namespace: str, setting: str, value: int) -> None:
    """Write a setting of a namespace, a path below /proc/sys."""
    ip("netns", "exec", namespace, "sh", "-c", f"echo {value} >/proc/sys/{setting}")


def switch_on(namespace: str, *settings: str) -> None:
    """Write 1 to settings of a namespace, each a path below /proc/sys."""
    for setting in settings:
        put(namespace, setting, 1)
