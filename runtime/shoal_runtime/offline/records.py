"""What is written down of a job, beside its answers: the plan, once; of each shard, when it is done, its record. Pure.

OUTPUT/part-00000.parquet         the answers of a shard
OUTPUT/_shoal/plan.json           what the job is: whoever goes on with it must be asked for the same
OUTPUT/_shoal/part-00000.json     written last: the shard is done
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

import orjson

FOLDER: Final = "_shoal"
PLAN: Final = f"{FOLDER}/plan.json"
FAILED_OF: Final = f"{FOLDER}/failed-rows-of"
"""Beside rows that failed: whose they are."""
TOLD_ERRORS: Final = 5

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
class Plan:
    """What a job is.

    Args:
        input: its address.
        files: how many, and a digest of their names; what they hold is their shards' affair.
        format: how rows are stored.
        columns: the model's inputs and what they are made of.
        where: which rows.
        keep: columns beside the answers.
        errors: where failed rows go.
        output_format: how answers are stored.
        shard_bytes: size of a shard.
        model: digest of its files.
        settings: what else makes the model answer as it does.
        schema: of the input, as base64 of Arrow's own form.
        batch_size: rows of a forward.
    """

    input: str
    files: str
    format: str
    columns: Mapping[str, Sequence[str]]
    where: str | None
    keep: Sequence[str]
    errors: str
    output_format: str
    shard_bytes: int
    model: str
    settings: Mapping[str, Any]
    schema: str
    batch_size: int

    def encoded(self) -> bytes:
        """Return it as JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"

    @classmethod
    def decoded(cls, text: bytes) -> Self:
        """Return a plan from JSON.

        Raises:
            ValueError: it is none.
        """
        try:
            return cls(**orjson.loads(text))
        except TypeError as error:
            raise ValueError(str(error)) from None


def difference(begun: Plan, asked: Plan) -> str | None:
    """Return in words what of a job is not as it was when it was begun, or None."""
    was, now = orjson.loads(begun.encoded()), orjson.loads(asked.encoded())
    for key, name in _NAMES.items():
        if was[key] != now[key]:
            told = _change(was[key], now[key])
            return f"{name} {told}"
    return None


def _change(was: Any, now: Any) -> str:
    if isinstance(was, dict) and isinstance(now, dict):
        key = next(key for key in sorted({*was, *now}) if was.get(key) != now.get(key))
        return f"({key}) was {_shown(was.get(key))} and is {_shown(now.get(key))}"
    return f"was {_shown(was)} and is {_shown(now)}"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}..."


@dataclass(frozen=True, slots=True)
class Record:
    """What became of a shard.

    Args:
        shard: its name.
        input: its files, first byte and the one after the last.
        validator: changes when these files do.
        rows: how many it had.
        failed: how many of them have no answer.
        errors: the first of the reasons.
        model: digest of its files.
        batch_size: rows of a forward; fewer where memory ran out.
        run: of the job that did it, in a cluster.
        worker: of that run.
    """

    shard: str
    input: Mapping[str, Any]
    validator: str
    rows: int
    failed: int
    errors: Sequence[str]
    model: str
    batch_size: int
    run: str = ""
    worker: int = 0

    @property
    def name(self) -> str:
        """Return the name under which it is written."""
        return record_name(self.shard)

    def encoded(self) -> bytes:
        """Return it as JSON."""
        return orjson.dumps(asdict(self), option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"

    @classmethod
    def decoded(cls, text: bytes) -> Self:
        """Return a record from JSON."""
        return cls(**orjson.loads(text))


def record_name(shard: str) -> str:
    """Return the name of a shard's record."""
    return f"{FOLDER}/{shard}.json"


def lease_name(shard: str, run: str) -> str:
    """Return the name of what says who of a run's workers has taken a shard."""
    return f"{FOLDER}/leases/{run or 'run'}/{shard}"
