"""Everything that can go wrong between a caller and a server, as one tree.

```
ShoalError
├── InvalidInput        400, 415: the item does not fit the model; ``errors`` names the rows
├── NotAllowed          401, 403: no key that the server knows, or one that may not do this
├── NotFound            404, 405: no such model or route
├── TooLarge            413: the request is over one of the server's limits
├── Overloaded          429, 503 with Retry-After: come back in ``retry_after_s``
├── Unavailable         502, 503: nothing serves behind this address at the moment
├── DeadlineExceeded    408, 504, or no answer within ``timeout_s``
├── ServerFailed        any other status, or an answer that breaks the protocol
└── ConnectionFailed    no connection, or it broke before the answer was whole
    └── WrongAddress    what was given is not the address of a server
```

The message is the server's own sentence wherever the server sent one. Errors of the HTTP library
are mapped in ``shoal.client`` and nowhere else; statuses in ``shoal.wire.answers``.
"""

import typing

from shoal_schema.wire.row_errors import RowError


class ShoalError(Exception):
    """Base of every error that this package raises on purpose.

    Args:
        message: a sentence for a person.
        status: HTTP status of the answer; None when there was none.
        errors: the rows that failed, when the server named them.
        request_id: the answer's ``x-request-id``, to find the request in the server's logs.
        may_have_run: the model may have seen the request; False only if it certainly has not.
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
        super().__init__(message)
        self.message = message
        self.status = status
        self.errors = errors
        self.request_id = request_id
        self.may_have_run = may_have_run


class InvalidInput(ShoalError):
    """The item does not fit the model's signature, or the model's handler refused it."""


class NotAllowed(ShoalError):
    """The server lets in callers with a key of its own, or a token, and this was none, or may not do this."""


class NotFound(ShoalError):
    """The server has no such model, version or route."""


class TooLarge(ShoalError):
    """The request is larger than the server accepts."""


class Overloaded(ShoalError):
    """The server cannot answer at the moment: its queue is full, it is draining, its model is starting or was lost.

    In the last case, and of servers that do not say, ``may_have_run`` is True.
    """

    def __init__(self, message: str, *, retry_after_s: float, **told: typing.Any) -> None:
        super().__init__(message, **told)
        self.retry_after_s = retry_after_s


class Unavailable(ShoalError):
    """Nothing serves behind this address at the moment."""


class DeadlineExceeded(ShoalError):
    """The answer did not come within the time the caller gave."""


class ServerFailed(ShoalError):
    """The model or the server failed, or the answer breaks the protocol."""


class ConnectionFailed(ShoalError):
    """The server could not be reached, or the connection broke before the answer was whole."""


class WrongAddress(ConnectionFailed):
    """What was given is not the address of a server."""
