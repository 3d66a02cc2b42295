"""Errors of the operator.

``OperatorError``
    ``ApiError``: the API server rejected a request, or is unreachable (``status`` 0).
    ``NotLeadingError``: another operator may be leading, so nothing was sent.

An invalid spec is a ``shoal_schema.decoding.SpecError`` and becomes a condition. An invalid environment is a
``shoal_schema.process.environment.SettingsError``.
"""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

from shoal_schema.fields.redaction import redacted
from shoal_schema.interfaces.metrics import ReconcileError

# Server-side apply returns 500 for these: an unknown field, 1.5 for an integer, too large an object.
_PERMANENT = (
    "failed to create typed",
    "failed to convert",
    "unable to convert",
    "cannot convert",
    "request is too large",
)
# A ValidatingAdmissionPolicy (status 422 unless it names a reason), or a webhook (any status).
_DENIED = re.compile(
    r"ValidatingAdmissionPolicy '[^']*' .*denied request|admission webhook \"[^\"]*\" denied the request"
)


class OperatorError(Exception):
    """Base of the operator's errors."""


class ApiError(OperatorError):
    """The API server returned an error, or no response.

    Args:
        status: the HTTP status; 0 without a response.
        headers: headers of the response.
        causes: reasons in ``details.causes`` of the API server's ``Status``.
    """

    def __init__(
        self,
        status: int,
        message: str,
        headers: Mapping[str, str] = MappingProxyType({}),
        causes: Collection[str] = (),
    ) -> None:
        # The API server quotes the rejected object, whose model URI may contain credentials.
        message = redacted(message)
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.message = message
        self.headers = headers
        self.causes = causes

    @property
    def is_deletion(self) -> bool:
        """Whether the object, or its whole namespace, is being deleted or no longer exists."""
        if self.status == 403:
            return "NamespaceTerminating" in self.causes
        # Server-side apply of a deleted object conflicts with the uid in the request.
        return self.status == 404 or (self.status == 409 and "no existing object was found" in self.message)

    @property
    def forbidden(self) -> bool:
        """Whether a permission, a quota, an admission policy or a webhook denied the request."""
        return self.status == 403 or (400 <= self.status < 500 and _DENIED.search(self.message) is not None)

    @property
    def is_invalid_object(self) -> bool:
        """Whether the object itself is invalid, so that a retry cannot succeed."""
        invalid = self.status == 500 and any(words in self.message for words in _PERMANENT)
        return not self.forbidden and (self.status in (400, 413, 422) or invalid)

    @property
    def code(self) -> int:
        """The HTTP status after correction by the error's cause.

        403 if the request was denied, 422 if the object is invalid, whatever status the API server returned for it.
        """
        return 403 if self.forbidden else 422 if self.is_invalid_object else self.status

    @property
    def is_transient(self) -> bool:
        """Whether a retry of the same request may succeed: a race, an overload, an outage."""
        return not (self.forbidden or self.is_invalid_object) and (self.status in (0, 409, 429) or self.status >= 500)


class NotLeadingError(OperatorError):
    """A write was not sent, because this operator does not hold the Lease."""


def reconcile_error(error: Exception) -> ReconcileError:
    """Return the label under which metrics count a failed reconciliation."""
    if isinstance(error, NotLeadingError):
        return ReconcileError.NOT_LEADING
    if not isinstance(error, ApiError):
        return ReconcileError.UNFORESEEN
    # All other statuses are errors of the server.
    by_code = {
        0: ReconcileError.UNREACHABLE,
        403: ReconcileError.FORBIDDEN,
        409: ReconcileError.CONFLICT,
        422: ReconcileError.REFUSED,
    }
    return by_code.get(error.code, ReconcileError.SERVER)
