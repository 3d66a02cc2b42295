"""Webhooks of finished jobs: signatures (Standard Webhooks 1.0.0), headers, and the schedule of tries."""

import hmac
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable, Mapping, Sequence
from email.utils import mktime_tz, parsedate_tz
from typing import Final, NamedTuple

from shoal_schema.interfaces.headers import EXECUTED, HEADER_LENGTH, REQUEST_ID, REVISION, STATUS, TRACEPARENT

KEY_PREFIX: Final = b"whsec_"
KEY_BYTES: Final = range(24, 65)
"""Sizes of keys that the specification allows."""
MAX_KEYS: Final = 8
GONE: Final = 410
_SENT_LINES: Final = frozenset(
    name.encode() for name in ("content-encoding", EXECUTED, HEADER_LENGTH, REQUEST_ID, REVISION, TRACEPARENT)
)
"""Headers of the stored response that describe its body or its request."""


class RetrySchedule(NamedTuple):
    """When tries follow a failed one."""

    max_tries: int = 10
    first_pause_s: float = 2.0
    factor: float = 3.0
    max_pause_s: float = 600.0
    """Longest pause between tries, except for a longer ``Retry-After``."""
    max_age_s: float = 3600.0
    """Time from the first try after which no other one starts."""

    def next_try_s(
        self, tries: int, first_s: float, now_s: float, requested_s: float, random: Callable[[], float]
    ) -> float | None:
        """Return when to try again after a failure; None if the last try was made.

        Args:
            tries: tries made so far, at least 1.
            first_s: start of the first try, monotonic seconds.
            now_s: the time, monotonic seconds.
            requested_s: the pause that the receiver requests.
            random: returns numbers from 0 to 1.
        """
        if tries >= self.max_tries:
            return None
        pause_s = min(self.max_pause_s, self.first_pause_s * self.factor ** (tries - 1))
        # Half of the pause is random, so that tries that failed together do not return together.
        next_s = now_s + max(requested_s, pause_s * (0.5 + 0.5 * random()))
        return next_s if next_s - first_s <= self.max_age_s else None


def parse_keys(text: bytes) -> tuple[bytes, ...]:
    """Return the keys in a text, one per line as ``whsec_`` and base64.

    Raises:
        ValueError: there is no key, or one is malformed. The message holds no key.
    """
    keys = []
    for number, line in enumerate(text.split(), 1):
        try:
            key = b64decode(line.removeprefix(KEY_PREFIX), validate=True)
        except NotBase64:
            key = b""
        if not line.startswith(KEY_PREFIX) or len(key) not in KEY_BYTES:
            raise ValueError(f"key {number} must be `whsec_` and 24 to 64 bytes in base64")
        keys.append(key)
    if not 1 <= len(keys) <= MAX_KEYS:
        raise ValueError(f"there are {len(keys)} keys; expected 1 to {MAX_KEYS}")
    return tuple(keys)


def sign(keys: Sequence[bytes], message_id: str, timestamp_s: int, body: Sequence[bytes | memoryview]) -> str:
    """Return the value of ``webhook-signature``: one signature for each key.

    Args:
        keys: the current key, and earlier ones while they are replaced.
        message_id: the value of ``webhook-id``, without a dot.
        timestamp_s: the value of ``webhook-timestamp``, in seconds since 1970.
        body: the request's body in pieces.
    """
    signatures = []
    for key in keys:
        code = hmac.new(key, f"{message_id}.{timestamp_s}.".encode(), "sha256")
        for piece in body:
            code.update(piece)
        signatures.append(f"v1,{b64encode(code.digest()).decode()}")
    return " ".join(signatures)


def webhook_headers(message_id: str, timestamp_s: int, signature: str, status: int) -> list[tuple[bytes, bytes]]:
    """Return the headers of one try that the specification and Shoal add."""
    return [
        (b"webhook-id", message_id.encode()),
        (b"webhook-timestamp", b"%d" % timestamp_s),
        (b"webhook-signature", signature.encode()),
        (STATUS.encode(), b"%d" % status),
    ]


def described_by(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers that a webhook repeats from the stored response; names are in lower case."""
    return [(name, value) for name, value in headers if name in _SENT_LINES]


def is_delivered(status: int) -> bool:
    """Return whether the receiver's status means that it accepted the webhook."""
    return 200 <= status <= 299


def requested_pause_s(headers: Mapping[bytes, bytes], wall_s: float) -> float:
    """Return the pause that ``Retry-After`` requests; 0 if it is missing or malformed.

    Args:
        headers: the receiver's response headers, by name in lower case.
        wall_s: the time in seconds since 1970.
    """
    value = headers.get(b"retry-after", b"").decode("latin-1").strip()
    if value.isdecimal() and value.isascii():
        return float(value[:9])
    date = parsedate_tz(value) if value else None
    if date is None:
        return 0.0
    try:
        return max(0.0, mktime_tz(date) - wall_s)
    except (OverflowError, ValueError):
        return 0.0
