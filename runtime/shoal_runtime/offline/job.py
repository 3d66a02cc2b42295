"""One batch job: agree on a plan, find the finished shards, score the others."""

import base64
import logging
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from shoal_runtime.execution.threads import core_limit
from shoal_runtime.offline.column_discovery import find_columns
from shoal_runtime.offline.directories import Directory, open_input, open_outputs
from shoal_runtime.offline.dispatch import BatchDispatcher, best_size, expected_s, next_trial
from shoal_runtime.offline.engine import EngineEnded, EngineProcess
from shoal_runtime.offline.errors import InvalidSettings, JobError, ShardError
from shoal_runtime.offline.inputs import InputRows, batch_of_rows, make_rows
from shoal_runtime.offline.mapping import check_extra, check_kinds, mapped_columns, required_columns, tensors
from shoal_runtime.offline.partitions import partitions_above
from shoal_runtime.offline.progress import JobTally, ProgressDisplay, serve_progress
from shoal_runtime.offline.reading import ByteBudget, ShardReader, all_columns
from shoal_runtime.offline.records import FAILED_OF, PLAN, JobPlan, ShardRecord, difference, lease_name, record_name
from shoal_runtime.offline.results import keep_options, kept_columns, result_schema
from shoal_runtime.offline.row_filter import columns_of, compiled
from shoal_runtime.offline.schemas import InputSchema
from shoal_runtime.offline.scoring import ResultWriter, ShardScorer, TensorSignature, check_errors
from shoal_runtime.offline.settings import JobSettings, part_of_the_machine, seen_gpus
from shoal_runtime.offline.shards import InputFile, Shard, cut, format_of, named, own_order, readable
from shoal_runtime.offline.tables import FILES, TableSource
from shoal_runtime.offline.writing import OutputWriter
from shoal_schema.interfaces.progress import WorkDone
from shoal_schema.resource.offline import RowFormat
from shoal_schema.wire.engine_messages import BatchFailed, EngineBatch, EngineReady

READERS: Final = 8
USUAL_ROWS: Final = 32
"""Batch size of an engine that does not state its own."""

logger = logging.getLogger(__name__)


