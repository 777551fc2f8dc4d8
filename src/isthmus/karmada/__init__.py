"""A Karmada control plane whose members are joined into a clusterset, without a kubeconfig of any of them.

What belongs here: members from Karmada's objects, their keys, the Works that carry these to them, drains from
evictions, and the loop that keeps all of it so. What never does: what a member does with what it gets (``clusterset``,
``processes``), and Karmada's objects in a member (``sources``).

    members.py    Clusters and the placement of our etcd → the members of the clusterset; pure
    keyring.py    the keys of a member, kept in a Secret of the control plane
    works.py      members and their keys → the Works that each gets; pure
    evictions.py  what Karmada moves away → drains in the members that it leaves; pure
    control.py    the loop: reads, decides, writes
    access.py     in a member: users of its etcd, by the keys that it was given
"""

from isthmus.karmada.access import Granting
from isthmus.karmada.control import Control, Report
from isthmus.karmada.members import Member

__all__ = ["Control", "Granting", "Member", "Report"]
