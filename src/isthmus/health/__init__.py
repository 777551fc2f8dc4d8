"""Active probes: this node's verdict on each backend that it is to probe, written as rows of ``probes``.

What belongs here: when a backend is probed, what is sent and how the answer reads, when a verdict changes. What never
does: which backends are probed (``checks``, derived), and what a verdict means for calls (``backends``, ``plans``).

Each node probes for itself: what counts is whether this node reaches a backend, and no node's verdict has to be
trusted by another. Nodes share the work by probing less often the more they are (``schedule.spacing``).

    verdict.py   from results to a verdict, with hysteresis
    schedule.py  which backend is probed when: spread, jittered, bounded
    exchange.py  what a probe sends, and what the answer means
    prober.py    the sockets
"""

from isthmus.health.prober import Prober, ProberStats

__all__ = ["Prober", "ProberStats"]
