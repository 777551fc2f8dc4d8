"""The conditions of a ServiceExport: validity, publication, conflicts with other clusters, and refusals by them."""

from __future__ import annotations

from typing import Any, Final

from isthmus.desired import Condition, Draft, condition
from isthmus.mcs import unpublished, words
from isthmus.mcs.view import View
from isthmus.model.mcs import Conflict, PeerRefusal
from isthmus.model.services import ExportMark

PARTS: Final = {"serviceexports": "export", "services": "endpoints"}
"""Kinds of records in the words of a ServiceExport."""


def export_status(view: View, mark: ExportMark) -> Draft:
    """The status of the own cluster's ServiceExport; nothing else of it is ours."""
    status: dict[str, Any] = {"conditions": _conditions(view, mark)}
    if view.importers is not None:
        status["clusters"] = [{"cluster": each} for each in view.importers]
    return Draft("ServiceExport", view.name, status=status)


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
        _ready(view, generation),
        _conflict(conflicts, generation),
        *_refused(view.refused, generation),
        *_unpublished(view, generation),
        *_omitted(mark),
    ]


def _ready(view: View, generation: int) -> Condition:
    """False while the etcd does not have the export's own record; without its last endpoints an export is ready."""
    errors = [row.error for row in view.unpublished if row.key[0] == "serviceexports"]
    if errors:
        message = f"not published: {unpublished.reason(errors[0]).message}"
        return condition("Ready", False, reason="Pending", message=message, generation=generation)
    return condition("Ready", True, reason="Ready", message=_left_alone(view), generation=generation)


def _unpublished(view: View, generation: int) -> list[Condition]:
    """The reason why the etcd does not have the export or its endpoints as they are; absent if it has."""
    if not view.unpublished:
        return []
    reason, message = unpublished.reason(view.unpublished[0].error)
    parts = " and ".join(PARTS[row.key[0]] for row in view.unpublished)
    text = f"the last change of the {parts} is not published, so other clusters do not have it: {message}"
    return [condition("Unpublished", True, reason=reason, message=text, generation=generation)]


def _left_alone(view: View) -> str:
    """What this export does not bring about in the own cluster, and why."""
    return f"ServiceImport {view.name} is written by Karmada: it is served as it is" if view.karmadas else ""


def _refused(refused: tuple[PeerRefusal, ...], generation: int) -> list[Condition]:
    """The peers that do not take the export or its endpoints, with their reasons; absent if all do."""
    if not refused:
        return []
    reasons = ",".join(sorted({row.reason for row in refused}))
    message = "; ".join(dict.fromkeys(f"cluster {row.cluster}: {row.message}" for row in refused))
    return [condition("Refused", True, reason=reasons, message=message, generation=generation)]


def _omitted(mark: ExportMark) -> list[Condition]:
    """The exported labels and annotations that no cluster writes to an object, by reason; absent if there are none."""
    omitted = [(why, f"label '{key}'") for key, why in words.omitted_labels(mark.labels).items()]
    annotations = words.omitted_annotations(mark.annotations).items()
    omitted += [(why, f"annotation '{key}'") for key, why in annotations if key != words.IMPORTERS]
    if not omitted:
        return []
    by_reason = {why: ", ".join(key for each, key in omitted if each == why) for why in sorted(dict(omitted))}
    message = "; ".join(f"{why}: {keys}" for why, keys in by_reason.items())
    return [condition("MetadataOmitted", True, reason=",".join(by_reason), message=message, generation=mark.generation)]


def _conflict(conflicts: tuple[Conflict, ...], generation: int) -> Condition:
    """Every conflict in one condition, as the API wants it: reasons joined by commas."""
    if not conflicts:
        return condition("Conflict", False, reason="NoConflicts", generation=generation)
    reasons = ",".join(each.reason for each in conflicts)
    message = ". ".join(each.message for each in conflicts)
    return condition("Conflict", True, reason=reasons, message=message, generation=generation)
