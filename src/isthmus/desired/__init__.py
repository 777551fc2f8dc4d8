"""Objects that Isthmus writes into its own API server: one encoder, one comparison, one writer for every kind.

What belongs here: drafts → rows of desired objects, what the server has to change to hold them, and the target that
writes them by server-side apply. What never does: what is wanted of which kind (``mcs`` and others decide that).

    ownership.py    what of a kind is ours, and how our objects are recognised
    difference.py   wanted and found → the merge patch between them; pure
    parents.py      the status of routes, which several controllers share; pure
    drafts.py       a draft of an object → its row
    contention.py   how often an object that another writer keeps changing is set right
    known.py        objects as the server last answered them
    requests.py     the requests for one object: server-side apply, patch, delete
    writer.py       writes rows: in what order, what is done already, what is set right
"""

from isthmus.desired.drafts import Condition, Draft, condition, observed_generation, row
from isthmus.desired.ownership import MANAGED_BY, MANAGER, Ownership, is_our_row, is_ours
from isthmus.desired.writer import ApiTarget, TargetStats

__all__ = [
    "MANAGED_BY",
    "MANAGER",
    "ApiTarget",
    "Condition",
    "Draft",
    "Ownership",
    "TargetStats",
    "condition",
    "is_our_row",
    "is_ours",
    "observed_generation",
    "row",
]
