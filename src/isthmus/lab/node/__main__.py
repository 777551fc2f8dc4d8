"""``python -m isthmus.lab.node --config FILE``: started by the lab in the node's namespace and control group."""

from __future__ import annotations

import argparse
from pathlib import Path

from isthmus import logs
from isthmus.lab.node import process, settings
from isthmus.running import until_told

parser = argparse.ArgumentParser(prog="isthmus.lab.node")
parser.add_argument("--config", type=Path, required=True)
logs.configure()
until_told(process.run(settings.load(parser.parse_args().config)))