class Job:
    """A batch job; `run` scores the shards that are not finished."""

    def __init__(self, settings: JobSettings, environment: Mapping[str, str]) -> None:
        process = settings.process
        self.settings = self._settings = settings
        self.tally = JobTally()
        gpus = seen_gpus(environment, os.listdir("/dev"))
        cores = min(len(os.sched_getaffinity(0)), core_limit() or sys.maxsize)
        self._engines = [
            EngineProcess(
                part_of_the_machine(environment, each, process.engines, gpus=gpus, cores=cores), process.engine
            )
            for each in range(process.engines)
        ]
        self._budget = ByteBudget(process.ahead_bytes)
        self._input: Directory
        self.plan: JobPlan

    def run(self) -> None:
        """Score all unfinished shards of the job.

        Raises:
            JobError: the job failed, or part of the rows could not be scored.
        """
        settings = self._settings
        self._place, self._failures = open_outputs(settings.output.uri, settings.errors_uri)
        outputs = [self._place] if self._failures is None else [self._place, self._failures]
        self._input, files = open_input(settings.input.uri, outputs)
        kind = format_of(files, settings.input.format)
        if settings.process.progress_listen is not None:
            serve_progress(settings.process.progress_listen, self.tally)
        # Checked before the model is loaded, which may take minutes.
        check_output_is_own(self._place, self._failures)
        with ExitStack() as stack:
            for place in outputs:
                stack.callback(place.leave)
            for engine in self._engines:
                stack.callback(engine.stop)
            for place in outputs:
                place.sweep()
            # The first engine describes the model; the others start when rows are read.
            ready = self._engines[0].start()
            self._run(files, kind, ready)

    def _run(self, files: list[InputFile], kind: RowFormat, ready: EngineReady) -> None:
        settings = self._settings
        self._inputs, self._outputs = tensors(ready.metadata["inputs"]), tensors(ready.metadata["outputs"])
        output = self._place
        begun = output.read(PLAN)
        # A job that was begun keeps its schema, so that later files do not change the results' types.
        found = (
            find_columns(self._input, files, kind) if begun is None else InputSchema(_decoded_plan(begun, output).arrow)
        )
        schema = found.schema
        columns = mapped_columns(self._inputs, settings.input.columns, schema)
        check_kinds(self._inputs, columns, schema)
        kept = kept_columns(schema, settings.output.keep, columns, self._outputs)
        where = columns_of(settings.input.where, schema)
        needed = all_columns(columns, kept.values(), where)
        # A column is extra if neither the model nor the user names it.
        named_columns = [name for names in columns.values() for name in names] + where
        named_columns += kept.values() if settings.output.keep is not None else ()
        named_columns += FILES.names if kind is RowFormat.FILES else ()
        check_extra(settings.model.extra_columns, schema, named_columns)
        # Every file must have these, also those that could not be read yet.
        required = required_columns(self._inputs, columns, schema)
        check_found(found, needed, required)
        self._source = TableSource(
            self._input,
            kind,
            pa.schema([schema.field(name) for name in needed]),
            compiled(settings.input.where, schema),
            required=required,
            prefix=partitions_above(self._input.shown, [each.path for each in files]),
        )
        self._columns = columns
        shards = cut(files, kind, settings.job.shard_bytes)
        planned = JobPlan(
            input=readable(settings.input.uri),
            files=named(files),
            format=kind.value,
            columns=columns,
            where=settings.input.where,
            keep=keep_options(kept),
            errors=settings.output.errors,
            output_format=settings.output.format.value,
            shard_bytes=settings.job.shard_bytes,
            model=ready.model,
            settings=ready.settings,
            schema=base64.b64encode(schema.serialize().to_pybytes()).decode(),
            batch_size=settings.job.batch_size or 0,
        )
        self.plan = agree_on_plan(output, begun, planned, lambda: self._best_size(shards, ready))
        if begun is None and self.plan.schema != planned.schema:
            # Another worker began the job first, and could read other files than this one: use its schema.
            self._run(files, kind, ready)
            return
        self._score(shards, kept, ready)

    def _best_size(self, shards: list[Shard], ready: EngineReady) -> int:
        """Return the batch size with the highest throughput, measured on the first rows of the input."""
        parameters = ready.metadata.get("parameters", {})
        if self._settings.process.engine or "allowed_batch_sizes" in parameters:
            return int(parameters.get("max_batch_size", USUAL_ROWS))
        rows = self._first_rows(shards)
        good = rows.good if rows is not None else np.array([], np.int64)
        if rows is None or not len(good):
            return int(parameters.get("max_batch_size", 1))
        # Rows of medium length stand in the middle of the order, and are tried.
        order = good[rows.sizes[good].argsort(kind="stable")]
        seconds: dict[int, float | None] = {}
        while (count := next_trial(seconds, len(good))) is not None:
            start = (len(order) - count) // 2
            inputs = batch_of_rows(rows, order[start : start + count], self._inputs)
            seconds[count] = self._timed(inputs, count, expected_s(count, seconds))
        size = best_size(seconds, len(good))
        logger.info("event=batch_size_found rows=%d tried=%s", size, ",".join(map(str, seconds)))
        return size

    def _first_rows(self, shards: list[Shard]) -> InputRows | None:
        for shard in shards[:READERS]:
            with suppress(ShardError):  # reported when the shard is read
                for window in self._source.windows(shard, 1):
                    return make_rows(window, self._inputs, self._columns)
        return None

    def _timed(self, inputs: Mapping[str, Any], rows: int, expected_s: float) -> float | None:
        """Measure the time (s) of a batch; None if the batch fails.

        A batch that takes longer than ``expected_s`` runs twice, and the shorter time counts.
        """
        engine = self._engines[0]
        seconds = math.inf
        # Negative numbers: batches of the job count from 1.
        for number in (-2, -1):
            if seconds <= expected_s:
                break
            begun_s = time.monotonic()
            try:
                engine.send(EngineBatch(number, inputs, rows))
                if isinstance(engine.receive(), BatchFailed):
                    return None
            except EngineEnded:
                engine.start()
                return None
            seconds = min(seconds, time.monotonic() - begun_s)
        return seconds

    def _remaining(self, shards: list[Shard]) -> list[Shard]:
        """Return the unfinished shards in this worker's order.

        The finished shards are added to the tally.
        """
        tally, process = self.tally, self._settings.process
        with ThreadPoolExecutor(READERS, "records") as pool:
            records = list(pool.map(lambda each: self._place.read(record_name(each.name)), shards))
        done = set()
        for shard, text in zip(shards, records, strict=True):
            tally.shards_total += 1
            tally.bytes_total += shard.size_bytes
            if text is None:
                continue
            record = _checked_record(text, shard, self._place)
            done.add(shard.name)
            tally.errors.update(record.errors)
            found = WorkDone(1, record.rows, record.failed, shard.size_bytes)
            if not process.run or record.run != process.run:
                tally.before += found
            elif record.worker == process.worker:
                tally.resumed += found
            else:
                tally.siblings += found
        return [each for each in own_order(shards, process.worker, process.workers) if each.name not in done]

    def _claim(self, shard: Shard) -> bool:
        """Claim a shard for this worker.

        Returns: False if the shard is done or another worker has claimed it.
        """
        process = self._settings.process
        if process.workers == 1:
            return True
        if self._place.read(record_name(shard.name)) is not None:
            return False
        # Each run has leases of its own, so those of an earlier run do not block it.
        lease, me = lease_name(shard.name, process.run), str(process.worker).encode()
        # A restarted worker finds its own lease.
        return self._place.put_new(lease, me) or self._place.read(lease) == me

    def _score(self, shards: list[Shard], kept: Mapping[str, str], ready: EngineReady) -> None:
        """Score the unfinished shards.

        Raises:
            JobError: a shard cannot be read, or too many rows failed.
        """
        settings, tally = self._settings, self.tally
        schema = result_schema(self._source.schema, kept, self._outputs)
        destination = OutputWriter(self._place, self._failures, settings.output.format, schema)
        if remaining := self._remaining(shards):
            scoring = ShardScorer(
                self._engines,
                BatchDispatcher(self.plan.batch_size, ready.in_flight),
                TensorSignature(self._inputs, self._outputs, schema),
                tally,
                settings.max_error_share,
            )
            reader = ShardReader(
                self._source, self._inputs, self._columns, list(kept.values()), self._claim, self._budget
            )
            writer = ResultWriter(destination, self._place, self._record, self._budget, scoring.report)
            shown = ProgressDisplay(tally)
            try:
                scoring.run(lambda: reader.run(remaining, self.plan.batch_size, scoring.report), writer, shown.update)
            finally:
                shown.close()
        if tally.broken:
            raise JobError(
                f"{len(tally.broken)} of {tally.shards_total} shards failed; the first error is: "
                f"{tally.broken[0]}. All other shards are complete. Correct the cause and run the job again"
            )
        check_errors(tally, settings.max_error_share, ended=True)

    def _record(self, shard: Shard, rows: int, failed: int, errors: Sequence[str], batch_size: int) -> ShardRecord:
        paths = [readable(each.path) for each in shard.files]
        process = self._settings.process
        return ShardRecord(
            shard.name,
            {"files": paths, "start": shard.start, "stop": shard.stop},
            shard.validator,
            rows,
            failed,
            errors,
            self.plan.model,
            batch_size,
            run=process.run,
            worker=process.worker,
        )


