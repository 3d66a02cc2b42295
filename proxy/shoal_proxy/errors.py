"""Errors of the proxy.

    ProxyError                  status   reason (the label of shoal_proxy_rejections_total)
      InvalidRequest            400      invalid
      Unauthenticated           401      unauthenticated
      Forbidden                 403      forbidden
      NotFound                  404      invalid
      RequestTimeout            408      invalid
      Conflict                  409      invalid
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
      CrashesRuntime            500      -
      IssuerUnavailable         503      unauthenticated
      WebhooksUnavailable       503      -
      StoreUnavailable          503      -
      Overloaded                503      queue_rows, queue_bytes, late, connections
      Draining                  503      draining
      RuntimeUnavailable        503      runtime_away
        NotExecuted             503      runtime_away
          UnknownHost           503      runtime_away
        RuntimeBusy             503      runtime_away
        RuntimeLost             503      runtime_away
      DeadlineExceeded          504      deadline
        ResultMissing           504      deadline
      StepFailed                the step's own

Each has the status of its HTTP response; the codecs encode it in the client's protocol. ``may_have_run`` states that
the model may have run the request, which a client must know before it retries.
"""

from collections.abc import Sequence

from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.wire.row_errors import RowError

MAX_WORDS = 4096
"""Most characters of a step's message in the graph's error."""
_PERHAPS = "; the request may have been executed"


class ProxyError(Exception):
    """Base of all errors that become an error response."""

    status = 500
    reason: RejectionReason | None = None
    retry_after_s: int | None = None
    may_have_run = False

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InvalidRequest(ProxyError):
    """The body violates the protocol or the model's signature."""

    status = 400
    reason = RejectionReason.INVALID


class Unauthenticated(ProxyError):
    """The request has no key, or an unknown key."""

    status = 401
    reason = RejectionReason.UNAUTHENTICATED


class Forbidden(ProxyError):
    """The client is authenticated, but not allowed to use the model."""

    status = 403
    reason = RejectionReason.FORBIDDEN


class NotFound(ProxyError):
    """The model, version or path does not exist."""

    status = 404
    reason = RejectionReason.INVALID


class RequestTimeout(ProxyError):
    """The request was not received completely in time."""

    status = 408
    reason = RejectionReason.INVALID


class Conflict(ProxyError):
    """The id of an asynchronous request is in use."""

    status = 409
    reason = RejectionReason.INVALID


class BodyTooLarge(ProxyError):
    """The body exceeds its size limit; the proxy stopped reading it."""

    status = 413
    reason = RejectionReason.BODY_TOO_LARGE


class PaddingTooLarge(BodyTooLarge):
    """The padded rows exceed the size limit of a body."""


class UnsupportedMediaType(ProxyError):
    """The model does not accept bodies of this media type."""

    status = 415
    reason = RejectionReason.INVALID


class UnsupportedCoding(UnsupportedMediaType):
    """The body has an unsupported content coding."""


class LimitReached(ProxyError):
    """The client exceeds its own limit, whatever the free capacity."""

    status = 429
    reason = RejectionReason.LIMIT

    def __init__(self, message: str, *, retry_after_s: int) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class HeadTooLarge(ProxyError):
    """The request line and headers exceed the limit; reading has stopped."""

    status = 431
    reason = RejectionReason.INVALID


class NotImplementedHere(ProxyError):
    """The request needs a feature that this server does not have."""

    status = 501
    reason = RejectionReason.INVALID


class VersionNotSupported(ProxyError):
    """The request uses an unsupported version of HTTP."""

    status = 505
    reason = RejectionReason.INVALID


class RowsFailed(ProxyError):
    """Some rows of a request failed; the other rows of its batch did not."""

    may_have_run = True

    def __init__(self, errors: Sequence[RowError]) -> None:
        first = errors[0]
        super().__init__(f"row {first.row}: {first.message}")
        self.status = first.status
        self.errors = tuple(errors)


