"""Connects that fail: backends are ejected and tried again by the kernel; the agent shows it and tidies up.

What belongs here: everything about outcomes of connects. What never does: removing a backend from a plan, or it could
never be tried again.

    codecs.py    structs of the kernel's state and of its events
    manifest.py  which maps and programs there are
    rows.py      the kernel's state → rows of the table of failures (pure)
    places.py    frees places in call_places of sockets that ended unseen
    watch.py     keeps that table, and deletes entries without effect
"""
