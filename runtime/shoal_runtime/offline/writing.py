"""A shard's answers, written as they come, and named when all of them are there."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from shoal_runtime.offline.answers import ERROR
from shoal_runtime.offline.errors import JobError
from shoal_runtime.offline.kinds import permuted, plain
from shoal_runtime.offline.places import Place
from shoal_runtime.offline.records import TOLD_ERRORS
from shoal_schema.resource.offline import AnswerFormat

SUFFIX: Final = {AnswerFormat.PARQUET: ".parquet", AnswerFormat.JSON_LINES: ".jsonl"}


class _Sink(Protocol):
    def write(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class Part:
    """One shard's answers under way.

    Attributes:
        rows: so far.
        failed: of them, those without an answer.
        errors: the first of the reasons.
    """

    answers: Any
    failures: Any
    rows: int = 0
    failed: int = 0
    errors: list[str] = field(default_factory=list)

    def write(self, table: pa.Table) -> None:
        """Write a window's rows, those that failed where they belong."""
        said = table.column(ERROR)
        self.rows += table.num_rows
        self.failed += table.num_rows - said.null_count
        if len(self.errors) < TOLD_ERRORS and said.null_count < table.num_rows:
            self.errors += [each for each in pc.unique(said.drop_null()).to_pylist() if each not in self.errors]
            del self.errors[TOLD_ERRORS:]
        if self.failures is None:
            self.answers.write(table)
            return
        good = pc.is_null(said)
        self.answers.write(table.filter(good).drop_columns([ERROR]))
        self.failures.write(table.filter(pc.invert(good)))


class Destination:
    """Where answers go, and rows that failed.

    Args:
        place: of the answers.
        failures: of the rows that failed; None: they stand among the answers.
        form: how they are stored.
        schema: of the answers, with the column of errors.
    """

    def __init__(self, place: Place, failures: Place | None, form: AnswerFormat, schema: pa.Schema) -> None:
        self._place = place
        self._failures = failures
        self._form = form
        self._schema = schema

    @contextmanager
    def part(self, shard: str) -> Iterator[Part]:
        """Give what a shard's answers are written to; at its end they are there, or, of an exception, nothing is."""
        name = f"{shard}{SUFFIX[self._form]}"
        with ExitStack() as stack:
            if self._failures is None:
                yield Part(self._open(stack, self._place, name, self._schema), None)
                return
            without = self._schema.remove(self._schema.get_field_index(ERROR))
            # First, so that it is named last: answers are there only where what failed beside them is.
            answers = self._open(stack, self._place, name, without)
            yield Part(answers, self._open(stack, self._failures, name, self._schema))

    def _open(self, stack: ExitStack, place: Place, name: str, schema: pa.Schema) -> _Sink:
        path = stack.enter_context(place.writing(name))
        if self._form is AnswerFormat.JSON_LINES:
            lines = _Lines(path.open("wb"))
            stack.callback(lines.close)
            return lines
        writer: _Sink = stack.enter_context(_settled(parquet.ParquetWriter(path, schema, compression="zstd")))
        return writer


@contextmanager
def _settled(writer: Any) -> Iterator[Any]:
    with writer:
        yield writer


class _Lines:
    """Rows as lines of JSON."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        """Write each row as a line; bytes as base64.

        Raises:
            JobError: a cell cannot be written so.
        """
        try:
            for row in _without_nanoseconds(_as_lists(table)).to_pylist():
                self._file.write(orjson.dumps(row, default=_told, option=orjson.OPT_APPEND_NEWLINE))
        except (ValueError, TypeError, OverflowError) as error:
            raise JobError(
                f"a cell cannot be written as JSON: {error}; say with --keep which columns are to stand beside the"
                " answers, or write Parquet"
            ) from error

    def close(self) -> None:
        """Write what is held back."""
        self._file.close()


def _as_lists(table: pa.Table) -> pa.Table:
    """Return the table with its tensors as nested lists, where Arrow would make one of all their numbers."""
    for number, each in enumerate(table.schema):
        if isinstance(each.type, pa.FixedShapeTensorType) and not permuted(each.type):
            table = table.set_column(number, each.name, plain(table.column(number)))
    return table


def _without_nanoseconds(table: pa.Table) -> pa.Table:
    """Return the table with its finest times as texts: Python's times are of microseconds."""
    for number, each in enumerate(table.schema):
        if pa.types.is_timestamp(each.type) and each.type.unit == "ns":
            texts = pc.replace_substring(table.column(number).cast(pa.string()), " ", "T", max_replacements=1)
            table = table.set_column(number, each.name, texts)
        elif (pa.types.is_duration(each.type) or pa.types.is_time64(each.type)) and each.type.unit == "ns":
            table = table.set_column(number, each.name, table.column(number).cast(pa.int64()))
    return table


def _told(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
