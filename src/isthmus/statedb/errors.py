"""The one error of this package: the database is used in a way that cannot be meant."""


class StateError(Exception):
    """A table is declared twice, is not in the database, or a transaction is used after its end."""
