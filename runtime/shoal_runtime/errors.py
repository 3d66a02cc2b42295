"""Errors of the runtime, and their HTTP status or exit status.

RuntimeFault
├── LoadError       the model cannot be loaded: exit status 3
└── BatchError      a batch fails as a whole: an HTTP response
    ├── BadRequest, NotFound, WrongMethod,
    │   TooManyRows, BodyTooLarge                           errors of the client
    ├── ForwardFailed, WrongRows, OutOfMemory               errors of the model
    │   └── WrongShape, RaggedRows                          kinds of ForwardFailed
    ├── NotReady, Stopping, TimedOut                        nothing was executed
    └── DeviceLost                                          the batch may have been executed

Invalid settings are `shoal_schema.process.environment.SettingsError`: exit status 2.

ItemError           raised by handlers: one row fails, the others do not
FailedRow           the error of one row
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from shoal_runtime.faults import message_text
from shoal_schema.wire.row_errors import RowError

EXIT_USAGE: Final = 2
EXIT_LOAD_FAILED: Final = 3
EXIT_DEVICE_LOST: Final = 4


class RuntimeFault(Exception):
    """Base class of the runtime's errors."""


class LoadError(RuntimeFault):
    """The model cannot be fetched, loaded or warmed up."""


class BatchError(RuntimeFault):
    """A batch fails as a whole. docs/reference/wire-protocol.md lists `status` and `code`.

    Args:
        message: text that clients receive.
        executed: whether forward may have processed the batch's rows; None for the default of the class.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "FORWARD_FAILED"
    executed: bool = False

    def __init__(self, message: str, *, executed: bool | None = None) -> None:
        super().__init__(message)
        if executed is not None:
            self.executed = executed


class BadRequest(BatchError):
    """The request body violates the protocol or the model's signature."""

    status = 400
    code = "BAD_REQUEST"


class NotFound(BatchError):
    """The requested path, model or version does not exist."""

    status = 404
    code = "NOT_FOUND"


class WrongMethod(BatchError):
    """The requested path does not accept the HTTP method."""

    status = 405
    code = "BAD_REQUEST"


class BodyTooLarge(BatchError):
    """The request body exceeds the limit in bytes."""

    status = 413
    code = "BODY_TOO_LARGE"


class TooManyRows(BatchError):
    """The batch has more rows than the model accepts in one request."""

    status = 413
    code = "TOO_MANY_ROWS"


class ForwardFailed(BatchError):
    """The model raised an error, or returned outputs that differ from its signature."""

    executed = True


class WrongShape(ForwardFailed):
    """An output has another shape than its declared shape."""


class RaggedRows(ForwardFailed):
    """Rows of one output have different shapes, although each fits the declared shape."""


class WrongRows(BatchError):
    """The model returned a different number of rows than it received."""

    code = "WRONG_ROWS"
    executed = True


class OutOfMemory(BatchError):
    """The device ran out of memory; a smaller batch may fit."""

    code = "OUT_OF_MEMORY"
    executed = True


class NotReady(BatchError):
    """The model is not loaded yet."""

    status = 503
    code = "NOT_READY"


class DeviceLost(BatchError):
    """The device is unusable, and the process will exit."""

    status = 503
    code = "DEVICE_LOST"
    executed = True


class Stopping(BatchError):
    """The runtime is stopping."""

    status = 503
    code = "STOPPING"


class TimedOut(BatchError):
    """The batch is past its deadline."""

    status = 504
    code = "TIMEOUT"


class ItemError(Exception):
    """Error that a handler raises to fail one row and no other.

    Args:
        message: error message of the row, for the client.
        status: HTTP status of the row, 400 to 599.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class FailedRow:
    """Error of one row of a batch."""

    row: int
    """Counted in the batch as it arrived."""
    status: int
    """400 to 599."""
    message: str
    """For the client; made safe for every encoder."""
    cause: BaseException | None = None
    """Exception of the handler, for the log only; it is never sent."""

    def __post_init__(self) -> None:
        # The class is frozen.
        object.__setattr__(self, "message", message_text(self.message))

    @property
    def row_error(self) -> RowError:
        """The part of the error that is sent to the client."""
        return RowError(self.row, self.status, self.message)
