"""What a batch program and the process that computes for it tell each other, over a socket that both inherit.

They are of one machine and one user, and trust each other: messages are pickled, so that arrays go as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shoal_schema.wire.datatypes import Array

OUT_OF_MEMORY = "OUT_OF_MEMORY"
"""Of a batch that failed: half as many rows may pass."""


@dataclass(frozen=True, slots=True)
class Ready:
    """First: the model is loaded.

    Args:
        metadata: as of `GET /v2/models/NAME` (docs/reference/model-metadata.md).
        model: a digest of what it is; another one answers otherwise.
        settings: what else makes it answer as it does.
        in_flight: how many batches it wants to have at once.
    """

    metadata: Mapping[str, Any]
    model: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    in_flight: int = 3


@dataclass(frozen=True, slots=True)
class Refused:
    """Instead: the model cannot be loaded, or asked; it ends."""

    why: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows to compute; asked for by whoever reads them."""

    number: int
    inputs: Mapping[str, Array]
    rows: int


@dataclass(frozen=True, slots=True)
class Done:
    """What became of a batch: outputs of the rows that succeeded, in order, and the others' errors by place."""

    number: int
    outputs: Mapping[str, Array]
    errors: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class Failed:
    """A batch failed as a whole; which of its rows is to blame is found by trying fewer."""

    number: int
    code: str
    why: str


Told = Ready | Refused | Done | Failed
