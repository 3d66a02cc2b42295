"""Files of a shard's results: written window by window, and named once they are complete."""

import base64
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from shoal_runtime.offline.directories import Directory
from shoal_runtime.offline.errors import JobError
from shoal_runtime.offline.records import RECORDED_ERRORS
from shoal_runtime.offline.results import ERROR
from shoal_runtime.offline.schemas import permuted, plain
from shoal_schema.resource.offline import ResultFormat

SUFFIX: Final = {ResultFormat.PARQUET: ".parquet", ResultFormat.JSON_LINES: ".jsonl"}


class _Sink(Protocol):
    def write(self, table: pa.Table) -> None: ...
    def close(self) -> None: ...


@dataclass(slots=True)
class ShardWriter:
    """Writer of one shard's results."""

    results: Any
    failures: Any
    rows: int = 0
    failed: int = 0
    """Rows without a result."""
    errors: list[str] = field(default_factory=list)
    """The first distinct errors."""

    def write(self, table: pa.Table) -> None:
        """Write the results of a window; failed rows go to their own file if there is one."""
        errors = table.column(ERROR)
        self.rows += table.num_rows
        self.failed += table.num_rows - errors.null_count
        if len(self.errors) < RECORDED_ERRORS and errors.null_count < table.num_rows:
            self.errors += [each for each in pc.unique(errors.drop_null()).to_pylist() if each not in self.errors]
            # The record of a shard names only the first distinct errors.
            del self.errors[RECORDED_ERRORS:]
        # Without a directory of their own, failed rows stand among the results with their errors.
        if self.failures is None:
            self.results.write(table)
            return
        good = pc.is_null(errors)
        self.results.write(table.filter(good).drop_columns([ERROR]))
        self.failures.write(table.filter(pc.invert(good)))


class OutputWriter:
    """Writer of the files of results and failed rows.

    Args:
        place: directory of results.
        failures: directory of failed rows; None if they are written among the results.
        form: format of the files.
        schema: schema of the results, including the column of errors.
    """

    def __init__(self, place: Directory, failures: Directory | None, form: ResultFormat, schema: pa.Schema) -> None:
        self._place = place
        self._failures = failures
        self._form = form
        self._schema = schema

    @contextmanager
    def part(self, shard: str) -> Iterator[ShardWriter]:
        """Yield a writer for the results of one shard.

        The shard's files appear at exit. After an exception they do not appear.
        """
        name = f"{shard}{SUFFIX[self._form]}"
        with ExitStack() as stack:
            if self._failures is None:
                yield ShardWriter(self._open(stack, self._place, name, self._schema), None)
                return
            without = self._schema.remove(self._schema.get_field_index(ERROR))
            # Entered first, so that it is renamed last: results appear only once their failed rows have.
            results = self._open(stack, self._place, name, without)
            yield ShardWriter(results, self._open(stack, self._failures, name, self._schema))

    def _open(self, stack: ExitStack, place: Directory, name: str, schema: pa.Schema) -> _Sink:
        path = stack.enter_context(place.writing(name))
        if self._form is ResultFormat.JSON_LINES:
            lines = _Lines(path.open("wb"))
            stack.callback(lines.close)
            return lines
        writer: Any = parquet.ParquetWriter(path, schema, compression="zstd")
        sink: _Sink = stack.enter_context(closing(writer))
        return sink


class _Lines:
    """Writer of rows as JSON lines."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, table: pa.Table) -> None:
        """Write each row of a table as a JSON line; bytes become base64.

        Raises:
            JobError: a cell has no form in JSON.
        """
        for number, each in enumerate(table.schema):
            column = table.column(number)
            unit = getattr(each.type, "unit", None)
            if isinstance(each.type, pa.FixedShapeTensorType) and not permuted(each.type):
                # Arrow would give one list of all numbers instead of nested ones.
                table = table.set_column(number, each.name, plain(column))
            elif pa.types.is_timestamp(each.type) and unit == "ns":
                # Python's times have microseconds.
                texts = pc.replace_substring(column.cast(pa.string()), " ", "T", max_replacements=1)
                table = table.set_column(number, each.name, texts)
            elif (pa.types.is_duration(each.type) or pa.types.is_time64(each.type)) and unit == "ns":
                table = table.set_column(number, each.name, column.cast(pa.int64()))

        def encodable(value: Any) -> str:
            return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)

        try:
            for row in table.to_pylist():
                self._file.write(orjson.dumps(row, default=encodable, option=orjson.OPT_APPEND_NEWLINE))
        except (ValueError, TypeError, OverflowError) as error:
            raise JobError(
                f"a cell cannot be written as JSON: {error}. Leave its column out with --keep, or write Parquet"
            ) from error

    def close(self) -> None:
        """Flush buffered lines and close the file."""
        self._file.close()
