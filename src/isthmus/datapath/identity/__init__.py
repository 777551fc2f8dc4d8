"""Signed SYNs: codecs and manifest of their maps, and the targets that write identities, keys and guarded ports.

Who may call whom, and which keys are valid, is decided elsewhere (docs/decisions/caller-identity.md).
"""

from __future__ import annotations

from isthmus.datapath.identity.target import IdentityTarget

__all__ = ["IdentityTarget"]
