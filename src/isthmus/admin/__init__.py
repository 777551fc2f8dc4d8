"""The process's local socket: list and follow any of its tables, ask how it does.

What belongs here: the HTTP server on a unix socket, its wire format, and the two clients, one for the reflector of
another process (``client``), one for people and scripts (``query``). What never does: what any table means.

    GET /v1/tables                       names and numbers of the tables
    GET /v1/tables/<name>[?wait=S]       every row, once the table is complete or S seconds have passed
    GET /v1/tables/<name>?watch=1        the same as a first line, then changes, a line of JSON each
    GET /v1/watch?table=A&table=B        several tables on one connection, each line with the name of its table
    GET /v1/counters/<name>              what is measured when it is asked for: a list of objects
    GET /v1/feeds/<name>[?last=N]        the newest N of what happened, and what was lost of it; one line
    GET /v1/feeds/<name>?follow=1        the same, then what happens, a line of JSON for each batch
    GET /v1/status                       what the process has and what it has not got
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.admin.server import Server as Server

__all__ = ["Server"]


def __getattr__(name: str) -> Any:
    """The server on demand: a command that only asks does not pay for the import of a web server."""
    if name == "Server":
        from isthmus.admin.server import Server

        return Server
    raise AttributeError(f"module 'isthmus.admin' has no attribute '{name}'")
