"""What can be wrong with a peer's records, its file, keys, and with joining."""


class RecordError(Exception):
    """A record of a peer cannot be used; the message names the field and the reason."""


class PeerFileError(Exception):
    """A file of the configuration directory cannot be used; the message names file and field."""


class PkiError(Exception):
    """A key, certificate or password is missing or cannot be used; the message names the file."""


class JoinError(Exception):
    """Two clusters cannot be joined or parted; the message has the reason, and what to do."""
