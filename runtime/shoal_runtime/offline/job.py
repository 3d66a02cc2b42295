"""A job, from its settings to its end: what it is, what of it is done, and who does the rest."""

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

from shoal_runtime.offline.answers import answer_schema, kept_columns, told
from shoal_runtime.offline.dispatch import Dispatch
from shoal_runtime.offline.engine import Engine, EngineEnded
from shoal_runtime.offline.errors import JobError, ShardError, WrongSettings
from shoal_runtime.offline.finding import find_columns
from shoal_runtime.offline.inputs import Rows, make_rows, take
from shoal_runtime.offline.mapping import check_extra, check_kinds, mapped_columns, required_columns
from shoal_runtime.offline.metadata import tensors
from shoal_runtime.offline.partitions import partitions_above
from shoal_runtime.offline.places import Place, open_input, open_outputs
from shoal_runtime.offline.progress import Shown, Tally, listen
from shoal_runtime.offline.reading import Budget, Reader, all_columns
from shoal_runtime.offline.records import FAILED_OF, PLAN, Plan, Record, difference, lease_name, record_name
from shoal_runtime.offline.schemas import Found
from shoal_runtime.offline.scoring import Scoring, Signature, Writer, check_errors
from shoal_runtime.offline.settings import JobSettings
from shoal_runtime.offline.shards import File, Shard, cut, format_of, named, own_order, readable
from shoal_runtime.offline.sharing import part_of_the_machine, seen_gpus
from shoal_runtime.offline.sizing import best_size, expected_s, next_trial
from shoal_runtime.offline.tables import FILES, Source
from shoal_runtime.offline.where import columns_of, compiled
from shoal_runtime.offline.writing import Destination
from shoal_runtime.threads import core_limit
from shoal_schema.progress import Done
from shoal_schema.resource.offline import RowFormat
from shoal_schema.wire.engine import Batch, Failed, Ready

READERS: Final = 8
USUAL_ROWS: Final = 32
"""Of a server that does not say how many it takes."""

logger = logging.getLogger(__name__)


