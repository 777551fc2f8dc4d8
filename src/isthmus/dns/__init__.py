"""The clusterset's names: which there are, and the node's server that answers for them.

What belongs here: names as pure functions of rows, the server. What never does: where rows come from, the messages that
the kernel's program answers with too (``isthmus.zone``), how pods find the server.

    names.py      imports, backends, namespaces → names
    unusual.py     unusual questions, by dnspython
    respond.py    one packet → its reply, or that it is to be forwarded
    intake.py     received questions, a bounded queue for each caller
    callers.py    which namespace a caller is of
    dialing.py    sockets for questions to the cluster DNS
    upstream.py   forwarding to the cluster DNS over UDP
    stream.py     DNS over TCP
    probe.py      whether the cluster DNS knows our zone
    sharing.py    whether another process serves the addresses
    server.py     the sockets, and all of it together
"""

from isthmus.dns.names import More, PeersPatience, derived
from isthmus.dns.probe import knows_zone
from isthmus.dns.server import CannotListen, Server, ServerStats
from isthmus.dns.sharing import is_served

__all__ = ["CannotListen", "More", "PeersPatience", "Server", "ServerStats", "derived", "is_served", "knows_zone"]
