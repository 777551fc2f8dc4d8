"""What can be wrong with what a peer says, or with the file that says how to reach it."""


class RecordError(Exception):
    """A record of a peer cannot be used; the message says which field and why, for people."""


class PeerFileError(Exception):
    """A file of the configuration directory cannot be used; the message names file and field."""


class PkiError(Exception):
    """A key, certificate or password is missing or cannot be used; the message names the file."""


class JoinError(Exception):
    """Two clusters cannot be joined or parted; the message says why, and what to do."""
