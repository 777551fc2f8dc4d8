"""What a ServiceExport is told: whether it is valid, whether it is offered, and what other clusters say differently."""

from __future__ import annotations

from isthmus.mcs import told, wire
from isthmus.mcs.view import View
from isthmus.model.mcs import Conflict, Object
from isthmus.model.services import ExportMark


def export_status(view: View, mark: ExportMark) -> Object:
    """The conditions of the own cluster's ServiceExport; nothing else of it is ours."""
    status = wire.encode({"conditions": _conditions(view, mark)})
    return Object(
        kind="ServiceExport",
        name=view.name,
        body=b"",
        status=status,
        service=view.name,
        seen=wire.seen(mark, told=told.found((), mark.conditions) == told.wanted(status)),
    )


def _conditions(view: View, mark: ExportMark) -> list[wire.ConditionBody]:
    own, generation = view.own, mark.generation
    if own is not None and own.reason is not None:
        waiting = f"not exported: {own.message}"
        return [
            wire.condition("Valid", False, reason=own.reason, message=own.message, generation=generation),
            wire.condition("Ready", False, reason="Pending", message=waiting, generation=generation),
        ]
    conflicts = view.merged.conflicts if view.merged is not None else ()
    return [
        wire.condition("Valid", True, reason="Valid", generation=generation),
        wire.condition("Ready", True, reason="Ready", generation=generation),
        _conflict(conflicts, generation),
    ]


def _conflict(conflicts: tuple[Conflict, ...], generation: int) -> wire.ConditionBody:
    """All that clusters differ in, in one condition, as the API wants it: reasons joined by commas."""
    if not conflicts:
        return wire.condition("Conflict", False, reason="NoConflicts", generation=generation)
    reasons = ",".join(each.reason for each in conflicts)
    message = ". ".join(each.message for each in conflicts)
    return wire.condition("Conflict", True, reason=reasons, message=message, generation=generation)
