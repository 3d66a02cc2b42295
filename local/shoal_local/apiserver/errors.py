"""API errors: ``Status`` objects with the wording of Kubernetes.

`ApiError` holds the HTTP code, the machine-readable reason and the details that kubectl prints. Each function below
returns one error and is named after its reason.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Cause:
    """One invalid field, such as ``spec.replicas`` with ``Invalid value: -1: must be ...``."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"

    def as_json(self) -> dict[str, str]:
        """Return the entry in ``Status.details.causes``."""
        return {"reason": self.reason, "message": self.message, "field": self.field}


def json_text(value: Any) -> str:
    """Return a value as JSON, as validation messages quote it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def invalid_value(field: str, value: Any, why: str) -> Cause:
    """Return the cause that a field has an invalid value."""
    return Cause(field, f"Invalid value: {json_text(value)}: {why}")


def required_value(field: str, why: str = "") -> Cause:
    """Return the cause that a field is missing."""
    return Cause(field, "Required value" + (why and f": {why}"), "FieldValueRequired")


def unsupported_value(field: str, value: Any, supported: Iterable[Any]) -> Cause:
    """Return the cause that a field has none of its supported values."""
    message = f"Unsupported value: {json_text(value)}: supported values: {', '.join(map(json_text, supported))}"
    return Cause(field, message, "FieldValueNotSupported")


def forbidden_value(field: str, why: str) -> Cause:
    """Return the cause that a field must not be set."""
    return Cause(field, f"Forbidden: {why}", "FieldValueForbidden")


class ApiError(Exception):
    """An error response: HTTP code, reason, message and details."""

    def __init__(self, code: int, reason: str, message: str, details: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = dict(details or {})

    def as_status(self) -> dict[str, Any]:
        """Return the body of the response: a ``Status`` object."""
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
        # Kubernetes leaves empty fields out, but not the metadata.
        return {key: value for key, value in status.items() if value or key == "metadata"}


def qualified(plural: str, group: str) -> str:
    """Return a resource with its group: ``deployments.apps``, ``pods``."""
    return f"{plural}.{group}" if group else plural


def _about(plural: str, group: str, name: str) -> dict[str, Any]:
    # Here `kind` is the plural, as in Kubernetes.
    details = {"name": name, "group": group, "kind": plural}
    return {key: value for key, value in details.items() if value}


def not_found(plural: str, group: str, name: str) -> ApiError:
    """Return a 404: the object does not exist."""
    message = f'{qualified(plural, group)} "{name}" not found'
    return ApiError(404, "NotFound", message, _about(plural, group, name))


def no_such_path() -> ApiError:
    """Return a 404: the path, kind or subresource does not exist."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")


def already_exists(plural: str, group: str, name: str) -> ApiError:
    """Return a 409: an object with this name exists."""
    message = f'{qualified(plural, group)} "{name}" already exists'
    return ApiError(409, "AlreadyExists", message, _about(plural, group, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def conflict(plural: str, group: str, name: str, why: str = MODIFIED) -> ApiError:
    """Return a 409: the request is based on an older version."""
    message = f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}'
    return ApiError(409, "Conflict", message, _about(plural, group, name))


def invalid(kind: str, group: str, name: str, causes: Iterable[Cause]) -> ApiError:
    """Return a 422: the object violates rules; one cause for each rule and field."""
    causes = list(causes)
    # A rule that several schemas state is reported once.
    lines = list(dict.fromkeys(f"{c.field}: {c.message}" for c in causes))
    listed = lines[0] if len(lines) == 1 else "[" + ", ".join(lines) + "]"
    details = {**_about(kind, group, name), "causes": [cause.as_json() for cause in causes]}
    message = f'{qualified(kind, group)} "{name}" is invalid: {listed}'
    return ApiError(422, "Invalid", message, details)


def bad_request(message: str) -> ApiError:
    """Return a 400: the request cannot be parsed."""
    return ApiError(400, "BadRequest", message)


def unauthorized() -> ApiError:
    """Return a 401: the token is unknown, malformed or expired."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def forbidden(plural: str, group: str, name: str, why: str, causes: Iterable[Cause] = ()) -> ApiError:
    """Return a 403: denied by RBAC, or by the state of the namespace."""
    quoted = f' "{name}"' if name else ""
    message = f"{qualified(plural, group)}{quoted} is forbidden: {why}"
    details = _about(plural, group, name)
    listed = [cause.as_json() for cause in causes]
    return ApiError(403, "Forbidden", message, {**details, "causes": listed} if listed else details)


def unsupported_media_type(offered: Iterable[str]) -> ApiError:
    """Return a 415: the server cannot read the body's media type."""
    message = "the body of the request was in an unknown format - accepted media types include: " + ", ".join(offered)
    return ApiError(415, "UnsupportedMediaType", message)


def internal(message: str) -> ApiError:
    """Return a 500: an unexpected error of this server."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")
