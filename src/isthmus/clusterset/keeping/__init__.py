"""Keys that live in the cluster: the folder of :mod:`isthmus.clusterset.pki` as a Secret, and what follows from it.

The Secret ``isthmus-keys`` is the truth; the folder is a copy of it in memory. A change is written there first and used
afterwards, so that a process that dies in between leaves nothing in use that is not kept.

hosts         names and addresses under which the Services of the own etcd are reached; pure
shares        which files each role's Secret has; pure
vault         the Secrets in the API server
rotation      steps of a rotation of the authority, and what each waits for; pure
rotating      the evidence for them, the restart of the own etcd, and the ConfigMap of requests
maintenance   compaction and defragmentation of the own etcd
answers       requests to an issuer, and judgement of its answers; pure
issuing       those requests as objects in the API server
roles         pairs of the folder by an issuer
keeper        the loops: keys, users of the own etcd, and its upkeep
"""

from isthmus.clusterset.keeping.answers import SigningRequest
from isthmus.clusterset.keeping.issuing import Issuer
from isthmus.clusterset.keeping.keeper import Keeper
from isthmus.clusterset.keeping.rotating import AUTHORITY_ROTATION, REQUESTED
from isthmus.clusterset.keeping.rotation import Reader, Step

__all__ = ["AUTHORITY_ROTATION", "REQUESTED", "Issuer", "Keeper", "Reader", "SigningRequest", "Step"]
