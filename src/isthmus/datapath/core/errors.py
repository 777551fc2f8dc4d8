"""Errors of the datapath as a whole; errors of a single plan are strings."""

from __future__ import annotations


class DatapathError(Exception):
    """The datapath cannot be used; the message names what is missing and the remedy."""
