"""``python -m isthmus_lab.node --config FILE``: started by the lab in the node's namespace and control group."""

from __future__ import annotations

import argparse
from pathlib import Path

from isthmus import logs
from isthmus.running import until_told
from isthmus_lab.node import process, settings

parser = argparse.ArgumentParser(prog="isthmus_lab.node")
parser.add_argument("--config", type=Path, required=True)
logs.configure()
until_told(process.run(settings.load(parser.parse_args().config)))
