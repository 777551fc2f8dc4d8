"""Endpoints of a world: some that answer, one that refuses and one that is silent, in each family."""

from __future__ import annotations

VIP, VIP6 = "10.96.7.7", "fd00:96::7"
GOOD = ("10.8.1.1:8080", "10.8.1.2:8080")
GOOD6 = ("[fd00:8::11]:8080", "[fd00:8::12]:8080")
REFUSES, REFUSES6 = "10.8.1.9:8080", "[fd00:8::19]:8080"
NO_ROUTE_HERE = "192.0.2.9:8080"
"""The client has routes to 10/8 alone."""
SILENT, SILENT6 = "10.9.0.9:8080", "[fd00:9::9]:8080"


def host(endpoint: str) -> str:
    """The address of an endpoint."""
    return endpoint.rpartition(":")[0].strip("[]")
