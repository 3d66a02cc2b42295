"""Whether a call that failed is sent again, and after what pause.

failure                                    sent again
no connection was made                     yes
429, 503, 502 and "not executed"           yes
the same, but it may have been executed    only with ``retry_executed``, or if the call only reads
the connection broke                       only with ``retry_executed``, or if the call only reads
anything else                              no: it would fail again, or there is no time left
"""

from shoal.errors import ConnectionFailed, Overloaded, ShoalError, Unavailable

MIN_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0


def may_retry(error: ShoalError, *, repeatable: bool) -> bool:
    """Return whether a call that ended with ``error`` may be sent again; ``repeatable``: executing it twice is fine."""
    return isinstance(error, ConnectionFailed | Overloaded | Unavailable) and (repeatable or not error.may_have_run)


def pause_s(error: ShoalError, attempt: int, jitter: float) -> float:
    """Return how long to wait before the next attempt.

    Args:
        error: what the last attempt met; the server's ``Retry-After`` is the least.
        attempt: how many were made before that one.
        jitter: 0 to 1, at random, so that callers who were refused together do not come back together.
    """
    least_s = error.retry_after_s if isinstance(error, Overloaded) else 0.0
    return least_s + jitter * min(MAX_BACKOFF_S, MIN_BACKOFF_S * 2.0 ** min(attempt, 16))
