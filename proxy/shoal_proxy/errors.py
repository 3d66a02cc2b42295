"""Errors of the proxy.

    ProxyError                  status   reason (the label of shoal_proxy_rejections_total)
      InvalidRequest            400      invalid
      Unauthenticated           401      unauthenticated
      Forbidden                 403      forbidden
      NotFound                  404      invalid
      RequestTimeout            408      invalid
      BodyTooLarge              413      body_too_large
        PaddingTooLarge         413      body_too_large
      UnsupportedMediaType      415      invalid
        UnsupportedCoding       415      invalid
      LimitReached              429      limit
      HeadTooLarge              431      invalid
      NotImplementedHere        501      invalid
      VersionNotSupported       505      invalid
      RowsFailed                the first failing row's
      ModelFailed               500      -
        BatchTooLarge           500      -
      IssuerAway                503      unauthenticated
      Overloaded                503      queue_rows, queue_bytes, late, connections
      Draining                  503      draining
      RuntimeAway               503      runtime_away
        NotExecuted             503      runtime_away
          UnknownHost           503      runtime_away
        RuntimeLost             503      runtime_away
      DeadlineExceeded          504      deadline
      StepFailed                the step's own

Each carries the status of its HTTP answer; the codecs give it the shape of the caller's protocol. ``may_have_run``
tells that the model may have seen the request all the same: whoever sends it again must know.
"""

from collections.abc import Sequence

from shoal_schema.metrics import Rejection
from shoal_schema.wire.row_errors import RowError

MOST_WORDS = 4096
"""Characters of a step's message that are passed on."""
_PERHAPS = "; the request may have been executed"


class ProxyError(Exception):
    """Base of everything that becomes an error answer."""

    status = 500
    reason: Rejection | None = None
    retry_after_s: int | None = None
    may_have_run = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(ProxyError):
    """The body breaks the protocol or the model's signature."""

    status = 400
    reason = Rejection.INVALID


class Unauthenticated(ProxyError):
    """Nobody knows who calls: no key, or one that is not ours."""

    status = 401
    reason = Rejection.UNAUTHENTICATED


class Forbidden(ProxyError):
    """Who calls is known, and may not."""

    status = 403
    reason = Rejection.FORBIDDEN


class NotFound(ProxyError):
    """No such model or version here."""

    status = 404
    reason = Rejection.INVALID


class RequestTimeout(ProxyError):
    """The request did not arrive whole in time."""

    status = 408
    reason = Rejection.INVALID


class BodyTooLarge(ProxyError):
    """The body is over the limit; reading has stopped."""

    status = 413
    reason = Rejection.BODY_TOO_LARGE


class PaddingTooLarge(BodyTooLarge):
    """The body is small, but what its rows would be padded to is not."""


class UnsupportedMediaType(ProxyError):
    """The model takes no body of this media type."""

    status = 415
    reason = Rejection.INVALID


class UnsupportedCoding(UnsupportedMediaType):
    """The body is compressed in a way that is not unpacked here."""


class LimitReached(ProxyError):
    """The caller asks for more than its own share, however much is free."""

    status = 429
    reason = Rejection.LIMIT

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HeadTooLarge(ProxyError):
    """The request line and headers are over the limit; reading has stopped."""

    status = 431
    reason = Rejection.INVALID


class NotImplementedHere(ProxyError):
    """The request is HTTP, but needs what this server does not have."""

    status = 501
    reason = Rejection.INVALID


class VersionNotSupported(ProxyError):
    """The request is of another version of HTTP."""

    status = 505
    reason = Rejection.INVALID


class RowsFailed(ProxyError):
    """Some rows of a request failed on their own; the others of the batch did not."""

    may_have_run = True

    def __init__(self, errors: Sequence[RowError]) -> None:
        first = errors[0]
        super().__init__(f"row {first.row}: {first.message}")
        self.status = first.status
        self.errors = tuple(errors)


class ModelFailed(ProxyError):
    """The model raised, or the runtime broke its contract."""

    may_have_run = True


class BatchTooLarge(ModelFailed):
    """The runtime's memory is too small for this batch; a smaller one may pass."""


class Overloaded(ProxyError):
    """Something is full, by the count that ``reason`` names, or the queue so long that the answer would be late."""

    status = 503

    def __init__(self, message: str, *, reason: Rejection, retry_after_s: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class IssuerAway(ProxyError):
    """The keys that a token is checked with could not be fetched yet."""

    status = 503
    reason = Rejection.UNAUTHENTICATED
    retry_after_s = 1


class Draining(ProxyError):
    """This replica is about to stop."""

    status = 503
    reason = Rejection.DRAINING
    retry_after_s = 1


class ServiceGone(ProxyError):
    """The service that a waiting room held requests for is no more; trying again is of no use soon."""

    status = 503
    reason = Rejection.DRAINING


class RuntimeAway(ProxyError):
    """The model runtime is not connected or not ready."""

    status = 503
    reason = Rejection.RUNTIME_AWAY
    retry_after_s = 1


class NotExecuted(RuntimeAway):
    """The runtime did not begin with this batch."""


class UnknownHost(NotExecuted):
    """Nobody knows a server of that name."""


class RuntimeLost(RuntimeAway):
    """The runtime went away with this batch, or says no more than that; nobody knows whether it ran."""

    may_have_run = True


class DeadlineExceeded(ProxyError):
    """The caller's deadline passed before the answer came."""

    status = 504
    reason = Rejection.DEADLINE


class StepFailed(ProxyError):
    """A step of a graph failed: its model did, or refused, or cannot be reached."""

    unfit = False
    """Its answer is not what the model says that it gives."""

    def __init__(
        self, step: str, error: ProxyError, status: int | None = None, retry_after_s: int | None = None
    ) -> None:
        # What its own proxy has said of it, ours says of the whole request.
        super().__init__(f"step {step}: {error.message.removesuffix(_PERHAPS)[:MOST_WORDS]}")
        self.status = _as_of_graph(error.status if status is None else status)
        self.reason = error.reason
        self.retry_after_s = error.retry_after_s if retry_after_s is None else retry_after_s
        if self.status == 503 and self.retry_after_s is None:
            self.retry_after_s = 1
        self.may_have_run = error.may_have_run


def _as_of_graph(status: int) -> int:
    """Return a step's status as that of the graph: a model that is gone is no path that its caller got wrong."""
    if status == 404:
        return 503
    return status if 400 <= status <= 599 else 500


class PerhapsExecuted(ProxyError):
    """``error``, in the words for a caller whose rows the model may have seen."""

    may_have_run = True

    def __init__(self, error: ProxyError) -> None:
        super().__init__(error.message + _PERHAPS)
        self.status = error.status
        self.reason = error.reason
        self.retry_after_s = error.retry_after_s
