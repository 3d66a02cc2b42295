"""Messages between a batch process and its engine process, over an inherited socket.

Both run as one user on one machine and trust each other, so messages are pickled, with arrays as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal_schema.wire.datatypes import Array

# The engine sends Ready or Refused once, then Done or Failed for each Batch.
OUT_OF_MEMORY = "OUT_OF_MEMORY"
"""Code of a failed batch that may succeed with half as many rows."""


@dataclass(frozen=True, slots=True)
class EngineReady:
    """First message of an engine that has loaded its model."""

    metadata: Mapping[str, Any]
    """As in `GET /v2/models/NAME` (docs/reference/model-metadata.md)."""
    model: str
    """Digest of the model's files."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that affect results."""
    in_flight: int = 3
    """Number of batches that the engine wants at once."""


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """First message of an engine that cannot start, and ends."""

    why: str


@dataclass(frozen=True, slots=True)
class EngineBatch:
    """A batch of rows to compute, from the batch process."""

    number: int
    inputs: Mapping[str, Array]
    rows: int


@dataclass(frozen=True, slots=True)
class BatchDone:
    """Result of a batch: outputs of the rows that succeeded, in order, and errors by row."""

    number: int
    outputs: Mapping[str, Array]
    errors: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class BatchFailed:
    """Failure of a whole batch; the batch process repeats it in smaller batches to find the row at fault."""

    number: int
    code: str
    why: str


Message = EngineReady | EngineFailed | BatchDone | BatchFailed
