"""Failing connects: the kernel ejects backends and tries them again; the agent shows its state and cleans up.

What belongs here: everything about outcomes of connects. What never does: removing a backend from a plan, since it
could then never be tried again.

    codecs.py    structs of the kernel's state and of its events
    manifest.py  maps and programs
    rows.py      the kernel's state → rows of the table of failures (pure)
    places.py    frees places in call_places of sockets that ended unseen
    stalled.py   established connections that get no acknowledgment, at a request
    watch.py     maintains that table, and deletes entries without effect
"""
