"""``python -m isthmus.lab.supervisor STATE/lab.json``: started by ``lab up``."""

from __future__ import annotations

import sys
from pathlib import Path

from isthmus import logs
from isthmus.lab.running import until_told
from isthmus.lab.supervisor.process import Supervisor, load

logs.configure()
lab, own_images, isthmus = load(Path(sys.argv[1]))
until_told(Supervisor(lab, own_images=own_images, isthmus=isthmus).run())
