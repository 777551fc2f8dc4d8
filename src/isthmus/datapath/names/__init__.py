"""Names answered in the kernel: rows of ``names`` → map entries, with the bytes that the node's server would send.

What belongs here: what the program in bpf/names.h reads and counts. What never does: which names there are
(``isthmus.dns.names``), what their records look like as bytes (``isthmus.zone``).

    codecs.py      the structs of the maps
    entries.py     a zone → the entries of a name; pure
    settings.py    the zone's own entry: its names, its deadline, who is asked
    target.py      what the reconciler of names drives
    counters.py    questions by kind and result
    manifest.py    the maps and programs
"""

from isthmus.datapath.names.target import NamesTarget

__all__ = ["NamesTarget"]
