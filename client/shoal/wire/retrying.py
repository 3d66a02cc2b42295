"""Decide whether a failed request is retried, and after what pause.

failure                                    retried
no connection was made                     yes
429, 502, 503 and "not executed"           yes
the same, but possibly executed            only with ``retry_executed``, or for GET
the connection broke                       only with ``retry_executed``, or for GET
any other                                  no: it would fail again, or the time is over
"""

from shoal.errors import ConnectionFailed, Overloaded, ShoalError, Unavailable

MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0


def may_retry(error: ShoalError, *, repeatable: bool) -> bool:
    """Return whether a request that failed with ``error`` may be retried.

    ``repeatable`` states that the request may run twice.
    """
    return isinstance(error, ConnectionFailed | Overloaded | Unavailable) and (repeatable or not error.may_have_run)


def pause_s(error: ShoalError, attempt: int, jitter: float) -> float:
    """Return how long to wait before the next attempt.

    Args:
        error: the error of the last attempt; its ``Retry-After`` is the minimum.
        attempt: number of the last attempt, from 0.
        jitter: random, 0 to 1, so that clients that were rejected together do not retry together.
    """
    # Full jitter on top of the server's minimum.
    least_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
    return least_s + jitter * min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2.0 ** min(attempt, 16))
