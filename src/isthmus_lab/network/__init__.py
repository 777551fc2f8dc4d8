"""Network namespaces and the wires between them.

The fabric is a router: every control plane and node has one cable to it, with host addresses and routes only, so that
what reaches what is decided in one place. It has no default route. Nothing here ever acts in the host's namespace.
"""

from isthmus_lab.network import namespaces, pods
from isthmus_lab.network.fabric import build

__all__ = ["build", "namespaces", "pods"]
