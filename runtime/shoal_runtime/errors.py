"""What can go wrong in the runtime, and who is told.

RuntimeFault
├── LoadError       the model cannot be loaded: exit 3
└── BatchError      one batch fails as a whole: an HTTP answer
    ├── BadRequest, NotFound, WrongMethod,
    │   TooManyRows, BodyTooLarge                           the caller's
    ├── ForwardFailed, WrongRows, OutOfMemory               the model's
    │   └── WrongShape, RaggedRows                          a ForwardFailed each
    ├── NotReady, Stopping, TimedOut                        nothing was executed
    └── DeviceLost                                          some may have been executed

A wrong environment is `shoal_schema.environment.SettingsError`: exit 2.

ItemError           raised by handlers: one row fails, the others do not
FailedRow           what became of that row
"""

from dataclasses import dataclass
from typing import ClassVar, Final

from shoal_runtime.faults import message_text
from shoal_schema.wire.row_errors import RowError

EXIT_USAGE: Final = 2
EXIT_LOAD_FAILED: Final = 3
EXIT_DEVICE_LOST: Final = 4


class RuntimeFault(Exception):
    """Base of the runtime's own errors."""


class LoadError(RuntimeFault):
    """The model cannot be fetched, loaded or warmed."""


class BatchError(RuntimeFault):
    """A batch fails as a whole; `status` and `code` are those of docs/reference/wire-protocol.md.

    Args:
        message: for the callers.
        executed: whether forward may have begun with its rows; None where the kind of error tells.
    """

    status: ClassVar[int] = 500
    code: ClassVar[str] = "FORWARD_FAILED"
    executed: bool = False

    def __init__(self, message: str, *, executed: bool | None = None) -> None:
        super().__init__(message)
        if executed is not None:
            self.executed = executed


class BadRequest(BatchError):
    """The body breaks the protocol or the model's signature."""

    status = 400
    code = "BAD_REQUEST"


class NotFound(BatchError):
    """There is no such path, model or version."""

    status = 404
    code = "NOT_FOUND"


class WrongMethod(BatchError):
    """The path is right and the method is not."""

    status = 405
    code = "BAD_REQUEST"


class BodyTooLarge(BatchError):
    """The body is over the limit in bytes."""

    status = 413
    code = "BODY_TOO_LARGE"


class TooManyRows(BatchError):
    """More rows than the model takes in one call."""

    status = 413
    code = "TOO_MANY_ROWS"


class ForwardFailed(BatchError):
    """The model raised, or returned what its signature does not say."""

    executed = True


class WrongShape(ForwardFailed):
    """An output has another shape than declared."""


class RaggedRows(ForwardFailed):
    """Rows of one output have different shapes, each of them as declared."""


class WrongRows(BatchError):
    """The model returned another number of rows than it was given."""

    code = "WRONG_ROWS"
    executed = True


class OutOfMemory(BatchError):
    """The device ran out of memory; a smaller batch may pass."""

    code = "OUT_OF_MEMORY"
    executed = True


class NotReady(BatchError):
    """The model is not loaded yet."""

    status = 503
    code = "NOT_READY"


class DeviceLost(BatchError):
    """The device cannot be used any more; the process is about to exit."""

    status = 503
    code = "DEVICE_LOST"
    executed = True


class Stopping(BatchError):
    """The process is about to exit."""

    status = 503
    code = "STOPPING"


class TimedOut(BatchError):
    """Nobody waits for this batch any more."""

    status = 504
    code = "TIMEOUT"


class ItemError(Exception):
    """Fail one row, and only that row.

    Args:
        message: what is wrong with the item, in the caller's words.
        status: the HTTP status of the row, 400 to 599.
    """

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class FailedRow:
    """What its caller is told of a row that failed, and what the log is told beside.

    Args:
        row: counted in the batch as it arrived.
        status: 400 to 599.
        message: for the caller; made safe for every encoder.
        cause: for the log, when the handler's code is at fault; it never travels.
    """

    row: int
    status: int
    message: str
    cause: BaseException | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", message_text(self.message))

    @property
    def row_error(self) -> RowError:
        """What travels of it."""
        return RowError(self.row, self.status, self.message)
