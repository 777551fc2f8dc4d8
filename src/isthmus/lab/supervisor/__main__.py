"""``python -m isthmus.lab.supervisor NAME``: started by ``lab up``."""

from __future__ import annotations

import sys

from isthmus import logs
from isthmus.lab import record
from isthmus.lab.running import until_told
from isthmus.lab.supervisor.process import Supervisor

logs.configure()
until_told(Supervisor(record.read(sys.argv[1])).run())
