"""What the kernel has by raw netlink: interfaces and routes (``rtnetlink``), and sockets (``sock_diag``).

A dump of a thousand interfaces is one call and takes milliseconds, so it is made where it is wanted, without a task.
"""
