"""The conditions of a ServiceExport: whether it is valid and exported, and where other clusters' exports differ."""

from __future__ import annotations

from isthmus.desired import Condition, Draft, condition
from isthmus.mcs.view import View
from isthmus.model.mcs import Conflict
from isthmus.model.services import ExportMark


def export_status(view: View, mark: ExportMark) -> Draft:
    """The conditions of the own cluster's ServiceExport; nothing else of it is ours."""
    return Draft("ServiceExport", view.name, status={"conditions": _conditions(view, mark)})


def _conditions(view: View, mark: ExportMark) -> list[Condition]:
    own, generation = view.own, mark.generation
    if own is not None and own.reason is not None:
        waiting = f"not exported: {own.message}"
        return [
            condition("Valid", False, reason=own.reason, message=own.message, generation=generation),
            condition("Ready", False, reason="Pending", message=waiting, generation=generation),
        ]
    conflicts = view.merged.conflicts if view.merged is not None else ()
    return [
        condition("Valid", True, reason="Valid", generation=generation),
        condition("Ready", True, reason="Ready", message=_left_alone(view), generation=generation),
        _conflict(conflicts, generation),
    ]


def _left_alone(view: View) -> str:
    """What this export does not bring about in the own cluster, and why."""
    return f"ServiceImport {view.name} is written by Karmada: it is served as it is" if view.karmadas else ""


def _conflict(conflicts: tuple[Conflict, ...], generation: int) -> Condition:
    """Every conflict in one condition, as the API wants it: reasons joined by commas."""
    if not conflicts:
        return condition("Conflict", False, reason="NoConflicts", generation=generation)
    reasons = ",".join(each.reason for each in conflicts)
    message = ". ".join(each.message for each in conflicts)
    return condition("Conflict", True, reason=reasons, message=message, generation=generation)