class Job:
    """One job; `run` does what is left of it."""

    def __init__(self, settings: JobSettings, environment: Mapping[str, str]) -> None:
        process = settings.process
        self.settings = self._settings = settings
        self.tally = Tally()
        gpus = seen_gpus(environment, os.listdir("/dev"))
        cores = min(len(os.sched_getaffinity(0)), core_limit() or sys.maxsize)
        self._engines = [
            Engine(part_of_the_machine(environment, each, process.engines, gpus=gpus, cores=cores), process.engine)
            for each in range(process.engines)
        ]
        self._budget = Budget(process.ahead_bytes)
        self._input: Place
        self.plan: Plan

    def run(self) -> None:
        """Do what is left of the job.

        Raises:
            JobError: why it could not be done, or not whole.
        """
        settings = self._settings
        self._place, self._failures = open_outputs(settings.output.uri, settings.errors_uri)
        self._input, files = open_input(settings.input.uri, self._written_to())
        kind = format_of(files, settings.input.format)
        if settings.process.progress_listen is not None:
            listen(settings.process.progress_listen, self.tally)
        keep_apart(self._place, self._failures)
        with ExitStack() as stack:
            stack.callback(self._stop)
            for place in self._written_to():
                place.sweep()
            ready = self._engines[0].start()
            self._run(files, kind, ready)

    def _stop(self) -> None:
        for engine in self._engines:
            engine.stop()
        for place in self._written_to():
            place.leave()

    def _written_to(self) -> list[Place]:
        return [self._place] if self._failures is None else [self._place, self._failures]

    def _run(self, files: list[File], kind: RowFormat, ready: Ready) -> None:
        settings = self._settings
        self._inputs, self._outputs = tensors(ready.metadata["inputs"]), tensors(ready.metadata["outputs"])
        output = self._place
        begun = output.read(PLAN)
        found = (
            find_columns(self._input, files, kind) if begun is None else Found(_schema(_begun(begun, output).schema))
        )
        known = found.schema
        columns = mapped_columns(self._inputs, settings.input.columns, known)
        check_kinds(self._inputs, columns, known)
        kept = kept_columns(known, settings.output.keep, columns, self._outputs)
        where = columns_of(settings.input.where, known)
        needed = all_columns(columns, kept.values(), where)
        check_extra(settings.model.extra_columns, known, _meant(columns, settings.output.keep, kept, where, kind))
        required = required_columns(self._inputs, columns, known)
        check_found(found, needed, required)
        self._source = Source(
            self._input,
            kind,
            pa.schema([known.field(name) for name in needed]),
            compiled(settings.input.where, known),
            required=required,
            prefix=partitions_above(self._input.shown, [each.path for each in files]),
        )
        self._columns = columns
        shards = cut(files, kind, settings.job.shard_bytes)
        asked = self._planned(files, kind, known, kept, ready)
        self.plan = agree(output, begun, asked, lambda: self._best_size(shards, ready))
        if begun is None and self.plan.schema != asked.schema:
            # Another worker was first, and read a file that could not be read here, or the other way round.
            self._run(files, kind, ready)
            return
        self._schema = answer_schema(known, kept, self._outputs)
        self._destination = Destination(output, self._failures, settings.output.format, self._schema)
        left = self._left(shards)
        if left:
            self._score(left, kept, ready)
        self._judge()

    def _planned(
        self, files: list[File], kind: RowFormat, known: pa.Schema, kept: Mapping[str, str], ready: Ready
    ) -> Plan:
        settings = self._settings
        return Plan(
            input=readable(settings.input.uri),
            files=named(files),
            format=kind.value,
            columns=self._columns,
            where=settings.input.where,
            keep=told(kept),
            errors=settings.output.errors,
            output_format=settings.output.format.value,
            shard_bytes=settings.job.shard_bytes,
            model=ready.model,
            settings=ready.settings,
            schema=base64.b64encode(known.serialize().to_pybytes()).decode(),
            batch_size=settings.job.batch_size or 0,
        )

    def _best_size(self, shards: list[Shard], ready: Ready) -> int:
        """Return how many rows a forward takes best, tried on the first rows that there are."""
        known = ready.metadata.get("parameters", {})
        if self._settings.process.engine or "allowed_batch_sizes" in known:
            return int(known.get("max_batch_size", USUAL_ROWS))
        rows = self._first_rows(shards)
        good = rows.good if rows is not None else np.array([], np.int64)
        if rows is None or not len(good):
            return int(known.get("max_batch_size", 1))
        order = good[rows.sizes[good].argsort(kind="stable")]
        seconds: dict[int, float | None] = {}
        while (count := next_trial(seconds, len(good))) is not None:
            start = (len(order) - count) // 2
            inputs = take(rows, order[start : start + count], self._inputs)
            seconds[count] = self._timed(inputs, count, expected_s(count, seconds))
        found = best_size(seconds, len(good))
        logger.info("event=batch_size_found rows=%d tried=%s", found, ",".join(map(str, seconds)))
        return found

    def _first_rows(self, shards: list[Shard]) -> Rows | None:
        for shard in shards[:READERS]:
            with suppress(ShardError):  # reported when its turn comes
                for window in self._source.windows(shard, 1):
                    return make_rows(window, self._inputs, self._columns)
        return None

    def _timed(self, inputs: Mapping[str, Any], rows: int, expected_s: float) -> float | None:
        """Return how long a batch takes, the second time if the first takes longer; None where it cannot be done."""
        engine = self._engines[0]
        seconds = math.inf
        for number in (-2, -1):
            if seconds <= expected_s:
                break
            begun_s = time.monotonic()
            try:
                engine.send(Batch(number, inputs, rows))
                if isinstance(engine.receive(), Failed):
                    return None
            except EngineEnded:
                engine.start()
                return None
            seconds = min(seconds, time.monotonic() - begun_s)
        return seconds

    def _left(self, shards: list[Shard]) -> list[Shard]:
        """Return the shards that are not done, in our order, and count what is."""
        tally = self.tally
        with ThreadPoolExecutor(READERS, "records") as pool:
            records = list(pool.map(lambda each: self._place.read(record_name(each.name)), shards))
        for shard, text in zip(shards, records, strict=True):
            tally.shards_total += 1
            tally.bytes_total += shard.size_bytes
            if text is not None:
                record = _recorded(text, shard, self._place)
                if record.validator != shard.validator:
                    raise WrongSettings(_changed(shard, self._place))
                self._found(record, Done(1, record.rows, record.failed, shard.size_bytes))
        done = {shard.name for shard, text in zip(shards, records, strict=True) if text is not None}
        process = self._settings.process
        return [each for each in own_order(shards, process.worker, process.workers) if each.name not in done]

    def _found(self, record: Record, done: Done) -> None:
        """Count what is done already, by whom."""
        tally, process = self.tally, self._settings.process
        tally.errors.update(record.errors)
        if not process.run or record.run != process.run:
            tally.before += done
        elif record.worker == process.worker:
            tally.resumed += done
        else:
            tally.siblings += done

    def _claim(self, shard: Shard) -> bool:
        """Return whether a shard is ours to do: nobody has done it, nor has another worker of this run taken it."""
        process = self._settings.process
        if process.workers == 1:
            return True
        if self._place.read(record_name(shard.name)) is not None:
            return False
        lease, me = lease_name(shard.name, process.run), str(process.worker).encode()
        return self._place.put_new(lease, me) or self._place.read(lease) == me

    def _score(self, left: list[Shard], kept: Mapping[str, str], ready: Ready) -> None:
        reader = Reader(self._source, self._inputs, self._columns, list(kept.values()), self._claim, self._budget)
        scoring = Scoring(
            self._engines,
            Dispatch(self.plan.batch_size, ready.in_flight),
            Signature(self._inputs, self._outputs, self._schema),
            self.tally,
            self._settings.max_error_share,
        )
        writer = Writer(self._destination, self._place, self._record, self._budget, scoring.tell)
        shown = Shown(self.tally)
        try:
            scoring.run(lambda: reader.run(left, self.plan.batch_size, scoring.tell), writer, shown.update)
        finally:
            shown.close()

    def _record(self, shard: Shard, rows: int, failed: int, errors: Sequence[str], batch_size: int) -> Record:
        paths = [readable(each.path) for each in shard.files]
        where = {"files": paths, "start": shard.start, "stop": shard.stop}
        process = self._settings.process
        return Record(
            shard.name,
            where,
            shard.validator,
            rows,
            failed,
            errors,
            self.plan.model,
            batch_size,
            run=process.run,
            worker=process.worker,
        )

    def _judge(self) -> None:
        """Raise why the job is not done, or not well.

        Raises:
            JobError: shards cannot be read, or too many rows failed.
        """
        tally = self.tally
        if tally.broken:
            raise JobError(
                f"{len(tally.broken)} of {tally.shards_total} shards could not be done, first: {tally.broken[0]}. All"
                " others are: put it right, and run the job again"
            )
        check_errors(tally, self._settings.max_error_share, ended=True)


