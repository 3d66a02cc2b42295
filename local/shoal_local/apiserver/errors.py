"""Failures as the API tells them.

Each is one ``Status`` object, with the wording of the real API server.

ApiError carries the HTTP code, the machine-readable reason and the details that kubectl prints.
The functions below make one each; the names are those of the reasons.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cause:
    """One field that is wrong: ``spec.replicas``, ``Invalid value: -1: must be ...``."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def as_json(self) -> dict[str, str]:
        """Return the cause as it stands in ``Status.details.causes``."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


class ApiError(Exception):
    """An answer other than success."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})

    def as_status(self) -> dict[str, Any]:
        """Return the body: a ``Status`` object."""
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "details": self.details,
            "code": self.code,
        }
        return {key: value for key, value in status.items() if value or key == "metadata"}


def qualified(plural: str, group: str) -> str:
    """Return ``deployments.apps``, or ``pods`` in the core group."""
    return f"{plural}.{group}" if group else plural


def _about(plural: str, group: str, name: str) -> dict[str, Any]:
    details = {"name": name, "group": group, "kind": plural}
    return {key: value for key, value in details.items() if value}


def not_found(plural: str, group: str, name: str) -> ApiError:
    """No such object."""
    message = f'{qualified(plural, group)} "{name}" not found'
    return ApiError(404, "NotFound", message, _about(plural, group, name))


def no_such_path() -> ApiError:
    """No such path, kind or subresource."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(plural: str, group: str, name: str) -> ApiError:
    """Create, but the name is taken."""
    message = f'{qualified(plural, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _about(plural, group, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(plural: str, group: str, name: str, why: str = MODIFIED) -> ApiError:
    """The write rests on an old version."""
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", message, _about(plural, group, name))


def apply_conflict(message: str, causes: Iterable[Cause]) -> ApiError:
    """Server-side apply touches a field that another manager owns."""
    return ApiError(409, "Conflict", message, {"causes": [cause.as_json() for cause in causes]})


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> ApiError:
    """The object was understood but breaks a rule; one cause for each rule and field."""
    causes = list(causes)
    lines = list(dict.fromkeys(f"{c.field}: {c.message}" for c in causes))
    told = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    details = {**_about(kind, group, name), "causes": [cause.as_json() for cause in causes]}
    message = f'{qualified(kind, group)} "{name}" is invalid: {told}'
    return ApiError(422, "Invalid", message, details)


def bad_request(message: str) -> ApiError:
    """The request cannot be read."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """The token is unknown, wrong or too old."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(plural: str, group: str, name: str, why: str, causes: Iterable[Cause] = ()) -> ApiError:
    """Not allowed, by RBAC or by the state of the namespace."""
    quoted = f' "{name}"' if name else ""
    message = f"{qualified(plural, group)}{quoted} is forbidden: {why}"
    details = _about(plural, group, name)
    told = [cause.as_json() for cause in causes]
    return ApiError(403, "Forbidden", message, {**details, "causes": told} if told else details)


def method_not_allowed() -> ApiError:
    """The path exists, the verb does not."""
    message = "the server does not allow this method on the requested resource"
    return ApiError(405, "MethodNotAllowed", message)


def not_acceptable(offered: Iterable[str]) -> ApiError:
    """The client accepts nothing that we can write."""
    message = f"only the following media types are accepted: {', '.join(offered)}"
    return ApiError(406, "NotAcceptable", message)


def unsupported_media_type(offered: Iterable[str]) -> ApiError:
    """The body has a type that we cannot read."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(offered)
    return ApiError(415, "UnsupportedMediaType", message)


def untyped(resource: str, field: str) -> ApiError:
    """Server-side apply was given a field that its schema does not know; the real server says it so."""
    message = f"failed to create typed patch object ({resource}): .{field}: field not declared in schema"
    return ApiError(500, "", message)


def not_implemented(message: str) -> ApiError:
    """A real server does this; this one does not."""
    return ApiError(501, "NotImplemented", message)


def expired(message: str) -> ApiError:
    """The resourceVersion or continue token is older than the log of changes."""
    return ApiError(410, "Expired", message)


def internal(message: str) -> ApiError:
    """Something broke here."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")
