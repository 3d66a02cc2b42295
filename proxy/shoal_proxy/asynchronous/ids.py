"""Ids of asynchronous requests that the activator has accepted.

The first 8 of their 32 hexadecimal digits are the request's deadline in seconds since 1970, and the others are random.
So any replica recognizes that an activator may still hold such a request, without a request to it.
"""

import re
from typing import Final

RANDOM_BYTES: Final = 12
_ID: Final = re.compile(r"[0-9a-f]{32}", re.ASCII)
_MAX_S: Final = 2**32 - 1


def activator_id(deadline_wall_s: float, randomness: bytes) -> str:
    """Return a new id.

    Args:
        deadline_wall_s: the request's deadline, in seconds since 1970.
        randomness: `RANDOM_BYTES` random bytes.
    """
    return f"{min(int(deadline_wall_s) + 1, _MAX_S):08x}{randomness.hex()}"


def is_activator_id(text: str) -> bool:
    """Return whether a text has the form of such an id."""
    return _ID.fullmatch(text) is not None


def is_overdue(job_id: str, wall_s: float, result_s: float) -> bool:
    """Return whether the time of an activator's request has passed, but not the time to fetch its result.

    Args:
        job_id: the id.
        wall_s: the time in seconds since 1970.
        result_s: time (s) that a result is kept.
    """
    return is_activator_id(job_id) and 0 <= wall_s - int(job_id[:8], 16) < result_s


def may_be_held(job_id: str, wall_s: float) -> bool:
    """Return whether an activator may hold the request with an id that no replica has.

    Args:
        job_id: the id.
        wall_s: the time in seconds since 1970.
    """
    return is_activator_id(job_id) and int(job_id[:8], 16) > wall_s
