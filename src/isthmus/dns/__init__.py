"""The clusterset's names: which there are, and the node's server that answers for them.

What belongs here: names as pure functions of rows, the wire format, the server. What never does: where rows come from,
the kernel's answers (datapath), how pods find the server.

    names.py      imports, backends, namespaces → names
    codec.py      messages as bytes: the hot path
    cold.py       everything unusual, by dnspython
    zone.py       names → answers ready to be sent
    respond.py    one packet in, one verdict out
    upstream.py   what is not ours, passed on over UDP
    stream.py     DNS over TCP
    server.py     the sockets, and all of it together
"""

from isthmus.dns.names import derived
from isthmus.dns.server import CannotListen, Server

__all__ = ["CannotListen", "Server", "derived"]
