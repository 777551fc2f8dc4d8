"""The errors of this package."""


class StateError(Exception):
    """A table is declared twice, is not in the database, or a transaction is used after its end."""


class Overrun(Exception):  # noqa: N818 an event of its own, and no fault of the database
    """A bounded reader fell behind further than it may: what it missed is forgotten, start again with a new one."""
