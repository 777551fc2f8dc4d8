"""The errors of this package."""


class StateError(Exception):
    """A table is declared twice, is not in the database, or a transaction is used after its end."""


class Overrun(Exception):  # noqa: N818 an event for the reader, no error of the database
    """A bounded reader exceeded its limit and has dropped its changes: start again with a new reader."""
