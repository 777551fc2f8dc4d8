"""Signed SYNs: codecs and manifest of their maps, and the targets that write identities, keys and guarded ports.

Allowed callers and valid keys are decided elsewhere (docs/decisions/caller-identity.md).
"""

from __future__ import annotations

from isthmus.datapath.identity.target import IdentityTarget

__all__ = ["IdentityTarget"]
