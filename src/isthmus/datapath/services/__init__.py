"""Plans → maps: what the calls of a frontend are spread over, as the kernel's side of it reads it.

What belongs here: everything that writes or reads the maps of plans. What never does: choosing backends.

    codecs.py     rows ↔ bytes of each map
    manifest.py   which maps and programs there are
    installed.py  what is in the maps, as objects
    restore.py    that, from the maps an earlier process left
    plans.py      a plan row → the changes that bring the maps there (pure)
    new_plans.py  the same for new plans, by batch
    rings.py      which backend each caller has, for consistent hashing
    callers.py    which pod a caller is, for that and for redirects that do not mean all
    target.py     the reconciler's target: carries changes out
    grace_queue.py what the grace period keeps
    audit.py      what is really in the maps against what should be
    views.py      what is in them, for people
"""