class ModelFailed(ProxyError):
    """The model raised an error, or the runtime violated the protocol."""

    may_have_run = True


class BatchTooLarge(ModelFailed):
    """The batch exceeds the runtime's memory; a smaller batch may succeed."""


class CrashesRuntime(ProxyError):
    """The request's rows ended the runtime repeatedly, so it does not run again for a while."""


class Overloaded(ProxyError):
    """A limit is reached, or the request would miss its deadline."""

    status = 503

    def __init__(self, message: str, *, reason: RejectionReason, retry_after_s: int) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after_s = retry_after_s


class IssuerUnavailable(ProxyError):
    """The token issuer's keys have not been fetched yet."""

    status = 503
    reason = RejectionReason.UNAUTHENTICATED
    retry_after_s = 1


class WebhooksUnavailable(ProxyError):
    """The keys that sign webhooks have not been read yet."""

    status = 503
    retry_after_s = 1


class StoreUnavailable(ProxyError):
    """The store of asynchronous requests failed."""

    status = 503
    retry_after_s = 1


class Draining(ProxyError):
    """This replica is draining."""

    status = 503
    reason = RejectionReason.DRAINING
    retry_after_s = 1


class ServiceGone(ProxyError):
    """The service for which the activator holds a request is gone.

    The activator holds requests while a service is scaled to zero. A retry does not help.
    """

    status = 503
    reason = RejectionReason.DRAINING


class RuntimeUnavailable(ProxyError):
    """The model runtime is not connected or not ready."""

    status = 503
    reason = RejectionReason.RUNTIME_AWAY
    retry_after_s = 1


class NotExecuted(RuntimeUnavailable):
    """The runtime did not start the batch."""


class UnknownHost(NotExecuted):
    """The host name of a server does not resolve."""


class RuntimeBusy(RuntimeUnavailable):
    """The runtime of another project responded with 429 or 503, and the batch may have run."""

    may_have_run = True


class RuntimeLost(RuntimeUnavailable):
    """The runtime's connection was lost during a batch, which may have run."""

    may_have_run = True


class DeadlineExceeded(ProxyError):
    """The deadline passed before the response."""

    status = 504
    reason = RejectionReason.DEADLINE


class ResultMissing(DeadlineExceeded):
    """The time for an asynchronous request has passed, and its result is nowhere."""

    may_have_run = True

    def __init__(self, job_id: str) -> None:
        super().__init__(
            f"the time for the asynchronous request {job_id} has passed, and no replica has its result: no replica was"
            " ready in time, or the result was lost or deleted"
        )


class StepFailed(ProxyError):
    """A step of a graph failed: its model failed, rejected the request, or is unreachable."""

    unfit = False
    """Whether the step's response does not match its model's signature."""

    def __init__(
        self, step: str, error: ProxyError, status: int | None = None, retry_after_s: int | None = None
    ) -> None:
        # `MaybeExecuted` adds the suffix for the whole request; the step's proxy may have added it already.
        super().__init__(f"step {step}: {error.message.removesuffix(_PERHAPS)[:MAX_WORDS]}")
        status = error.status if status is None else status
        if status == 404:
            # The client's path was right: the step's model is missing.
            self.status = 503
        else:
            self.status = status if 400 <= status <= 599 else 500
        self.reason = error.reason
        self.retry_after_s = error.retry_after_s if retry_after_s is None else retry_after_s
        if self.status == 503 and self.retry_after_s is None:
            self.retry_after_s = 1
        self.may_have_run = error.may_have_run


class MaybeExecuted(ProxyError):
    """Copy of an error whose message adds that the request may have run."""

    may_have_run = True

    def __init__(self, error: ProxyError) -> None:
        super().__init__(error.message + _PERHAPS)
        self.status = error.status
        self.reason = error.reason
        self.retry_after_s = error.retry_after_s
