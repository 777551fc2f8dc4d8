"""What goes wrong with the datapath as a whole; what goes wrong with one plan is a string of its own."""

from __future__ import annotations


class DatapathError(Exception):
    """The datapath cannot be used; the message names what is missing and the remedy."""
