"""The clusterset's zone as bytes: what the node's server and the kernel's program both answer with.

What belongs here: messages of the ordinary kind, prepared records, which names exist. What never does: sockets, maps,
anything that waits; questions that are unusual (``isthmus.dns.unusual``).

    codec.py    messages and records, on the hot path
    zone.py     rows of names → answers
"""

from isthmus.zone import codec
from isthmus.zone.zone import Zone

__all__ = ["Zone", "codec"]
