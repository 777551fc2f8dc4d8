"""Expressions of routes that real Envoys take, small and large."""

from __future__ import annotations

from typing import Final

TAKEN: Final = (
    "/[a-z0-9-]{1,63}/x",
    "/(a{30}){30}",
    "/[^/]{50}",
    "/.{70}",
    "/\\w{200}",
    "(?i:abcdefghij){50}",
    "/é{200}",
    "/(?:[^/]+/){15}x",
    "/\\d{1,190}",
    "/\\$\\{x\\}{3}",
    "(?P<n>a){3}",
    "/[]a]{3}",
    "/[[a]",
    ".*\\\\+x",
    "\\++",
    "[a]\\b",
    "(a|b|)*",
    "\\\\Z",
)