def check_found(found: InputSchema, needed: Sequence[str], required: Sequence[str]) -> None:
    """Reject an input whose files have conflicting or missing columns.

    Raises:
        InvalidSettings: no type can hold the values of a needed column, or a file does not have a required column.
    """
    if conflict := next((found.conflicts[name] for name in needed if name in found.conflicts), None):
        raise InvalidSettings(conflict)
    if name := next((name for name in required if name in found.missing), None):
        raise InvalidSettings(
            f"{found.missing[name]} has no column {name}, which the model reads, although other files have it"
        )


def check_output_is_own(output: Directory, failures: Directory | None) -> None:
    """Reject output directories that belong to another job, whose files might be replaced.

    Raises:
        InvalidSettings: a directory belongs to another job.
    """
    if owner := output.read(FAILED_OF):
        raise InvalidSettings(f"{output.shown} holds failed rows of {owner.decode()}. Give another --output")
    me = output.shown.encode()
    if failures and (failures.read(PLAN) or not (failures.put_new(FAILED_OF, me) or failures.read(FAILED_OF) == me)):
        raise InvalidSettings(f"{failures.shown} belongs to another job. Give --errors another directory")


def agree_on_plan(output: Directory, begun: bytes | None, planned: JobPlan, best_size: Callable[[], int]) -> JobPlan:
    """Return the plan that all workers use.

    It is the recorded plan, or ``planned`` if none is recorded yet.

    Args:
        output: directory of the results and of the recorded plan.
        begun: recorded plan; None if there was none when the job started.
        planned: plan of this worker; its batch size is 0 unless the user set one.
        best_size: function that finds the batch size.

    Raises:
        InvalidSettings: the recorded plan belongs to another job.
    """
    if begun is None:
        first = planned if planned.batch_size else replace(planned, batch_size=best_size())
        if output.put_new(PLAN, first.encoded()):
            return first
        begun = output.read(PLAN)
    plan = _decoded_plan(begun or b"", output)
    # The first worker's batch size is as good as this one's.
    if changed := difference(plan, planned if planned.batch_size else replace(planned, batch_size=plan.batch_size)):
        raise InvalidSettings(
            f"{output.shown} holds results of another job: {changed}. Give another --output, or the same settings as"
            " before to resume that job"
        )
    return plan


def _decoded_plan(text: bytes, output: Directory) -> JobPlan:
    try:
        return JobPlan.decoded(text)
    except ValueError as error:
        raise InvalidSettings(
            f"{PLAN} of {output.shown} is not a plan of a job: {error}. Give another --output"
        ) from None


def _checked_record(text: bytes, shard: Shard, output: Directory) -> ShardRecord:
    """Return the record of a finished shard, after a check that its files have not changed.

    Raises:
        InvalidSettings: the files have changed, or the text is not a record.
    """
    try:
        record = ShardRecord.decoded(text)
    except (ValueError, TypeError) as error:
        name = record_name(shard.name)
        raise InvalidSettings(
            f"{name} of {output.shown} is not a record: {error}. Remove it, and run the job again"
        ) from None
    if record.validator != shard.validator:
        first, count = readable(shard.files[0].path), len(shard.files)
        which = first if count == 1 else f"one of the {count} files that begin with {first}"
        raise InvalidSettings(
            f"{which} has changed since its rows were scored ({shard.name} of {output.shown}). Give another --output,"
            " or restore the file"
        )
    return record
