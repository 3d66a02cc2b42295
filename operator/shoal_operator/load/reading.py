"""What became of asking one pod for its load, and why nothing is known of a service's."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from shoal_operator.planning.evidence import Unread
from shoal_schema.load import MAX_BYTES, Load

_DECODER = msgspec.json.Decoder(Load)


class LoadError(ValueError):
    """What was answered is not the load of a proxy; the message says why."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What one proxy says.

    Args:
        load: None where it says nothing.
        refused: there was an answer, and no proxy gives such a one.
    """

    load: Load | None = None
    refused: bool = field(default=False, compare=False)

    @property
    def attainable(self) -> bool | None:
        """Whether a request alone would meet the latency objective; None where it does not say."""
        return None if self.load is None else self.load.objective_attainable


def read_load(body: bytes) -> Load:
    """Return the load that a body tells.

    Raises:
        LoadError: it tells none that a proxy can have.
    """
    if len(body) > MAX_BYTES:
        raise LoadError(f"more than {MAX_BYTES} bytes")
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(str(error)) from None


def unread(readings: Sequence[Reading]) -> Unread | None:
    """Return why no pod says how much it holds, or None where one does."""
    if any(reading.load is not None for reading in readings):
        return None
    if not readings:
        return Unread.NO_READY_POD
    return Unread.REFUSED if any(reading.refused for reading in readings) else Unread.UNREACHABLE
