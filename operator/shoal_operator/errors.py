"""Errors of the shell.

``OperatorError``
    ``ApiError``: the API server refused a request, or could not be reached (``status`` 0).
    ``NotLeadingError``: another operator may be writing, so nothing was sent.

A spec that cannot work is ``shoal_schema.decoding.SpecError``: it becomes a condition. A wrong environment is
``shoal_schema.environment.SettingsError``.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from shoal_schema.metrics import LookError
from shoal_schema.redaction import redacted

# Server-side apply says so with a 500: of a field that no schema knows, of 1.5 for an integer, of too large an object.
_FOR_EVER = (
    "failed to create typed",
    "failed to convert",
    "unable to convert",
    "cannot convert",
    "request is too large",
)
# A ValidatingAdmissionPolicy says the one, with 422 unless it names a reason; a webhook the other, with any status.
_DENIED = re.compile(
    r"ValidatingAdmissionPolicy '[^']*' .*denied request|admission webhook \"[^\"]*\" denied the request"
)


class OperatorError(Exception):
    """Base of the operator's errors."""


class ApiError(OperatorError):
    """The API server's answer was not a success.

    Args:
        status: the HTTP status, or 0 when there was no answer.
        headers: the answer's.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
        message = redacted(message)  # an object that is refused is quoted, with its model's URI
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.message = message
        self.headers = headers

    @property
    def forbidden(self) -> bool:
        """Whether a permission, a quota, a policy or a webhook refuses it; the last two choose their status."""
        return self.status == 403 or (400 <= self.status < 500 and _DENIED.search(self.message) is not None)

    @property
    def refuses_object(self) -> bool:
        """Whether the object itself is refused, and will be for ever; some such answers are a 500."""
        return not self.forbidden and (
            self.status in (400, 413, 422) or (self.status == 500 and any(words in self.message for words in _FOR_EVER))
        )

    @property
    def code(self) -> int:
        """The status that says what kind of answer it is: 403 of all that is forbidden, 422 of all refused objects."""
        return 403 if self.forbidden else 422 if self.refuses_object else self.status

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: a race, an overload, an outage."""
        return not (self.forbidden or self.refuses_object) and (self.status in (0, 409, 429) or self.status >= 500)


class NotLeadingError(OperatorError):
    """This operator does not hold the Lease."""


def reason_of(error: Exception) -> LookError:
    """Return why a look ended with this, in a word."""
    if isinstance(error, NotLeadingError):
        return LookError.NOT_LEADING
    if not isinstance(error, ApiError):
        return LookError.UNFORESEEN
    by_code = {0: LookError.UNREACHABLE, 403: LookError.FORBIDDEN, 409: LookError.CONFLICT, 422: LookError.REFUSED}
    return by_code.get(error.code, LookError.SERVER)
