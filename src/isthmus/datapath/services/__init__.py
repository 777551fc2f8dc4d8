"""Plans → maps: the groups of backends over which the kernel spreads the calls of a frontend.

What belongs here: everything that writes or reads the maps of plans. What never does: choosing backends.

    codecs.py      rows ↔ bytes of each map
    manifest.py    maps and programs
    installed.py   the content of the maps, as objects
    restore.py     builds these objects from the maps that an earlier process left
    plans.py       a plan row → the map entries that implement it (pure)
    new_plans.py   entries of many new plans, by batch
    rings.py       tables for consistent hashing
    callers.py     the pods of callers, for consistent hashing and for redirects with exceptions
    batch.py       a round: the entries of its plans by map, and what the maps hold after the writes (pure)
    target.py      the reconciler's target, which writes the entries
    grace_queue.py retired entries until the end of their grace period
    audit.py       compares the maps with the objects
    views.py       the content of the maps, for people
"""
