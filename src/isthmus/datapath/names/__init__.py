"""Names answered in the kernel: rows of ``names`` → map entries, with the bytes that the node's server would send.

What belongs here: the maps and counters of the program in bpf/names.h. What never does: which names exist
(``isthmus.dns.names``), and the encoding of their records (``isthmus.zone``).

    codecs.py      the structs of the maps
    entries.py     a zone → the entries of a name; pure
    settings.py    the zone's own entry: its names, its deadline, its servers
    target.py      the target of the reconciler of names
    counters.py    questions by kind and result
    manifest.py    the maps and programs
"""

from isthmus.datapath.names.target import NamesTarget

__all__ = ["NamesTarget"]
