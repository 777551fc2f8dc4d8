"""``python -m isthmus_lab.supervisor NAME [DESCRIPTOR…]``: started by ``lab up``, with listeners for API servers."""

from __future__ import annotations

import os
import socket
import sys

from isthmus import logs
from isthmus.running import until_told
from isthmus_lab import cgroups, record
from isthmus_lab.supervisor import sources, zygote
from isthmus_lab.supervisor.process import Supervisor

found = record.read(sys.argv[1])
loaded = sources.stamp()
zygote.load()
supervisors_end, zygotes_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
if os.fork() == 0:
    supervisors_end.close()
    zygote.serve(zygotes_end, cgroups.root() / found.lab.prefix)
else:
    zygotes_end.close()
    logs.configure()
    doors = [socket.socket(fileno=int(number)) for number in sys.argv[2:]]
    until_told(Supervisor(found, zygote=supervisors_end, loaded=loaded, doors=doors).run())