def check_found(found: Found, needed: Sequence[str], required: Sequence[str]) -> None:
    """Refuse files that do not go together, before the first row.

    Raises:
        WrongSettings: a column that is needed has no type that holds what all files have, or one has no such column.
    """
    if said := next((found.conflicts[name] for name in needed if name in found.conflicts), None):
        raise WrongSettings(said)
    if name := next((name for name in required if name in found.missing), None):
        raise WrongSettings(f"{found.missing[name]} has no column {name}, which the model reads: others have it")


def _meant(
    columns: Mapping[str, Sequence[str]],
    asked: Sequence[str] | None,
    kept: Mapping[str, str],
    where: Sequence[str],
    kind: RowFormat,
) -> list[str]:
    """Return the columns that are no extra ones: those that the model reads, and those that a user names."""
    read = [name for names in columns.values() for name in names]
    own = FILES.names if kind is RowFormat.FILES else []
    return [*read, *where, *(kept.values() if asked is not None else ()), *own]


def keep_apart(output: Place, failures: Place | None) -> None:
    """Refuse a folder that holds what another job wrote: files would take each other's names.

    Raises:
        WrongSettings: one does.
    """
    if whose := output.read(FAILED_OF):
        raise WrongSettings(f"{output.shown} holds rows that failed of {whose.decode()}: name another --output")
    me = output.shown.encode()
    if failures and (failures.read(PLAN) or not (failures.put_new(FAILED_OF, me) or failures.read(FAILED_OF) == me)):
        raise WrongSettings(f"{failures.shown} belongs to another job: name another folder for the rows that failed")


def agree(output: Place, begun: bytes | None, asked: Plan, best_size: Callable[[], int]) -> Plan:
    """Return the plan that all go by: the one that is there, or ours, if we are the first.

    Args:
        output: where it is.
        begun: what was there when we looked.
        asked: ours; without a batch size, where none was asked for.
        best_size: finds one.

    Raises:
        WrongSettings: what was begun there is something else.
    """
    if begun is None:
        ours = asked if asked.batch_size else replace(asked, batch_size=best_size())
        if output.put_new(PLAN, ours.encoded()):
            return ours
        begun = output.read(PLAN)
    plan = _begun(begun or b"", output)
    # Another worker may have found another size, and was first: it is as good.
    if said := difference(plan, asked if asked.batch_size else replace(asked, batch_size=plan.batch_size)):
        raise WrongSettings(
            f"{output.shown} holds answers of another job: {said}. Give this one another --output, or ask for the same"
            " as before to go on with that"
        )
    return plan


def _schema(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))


def _begun(text: bytes, output: Place) -> Plan:
    """Return the plan that is there.

    Raises:
        WrongSettings: it is none.
    """
    try:
        return Plan.decoded(text)
    except ValueError as error:
        raise WrongSettings(f"{PLAN} of {output.shown} is no plan of a job: {error}; name another --output") from None


def _recorded(text: bytes, shard: Shard, output: Place) -> Record:
    try:
        return Record.decoded(text)
    except (ValueError, TypeError) as error:
        name = record_name(shard.name)
        raise WrongSettings(
            f"{name} of {output.shown} is no record: {error}; remove it, and run the job again"
        ) from None


def _changed(shard: Shard, output: Place) -> str:
    first, count = readable(shard.files[0].path), len(shard.files)
    which = first if count == 1 else f"one of the {count} files from {first} on"
    return (
        f"{which} has changed since its rows were scored ({shard.name} of {output.shown}): name another --output, or"
        " give it back as it was"
    )
