"""Raw netlink: interfaces and routes (``rtnetlink``), and sockets (``sock_diag``).

A dump of a thousand interfaces is one call and takes milliseconds, so callers make it directly, without a task.
"""
