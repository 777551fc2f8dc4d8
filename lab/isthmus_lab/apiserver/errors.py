"""Errors in the form of Kubernetes: a Status with a code, a reason and the field at fault."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import msgspec

Fault = Literal["Required value", "Invalid value", "Duplicate value", "Unsupported value", "Forbidden", "Not found"]

REASONS: dict[Fault, str] = {
    "Required value": "FieldValueRequired",
    "Invalid value": "FieldValueInvalid",
    "Duplicate value": "FieldValueDuplicate",
    "Unsupported value": "FieldValueNotSupported",
    "Forbidden": "FieldValueForbidden",
    "Not found": "FieldValueNotFound",
}


class ApiError(Exception):
    """An answer that is an error. ``status`` is the body of the reply."""

    def __init__(self, code: int, reason: str, message: str, *, details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or {}

    def status(self) -> dict[str, Any]:
        """The Status object."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": str(self),
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }


class Problem(NamedTuple):
    """A field that is not as it must be. A value that is not shown is None."""

    field: str
    fault: Fault
    detail: str = ""
    value: Any = None

    def message(self) -> str:
        """Description of the problem, without the field."""
        shown = self.fault not in ("Required value", "Forbidden")
        parts = [str(self.fault), *([msgspec.json.encode(self.value).decode()] if shown else []), self.detail]
        return ": ".join(part for part in parts if part)


def not_found(resource: str, name: str) -> ApiError:
    """No such object; ``resource`` is qualified by its group."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', details=_details(resource, name))


def already_exists(resource: str, name: str) -> ApiError:
    """The name is taken."""
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists', details=_details(resource, name))


def conflict(resource: str, name: str, reason: str = "") -> ApiError:
    """A concurrent write came first."""
    reason = reason or "the object has been modified; please apply your changes to the latest version and try again"
    message = f'Operation cannot be fulfilled on {resource} "{name}": {reason}'
    return ApiError(409, "Conflict", message, details=_details(resource, name))


def forbidden(resource: str, name: str, reason: str) -> ApiError:
    """Understood and refused."""
    return ApiError(403, "Forbidden", f'{resource} "{name}" is forbidden: {reason}', details=_details(resource, name))


def bad_request(message: str) -> ApiError:
    """The request makes no sense."""
    return ApiError(400, "BadRequest", message)


def expired(message: str = "The resourceVersion for the provided watch is too old.") -> ApiError:
    """The revision is compacted: list again."""
    return ApiError(410, "Expired", message)


def unavailable(message: str) -> ApiError:
    """etcd cannot be reached."""
    return ApiError(503, "ServiceUnavailable", message, details={"retryAfterSeconds": 1})


def method_not_allowed() -> ApiError:
    """The resource exists but does not support the verb (405)."""
    return ApiError(405, "MethodNotAllowed", "the server does not allow this method on the requested resource")


def unknown_path() -> ApiError:
    """Neither group nor resource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def invalid(kind: str, group: str, name: str, problems: Sequence[Problem]) -> ApiError:
    """Fields that are not as they must be, all of them at once."""
    lines = [f"{problem.field}: {problem.message()}" for problem in problems]
    text = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    causes = [{"reason": REASONS[p.fault], "message": p.message(), "field": p.field} for p in problems]
    qualified = f"{kind}.{group}" if group else kind
    details = ({"name": name} if name else {}) | {"kind": kind, "causes": causes} | ({"group": group} if group else {})
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {text}', details=details)


def _details(resource: str, name: str) -> dict[str, Any]:
    plural, _, group = resource.partition(".")
    return {"name": name, "kind": plural} | ({"group": group} if group else {})
