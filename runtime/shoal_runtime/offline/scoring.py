"""Event loop that sends batches of rows to engines and queues results for writing.

Other threads read, write, and receive from each engine. They report events through one queue to the loop, which alone
decides.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import pyarrow as pa

from shoal_runtime.offline.directories import Directory
from shoal_runtime.offline.dispatch import BatchDispatcher, WorkUnit, cut_batches
from shoal_runtime.offline.engine import EngineEnded, EngineProcess
from shoal_runtime.offline.errors import ShardError, TooManyErrors
from shoal_runtime.offline.inputs import InputRows, batch_of_rows, lengths
from shoal_runtime.offline.progress import JobTally, most_frequent
from shoal_runtime.offline.reading import ByteBudget, InputEnded, ShardEnded, ShardStarted, WindowRead
from shoal_runtime.offline.records import ShardRecord
from shoal_runtime.offline.results import WindowResults
from shoal_runtime.offline.shards import Shard
from shoal_runtime.offline.writing import OutputWriter
from shoal_runtime.signature.spec import TensorSpec
from shoal_schema.wire.engine_messages import BatchDone, BatchFailed, EngineBatch, EngineReady

FEW_ERRORS: Final = 10
"""Number of rows that may always fail, unless all rows fail."""
EARLY_ROWS: Final = 10_000
"""The share of failed rows is taken of at least so many rows before the end."""
QUEUED_TABLES: Final = 4
"""Tables that are complete and wait for the writer."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TensorSignature:
    """The model's inputs and outputs, and the schema of the results."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class _FromEngine:
    engine: int
    message: Any


@dataclass(frozen=True, slots=True)
class _EngineEnded:
    """Event: an engine process ended (``how``), or cannot be started (``error``)."""

    engine: int
    how: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Written:
    """Event: a shard is written, or reading or writing the shard failed with ``error``."""

    shard: Shard
    error: BaseException | None = None


@dataclass(slots=True)
class _Open:
    """A window whose rows are being scored, with the results so far."""

    read: WindowRead
    results: WindowResults


class _Recording(Protocol):
    def __call__(self, shard: Shard, rows: int, failed: int, errors: Sequence[str], batch_size: int) -> ShardRecord: ...


class ResultWriter:
    """Thread that writes results and records, one shard after another.

    Args:
        destination: writer of the result files.
        place: directory of the shards' records.
        record: function that makes the record of a shard.
        budget: memory budget, to which the bytes of written windows are returned.
        report: function that receives the outcome of each shard.
    """

    def __init__(
        self,
        destination: OutputWriter,
        place: Directory,
        record: _Recording,
        budget: ByteBudget,
        report: Callable[[Any], None],
    ) -> None:
        self._destination = destination
        self._place = place
        self._record = record
        self._budget = budget
        self._report = report
        self.batch_size = 0
        self.queued: queue.Queue[ShardStarted | ShardEnded | tuple[pa.Table, int] | None] = queue.Queue(QUEUED_TABLES)

    def run(self) -> None:
        """Write queued tables until the queue yields None."""
        while isinstance(begun := self.queued.get(), ShardStarted):
            try:
                with self._destination.part(begun.shard.name) as part:
                    while isinstance(item := self.queued.get(), tuple):
                        table, size_bytes = item
                        try:
                            part.write(table)
                        finally:
                            self._budget.release(size_bytes)
                    assert isinstance(item, ShardEnded)
                    if item.broken is not None:
                        raise ShardError(item.broken)
                # The record follows its results: a shard with a record is done.
                record = self._record(begun.shard, part.rows, part.failed, part.errors, self.batch_size)
                self._place.put(record.name, record.encoded())
                self._report(_Written(begun.shard))
            except ShardError as error:
                self._report(_Written(begun.shard, error))
            except BaseException as error:  # such as a full disk: the loop ends the job
                self._report(_Written(begun.shard, error))
                return


class ShardScorer:
    """Event loop that scores the rows of a job's shards with its engines."""

    def __init__(
        self,
        engines: Sequence[EngineProcess],
        dispatch: BatchDispatcher,
        signature: TensorSignature,
        tally: JobTally,
        max_error_share: float,
    ) -> None:
        self._engines = engines
        self._dispatch = dispatch
        self._signature = signature
        self._tally = tally
        self._max_error_share = max_error_share
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._windows: dict[int, _Open] = {}
        # What was read, in order: a window's number, or the begin or end of a shard.
        self._order: deque[ShardStarted | ShardEnded | int] = deque()
        self._up: set[int] = {0}
        self._numbers = 0
        self._all_read = False
        self._unwritten = 0
        # Bytes of the shard that is passed on, and of shards that are passed on and not written yet.
        self._passed_bytes = 0.0
        self._under_way_bytes: dict[str, float] = {}

    def report(self, event: Any) -> None:
        """Add an event to the loop's queue; callable from any thread."""
        self._events.put(event)

    def run(self, read: Callable[[], None], writer: ResultWriter, shown: Callable[[], None]) -> None:
        """Score all rows until the last shard is written.

        Args:
            read: runs the reader, in a thread of its own.
            writer: thread that writes the results.
            shown: updates the progress display, after each event.

        Raises:
            JobError: the job cannot continue.
        """
        self._writer = writer
        writer.batch_size = self._dispatch.limit
        self._tally.begun_s = time.monotonic()
        # The first engine has started already; the others start beside it.
        targets: list[Callable[[], None]] = [read, writer.run, partial(self._receive, 0)]
        targets += (partial(self._start, number) for number in range(1, len(self._engines)))
        for target in targets:
            threading.Thread(target=target, daemon=True).start()
        while not (self._all_read and self._dispatch.idle and not self._order and not self._unwritten):
            self._handle(self._events.get())
            self._feed()
            self._pass_on()
            shown()
        writer.queued.put(None)

    def _start(self, number: int) -> None:
        try:
            self._events.put(_FromEngine(number, self._engines[number].start()))
        except BaseException as error:
            self._events.put(_EngineEnded(number, "", error))
            return
        self._receive(number)

    def _receive(self, number: int) -> None:
        try:
            while True:
                self._events.put(_FromEngine(number, self._engines[number].receive()))
        except EngineEnded as ended:
            self._events.put(_EngineEnded(number, str(ended)))

    def _handle(self, event: Any) -> None:
        if isinstance(event, _FromEngine):
            self._on_message(event.engine, event.message)
        elif isinstance(event, WindowRead):
            self._numbers += 1
            rows = event.rows
            results = WindowResults(len(rows.keys), self._signature.outputs, rows.errors, lengths(rows))
            window = self._windows[self._numbers] = _Open(event, results)
            self._order.append(self._numbers)
            # Rows that cannot be read count as failed at once.
            self._add(window, len(rows.errors), rows.errors.values())
            batches = cut_batches(rows.keys, rows.sizes, rows.good, self._dispatch.limit)
            self._dispatch.enqueue(WorkUnit(self._numbers, batch) for batch in batches)
        elif isinstance(event, ShardStarted | ShardEnded):
            self._order.append(event)
        elif isinstance(event, _EngineEnded):
            if event.error is not None:
                raise event.error
            # No batches are sent to it until it reports Ready again.
            self._up.discard(event.engine)
            blamed = self._dispatch.engine_ended(event.engine)
            logger.warning("event=engine_ended engine=%d how=%s", event.engine, event.how)
            if blamed is not None:
                self._fail(blamed, f"the model's process {event.how} while it ran this row")
            threading.Thread(target=self._start, args=(event.engine,), daemon=True).start()
        elif isinstance(event, _Written):
            if isinstance(event.error, ShardError):
                # One unreadable shard does not stop the others.
                self._tally.broken.append(str(event.error))
                logger.error("event=shard_failed shard=%s why=%s", event.shard.name, event.error)
            elif event.error is not None:
                raise event.error
            else:
                self._tally.shards_done += 1
            self._unwritten -= 1
            self._tally.bytes_done += event.shard.size_bytes
            self._tally.bytes_under_way -= self._under_way_bytes.pop(event.shard.name, 0.0)
        elif isinstance(event, InputEnded):
            if event.error is not None:
                raise event.error
            self._all_read = True

    def _on_message(self, engine: int, message: Any) -> None:
        if isinstance(message, EngineReady):
            self._up.add(engine)
        elif isinstance(message, BatchDone):
            work = self._dispatch.complete(message.number)
            if work is not None:
                window = self._windows[work.window]
                self._add(window, len(work.rows), window.results.add(work.rows, message.outputs, message.errors))
        elif isinstance(message, BatchFailed):
            blamed = self._dispatch.fail(message.number, message.code)
            if blamed is not None:
                self._fail(blamed, message.why)

    def _fail(self, work: WorkUnit, why: str) -> None:
        window = self._windows[work.window]
        window.results.fail(work.rows, why)
        self._add(window, len(work.rows), [why] * len(work.rows))

    def _add(self, window: _Open, rows: int, errors: Collection[str]) -> None:
        self._tally.add(rows, errors, window.read.share_bytes * rows / window.results.rows)

    def _feed(self) -> None:
        """Send batches to all engines that accept more."""
        for number in sorted(self._up):
            while (taken := self._dispatch.next_batch(number)) is not None:
                batch, work = taken
                rows: InputRows = self._windows[work.window].read.rows
                try:
                    inputs = batch_of_rows(rows, work.rows, self._signature.inputs)
                except ValueError as error:  # no padding makes the rows one tensor
                    self._on_message(number, BatchFailed(batch, "", str(error)))
                    continue
                try:
                    self._engines[number].send(EngineBatch(batch, inputs, len(work.rows)))
                except EngineEnded:
                    break  # the thread that receives from it reports the end

    def _pass_on(self) -> None:
        """Queue complete windows for writing, in the order in which they were read."""
        while self._order:
            head = self._order[0]
            if isinstance(head, int):
                window = self._windows[head]
                if not window.results.complete:
                    return
                del self._windows[head]
                self._passed_bytes += window.read.share_bytes
                self._writer.batch_size = self._dispatch.limit
                table = window.results.table(window.read.kept, self._signature.schema)
                # Blocks while the writer is behind, which limits the memory of results.
                self._writer.queued.put((table, window.read.size_bytes))
                check_errors(self._tally, self._max_error_share)
            else:
                # A shard counts as unwritten from its begin until the writer reports it.
                self._unwritten += isinstance(head, ShardStarted)
                self._under_way_bytes[head.shard.name] = self._passed_bytes
                self._passed_bytes = 0.0
                self._writer.queued.put(head)
            self._order.popleft()


def check_errors(tally: JobTally, share: float, *, ended: bool = False) -> None:
    """Reject a job with too many failed rows.

    Args:
        tally: counts so far.
        share: share of rows that may fail, 0 to 1.
        ended: whether all rows are counted.

    Raises:
        TooManyErrors: more rows failed than allowed; the message lists the most frequent errors.
    """
    found = tally.found
    rows, failed = tally.rows + found.rows, tally.failed + found.failed_rows
    allowed = max(FEW_ERRORS, share * (rows if ended else max(rows, EARLY_ROWS)))
    if share >= 1 or failed == 0 or (failed <= allowed and not (ended and failed == rows)):
        return
    reasons = "; ".join(most_frequent(tally.errors))
    more = "" if ended else " so far"
    raise TooManyErrors(
        f"{failed:,} of {rows:,} rows failed{more}, more than --max-error-share {share:g} allows. Errors:"
        f" {reasons}. Correct the rows, or raise --max-error-share"
    )
