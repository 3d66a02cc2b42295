"""The errors of the clients, as one tree.

```
ShoalError
├── InvalidInput        400, 415: the item does not fit the model; ``errors`` names the rows
├── NotAllowed          401, 403: the key is missing, unknown, or not permitted to do this
├── NotFound            404, 405: no such model or route
├── TooLarge            413: the request exceeds one of the server's limits
├── Overloaded          429, 503 with Retry-After: retry after ``retry_after_s``
├── Unavailable         502, 503: no server behind this address at the moment
├── DeadlineExceeded    408, 504, or no response within ``timeout_s``
├── ServerFailed        any other status, or a response that violates the protocol
└── ConnectionFailed    no connection, or it broke before the response was complete
    └── WrongAddress    not the address of a server
```

The message is the server's, if the server sent one. Errors of the HTTP library are mapped in ``shoal.exchange`` only,
statuses in ``shoal.wire.responses``.
"""

import typing

from shoal_schema.fields.redaction import redacted
from shoal_schema.wire.row_errors import RowError


class ShoalError(Exception):
    """Base class of the clients' errors.

    Args:
        message: a sentence for users.
        status: HTTP status of the response; None without a response.
        errors: the rows that failed, if the server named them.
        request_id: the response's ``x-request-id``, which the server logs.
        may_have_run: whether the model may have run the request; False only if it certainly did not.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        errors: tuple[RowError, ...] = (),
        request_id: str | None = None,
        may_have_run: bool = False,
    ) -> None:
        # Addresses may contain a user, a password or a token, in messages of libraries and servers too.
        self.message = redacted(message)
        super().__init__(self.message)
        self.status = status
        self.errors = errors
        self.request_id = request_id
        self.may_have_run = may_have_run


class InvalidInput(ShoalError):
    """The item does not fit the model's signature, or the model's handler rejected it."""


class NotAllowed(ShoalError):
    """The API key or token is missing or unknown, or does not permit this request."""


class NotFound(ShoalError):
    """The server has no such model, version or route."""


class TooLarge(ShoalError):
    """The request is larger than the server accepts."""


class Overloaded(ShoalError):
    """The server rejects requests for now: its queue is full, it is draining, or its runtime is starting or was lost.

    If the runtime was lost, or the server does not report execution, ``may_have_run`` is True.
    """

    def __init__(self, message: str, *, retry_after_s: float, **facts: typing.Any) -> None:
        super().__init__(message, **facts)
        self.retry_after_s = retry_after_s


class Unavailable(ShoalError):
    """The address currently has no server."""


class DeadlineExceeded(ShoalError):
    """There was no response within the timeout."""


class ServerFailed(ShoalError):
    """The model or the server failed, or the response violates the protocol."""


class ConnectionFailed(ShoalError):
    """The server is unreachable, or the connection broke before the response was complete."""


class WrongAddress(ConnectionFailed):
    """The URL is not the address of a server."""
