"""The maps and programs of plans and their calls. ORDER, in which the target writes, is that of the rows."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.manifest import Map, Program, each, ids, times
from isthmus.datapath.core.shapes import COOKIE
from isthmus.datapath.services import codecs, views

MAPS: Final = (
    Map(name="clusters", value=codecs.CLUSTER, writer="plans", show=each(views.named)),
    Map(name="services", value=codecs.SERVICE, entries=times(1), writer="plans", show=each(views.named)),
    Map(
        name="backends",
        value=codecs.BACKEND,
        entries=ids,
        writer="plans",
        numbered=True,
        show=each(views.backend),
    ),
    Map(
        name="slots",
        key=codecs.SLOT_KEY,
        value=codecs.SLOT,
        entries=times(4),
        writer="plans",
        show=each(views.slot),
    ),
    Map(
        name="members",
        key=codecs.MEMBER_KEY,
        value=codecs.MEMBER,
        entries=times(4),
        writer="plans",
        show=each(views.member),
    ),
    Map(name="skips", key=codecs.SKIP_KEY, entries=times(1), writer="plans", show=each(views.skip)),
    Map(
        name="rings",
        key=codecs.RING_KEY,
        value=codecs.RING,
        entries=times(1),
        writer="plans",
        show=views.rings,
    ),
    Map(
        name="plans",
        value=codecs.PLAN,
        parts=(codecs.GROUP,),
        entries=times(1),
        writer="plans",
        show=each(views.plan),
    ),
    Map(
        name="frontends",
        key=codecs.FRONTEND_KEY,
        value=codecs.FRONTEND,
        entries=times(1),
        writer="plans",
        show=each(views.frontend),
    ),
    Map(name="callers", key=COOKIE, value=codecs.CALLER, entries=times(1), writer="agent", show=each(views.caller)),
    Map(
        name="affinity",
        key=codecs.AFFINITY_KEY,
        value=codecs.AFFINITY,
        entries=times(1),
        writer="kernel",
        show=each(views.affinity),
    ),
    Map(
        name="counters",
        key=codecs.COUNTER_KEY,
        value=codecs.COUNTER,
        entries=times(4),
        writer="kernel",
        show=each(views.counter),
    ),
    Map(name="call_places", value=codecs.CALL_PLACE, writer="kernel", carried=True),
    Map(name="tcp_calls", writer="kernel", carried=True, opaque=True),
    Map(name="udp_calls", writer="kernel", carried=True, opaque=True),
)

ORDER: Final = tuple(row.name for row in MAPS if row.writer == "plans")
"""A reader finds what an entry refers to: that is written before it, and deleted after it."""

HOOKS: Final = ("recvmsg", "getpeername", "connect", "sendmsg")
"""Each in both families. Links get programs one after the other: what reads a socket's call before what writes it."""

PROGRAMS: Final = (
    Program("sock_release", "cgroup"),
    *(Program(f"{hook}{family}", "cgroup") for hook in HOOKS for family in "46"),
)
