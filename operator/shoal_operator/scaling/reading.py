"""The reading of one pod's load, and the reason if a service's load is unknown."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from shoal_operator.scaling.report import NoLoad
from shoal_schema.interfaces.load import MAX_BYTES, Load

_DECODER = msgspec.json.Decoder(Load)


class LoadError(ValueError):
    """A pod's response is not a valid load; the message states the reason."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Result of one request for a pod's load."""

    load: Load | None = None
    """None without a valid response."""
    invalid: bool = field(default=False, compare=False)
    """The response was invalid."""

    @property
    def attainable(self) -> bool | None:
        """Whether a single request would meet the latency objective; None if not reported."""
        return None if self.load is None else self.load.objective_attainable


def read_load(body: bytes) -> Load:
    """Decode the JSON of a pod's load.

    Raises:
        LoadError: the body is invalid, or a value is out of range.
    """
    if len(body) > MAX_BYTES:
        raise LoadError(f"more than {MAX_BYTES} bytes")
    try:
        return _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(str(error)) from None


def no_load_reason(readings: Sequence[Reading]) -> NoLoad | None:
    """Return why a service's load is unknown; None if any pod was read."""
    if any(reading.load is not None for reading in readings):
        return None
    if not readings:
        return NoLoad.NO_READY_POD
    # An invalid response is more specific than a missing one.
    return NoLoad.REFUSED if any(reading.invalid for reading in readings) else NoLoad.UNREACHABLE
