"""nftables in a namespace."""

from __future__ import annotations

import subprocess

from isthmus_lab import kernel
from isthmus_lab.network import namespaces


def nft(namespace: str, rules: str) -> None:
    """One transaction; OSError where nft refuses it."""
    _run(namespace, "-f", "-", stdin=rules)


def listed(namespace: str) -> str:
    """All rules, as nft writes them."""
    return _run(namespace, "list", "ruleset")


def _run(namespace: str, *words: str, stdin: str = "") -> str:
    with namespaces.path(namespace).open() as target:
        done = subprocess.run(
            ["nft", *words],
            input=stdin.encode(),
            capture_output=True,
            check=False,
            preexec_fn=lambda: kernel.setns(target.fileno(), kernel.CLONE_NEWNET),
        )
    if done.returncode:
        raise OSError(0, f"nft: {done.stderr.decode(errors='replace').strip()}")
    return done.stdout.decode()
