"""A clusterset in one process and in virtual time: the unmodified operators of several clusters under faults.

What belongs here: the loop that owns time, doubles of what processes reach over sockets (API server, etcd, network),
what tenants do, invariants, and the shrinking of a failing run. What never does: code of Isthmus made simpler than it
is, or a double that is easier to live with than what it stands for. docs/simulator.md has what is modelled.

    python -m isthmus_sim run --seed 7        one story; a failure prints its events, shrunk
    python -m isthmus_sim replay CASE.txt     the story of a file
"""
