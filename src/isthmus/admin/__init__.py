"""The local unix socket of a process: follow any table, status."""
