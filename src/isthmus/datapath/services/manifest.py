"""The maps and programs of plans and their calls. The target writes maps in the order of the rows (ORDER)."""

from __future__ import annotations

from typing import Final

from isthmus.datapath.core.manifest import Map, Program, ids, per_entry, times
from isthmus.datapath.core.shapes import COOKIE
from isthmus.datapath.services import codecs, views

MAPS: Final = (
    Map(name="clusters", value=codecs.CLUSTER, writer="plans", show=per_entry(views.named)),
    Map(name="services", value=codecs.SERVICE, entries=times(1), writer="plans", show=per_entry(views.named)),
    Map(
        name="backends",
        value=codecs.BACKEND,
        entries=ids,
        writer="plans",
        numbered=True,
        show=per_entry(views.backend),
    ),
    Map(
        name="slots",
        key=codecs.SLOT_KEY,
        value=codecs.SLOT,
        entries=times(4),
        writer="plans",
        show=per_entry(views.slot),
    ),
    Map(
        name="members",
        key=codecs.MEMBER_KEY,
        value=codecs.MEMBER,
        entries=times(4),
        writer="plans",
        show=per_entry(views.member),
    ),
    Map(name="skips", key=codecs.SKIP_KEY, entries=times(1), writer="plans", show=per_entry(views.skip)),
    Map(
        name="consumers",
        key=codecs.CONSUMER_KEY,
        value=codecs.SLOT,
        entries=times(1),
        writer="plans",
        show=per_entry(views.consumer),
    ),
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
        show=per_entry(views.plan),
    ),
    Map(
        name="frontends",
        key=codecs.FRONTEND_KEY,
        value=codecs.FRONTEND,
        entries=times(1),
        writer="plans",
        show=per_entry(views.frontend),
    ),
    Map(
        name="callers", key=COOKIE, value=codecs.CALLER, entries=times(1), writer="agent", show=per_entry(views.caller)
    ),
    Map(
        name="affinity",
        key=codecs.AFFINITY_KEY,
        value=codecs.AFFINITY,
        entries=times(1),
        writer="kernel",
        show=per_entry(views.affinity),
    ),
    Map(
        name="counters",
        key=codecs.COUNTER_KEY,
        value=codecs.COUNTER,
        entries=times(4),
        writer="kernel",
        show=per_entry(views.counter),
    ),
    Map(
        name="denied",
        key=codecs.COUNTER_KEY,
        value=codecs.COUNTER,
        writer="kernel",
        show=per_entry(views.counter),
    ),
    Map(name="fixed_ports", key=codecs.PORT_KEY, value=COOKIE, writer="kernel"),
    Map(name="call_places", value=codecs.CALL_PLACE, writer="kernel", carried=True),
    Map(name="tcp_calls", writer="kernel", carried=True, opaque=True),
    Map(name="udp_sent", writer="kernel", carried=True, opaque=True),
    Map(name="udp_connects", key=COOKIE, value=codecs.ORIG_DST, writer="kernel", carried=True),
    Map(name="udp_unknown", writer="kernel", carried=True),
)

ORDER: Final = tuple(row.name for row in MAPS if row.writer == "plans")
"""Order of writes: an entry is written after the entries it refers to and deleted before them, so that readers find
these."""

HOOKS: Final = ("recvmsg", "getpeername", "connect", "sendmsg")
"""Hooks, each for both families. Readers of a socket's call are replaced before the writers: links change in order."""

PROGRAMS: Final = (
    Program("sock_release", "cgroup"),
    *(Program(f"{hook}{family}", "cgroup") for hook in HOOKS for family in "46"),
)
