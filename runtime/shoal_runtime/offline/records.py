"""Records of a job beside its results: the plan, and a record of each finished shard. Pure.

OUTPUT/part-00000.parquet         results of a shard
OUTPUT/_shoal/plan.json           plan of the job; a run with other settings is rejected
OUTPUT/_shoal/part-00000.json     record of a finished shard, written after its results
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson
import pyarrow as pa

DIRECTORY: Final = "_shoal"
PLAN: Final = f"{DIRECTORY}/plan.json"
FAILED_OF: Final = f"{DIRECTORY}/failed-rows-of"
"""Beside failed rows: the output that they belong to."""
RECORDED_ERRORS: Final = 5

_NAMES: Final = {
    "input": "input",
    "files": "set of the input's files",
    "format": "input format",
    "columns": "--columns",
    "where": "--where",
    "keep": "--keep",
    "errors": "--errors",
    "output_format": "output format",
    "shard_bytes": "shard size (shardBytes)",
    "batch_size": "--batch-size",
    "model": "model",
    "settings": "settings of the model",
}


@dataclass(frozen=True, slots=True)
class JobPlan:
    """Plan of a job: the settings that determine its results."""

    input: str
    """Address of the input."""
    files: str
    """Number and digest of the files' names; their contents are checked shard by shard."""
    format: str
    """Format of the input."""
    columns: Mapping[str, Sequence[str]]
    """Columns of the model's inputs."""
    where: str | None
    """Filter of the rows."""
    keep: Sequence[str]
    """Columns beside the results."""
    errors: str
    """Location of failed rows."""
    output_format: str
    """Format of the results."""
    shard_bytes: int
    """Size of a shard."""
    model: str
    """Digest of the model's files."""
    settings: Mapping[str, Any]
    """Other settings that change the model's results."""
    schema: str
    """Schema of the input: Arrow's own form in base64."""
    batch_size: int
    """Rows of a forward."""

    @property
    def arrow(self) -> pa.Schema:
        """Return the schema of the input's rows."""
        return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(self.schema)))

    def encoded(self) -> bytes:
        """Return the plan as JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"

    @classmethod
    def decoded(cls, text: bytes) -> Self:
        """Parse a plan from JSON.

        Raises:
            ValueError: the text is not a plan.
        """
        # Unknown or missing fields are a TypeError here.
        try:
            return cls(**orjson.loads(text))
        except TypeError as error:
            raise ValueError(str(error)) from None


def difference(begun: JobPlan, planned: JobPlan) -> str | None:
    """Describe the first difference between two plans; None if they are equal."""
    was, now = orjson.loads(begun.encoded()), orjson.loads(planned.encoded())
    for key, label in _NAMES.items():
        name, old, new = label, was[key], now[key]
        if old == new:
            continue
        if isinstance(old, dict) and isinstance(new, dict):
            inner = next(inner for inner in sorted({*old, *new}) if old.get(inner) != new.get(inner))
            name, old, new = f"{name} ({inner})", old.get(inner), new.get(inner)
        return f"{name} was {_shown(old)} and is {_shown(new)}"
    return None


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True)
class ShardRecord:
    """Record of a finished shard: its files, row counts and errors."""

    shard: str
    """Name of the shard."""
    input: Mapping[str, Any]
    """Its files, first byte and the byte after the last."""
    validator: str
    """Changes when the files do."""
    rows: int
    failed: int
    """Rows without a result."""
    errors: Sequence[str]
    """The first distinct errors of rows."""
    model: str
    """Digest of the model's files."""
    batch_size: int
    """Rows of a forward; fewer where memory ran out."""
    run: str = ""
    """Run of the job in a cluster."""
    worker: int = 0
    """Worker of the run."""

    @property
    def name(self) -> str:
        """Return the path of the record's file below the output directory."""
        return record_name(self.shard)

    def encoded(self) -> bytes:
        """Return the record as JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"

    @classmethod
    def decoded(cls, text: bytes) -> Self:
        """Parse a record from JSON."""
        return cls(**orjson.loads(text))


def record_name(shard: str) -> str:
    """Return the path of a shard's record below the output directory."""
    return f"{DIRECTORY}/{shard}.json"


def lease_name(shard: str, run: str) -> str:
    """Return the path of a shard's lease, the file that names the worker of ``run`` that claimed the shard."""
    return f"{DIRECTORY}/leases/{run or 'run'}/{shard}"
