"""nftables in a namespace."""

from __future__ import annotations

import subprocess

from isthmus_lab import kernel
from isthmus_lab.network import namespaces


def nft(namespace: str, rules: str) -> None:
    """One transaction; OSError where nft refuses it."""
    with namespaces.path(namespace).open() as there:
        done = subprocess.run(
            ["nft", "-f", "-"],
            input=rules.encode(),
            capture_output=True,
            check=False,
            preexec_fn=lambda: kernel.setns(there.fileno(), kernel.CLONE_NEWNET),
        )
    if done.returncode:
        raise OSError(0, f"nft: {done.stderr.decode(errors='replace').strip()}")
