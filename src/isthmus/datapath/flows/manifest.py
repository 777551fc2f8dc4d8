"""The maps of flow records and byte counters. Those with a value for each processor are read by ``reader.py``."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.manifest import Map
from isthmus.datapath.core.shapes import COOKIE
from isthmus.datapath.flows import codecs

MAPS: Final = (
    Map(name="flow_records", parts=(codecs.FLOW_RECORD,), writer="kernel", opaque=True),
    Map(name="flow_allowances", value=COOKIE, writer="kernel", opaque=True),
    Map(name="lost_records", value=codecs.LOST, writer="kernel", opaque=True),
    Map(name="passed_over", value=codecs.PASSED_OVER, writer="kernel", opaque=True),
    Map(name="traffic", value=codecs.TRAFFIC, writer="kernel", numbered=True, opaque=True),
)
