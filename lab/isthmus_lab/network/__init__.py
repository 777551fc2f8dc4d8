"""Network namespaces and the wires between them.

The fabric is a router: every control plane and node has one cable to it, with host addresses and routes only, so that
what reaches what is decided in one place. It has no default route. Nothing here ever acts in the host's namespace.


Its modules are imported one by one: of the commands that use some, few need netlink, which is slow to import.
"""
