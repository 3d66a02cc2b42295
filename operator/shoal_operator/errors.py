"""Errors of the shell.

``OperatorError``
    ``ApiError``: the API server refused a request, or could not be reached (``status`` 0).
    ``NotLeadingError``: another operator may be writing, so nothing was sent.

A spec that cannot work is ``shoal_schema.decoding.SpecError``: it becomes a condition. A wrong environment is
``shoal_schema.environment.SettingsError``.
"""

from collections.abc import Mapping
from types import MappingProxyType

# Server-side apply says so with a 500: of a field that no schema knows, of 1.5 for an integer, of too large an object.
_FOR_EVER = (
    "failed to create typed",
    "failed to convert",
    "unable to convert",
    "cannot convert",
    "request is too large",
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
        super().__init__(f"{status}: {message}" if status else message)
        self.status = status
        self.message = message
        self.headers = headers

    @property
    def refuses_object(self) -> bool:
        """Whether the object itself is refused, and will be for ever; some such answers are a 500."""
        return self.status in (400, 413, 422) or (
            self.status == 500 and any(words in self.message for words in _FOR_EVER)
        )

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed later: a race, an overload, an outage."""
        return not self.refuses_object and (self.status in (0, 409, 429) or self.status >= 500)


class NotLeadingError(OperatorError):
    """This operator does not hold the Lease."""
