"""From rows that were read to answers that are written: one loop that is told of everything, and what it tells others.

Threads read, write, and listen to each engine; all that happens comes to the loop through one queue, and only the loop
decides.
"""

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import pyarrow as pa

from shoal_runtime.handlers.spec import TensorSpec
from shoal_runtime.offline.answers import Answers
from shoal_runtime.offline.dispatch import Dispatch, Work
from shoal_runtime.offline.engine import Engine, EngineEnded
from shoal_runtime.offline.errors import ShardError, TooManyErrors
from shoal_runtime.offline.inputs import Rows, lengths, take
from shoal_runtime.offline.places import Place
from shoal_runtime.offline.progress import Tally, first
from shoal_runtime.offline.reading import AllRead, Begun, Budget, Ended, Read
from shoal_runtime.offline.records import Record
from shoal_runtime.offline.shards import Shard
from shoal_runtime.offline.windows import cut_batches
from shoal_runtime.offline.writing import Destination, Part
from shoal_schema.wire.engine import Batch, Done, Failed, Ready

FEW_ERRORS: Final = 10
"""So many rows may fail whatever the share, unless all do."""
EARLY_ROWS: Final = 10_000
"""Of fewer rows nobody knows the share."""
WAITING_TABLES: Final = 4

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Signature:
    """What the model takes and gives, and the columns of the answers."""

    inputs: Sequence[TensorSpec]
    outputs: Sequence[TensorSpec]
    schema: pa.Schema


@dataclass(frozen=True, slots=True)
class _Told:
    """What an engine said."""

    engine: int
    message: Any


@dataclass(frozen=True, slots=True)
class _Over:
    """An engine ended, and how; or it cannot be started any more."""

    engine: int
    how: str
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class _Written:
    """A shard is done, or reading or writing it failed."""

    shard: Shard
    error: BaseException | None = None


@dataclass(slots=True)
class _Open:
    """A window that was read: its rows, and what is known of their answers."""

    read: Read
    answers: Answers


class _Recording(Protocol):
    def __call__(self, shard: Shard, rows: int, failed: int, errors: Sequence[str], batch_size: int) -> Record: ...


class Writer:
    """The thread that writes: what it is given, in order, shard after shard.

    Args:
        destination: of the answers.
        place: of the records.
        record: makes the record of a shard.
        budget: is given back what was written.
        tell: of what is done.
    """

    def __init__(
        self, destination: Destination, place: Place, record: _Recording, budget: Budget, tell: Callable[[Any], None]
    ) -> None:
        self._destination = destination
        self._place = place
        self._record = record
        self._budget = budget
        self._tell = tell
        self.batch_size = 0
        self.waiting: queue.Queue[Begun | Ended | tuple[pa.Table, int] | None] = queue.Queue(WAITING_TABLES)

    def run(self) -> None:
        """Write until there is no more."""
        while isinstance(begun := self.waiting.get(), Begun):
            try:
                with self._destination.part(begun.shard.name) as part:
                    self._fill(part)
                record = self._record(begun.shard, part.rows, part.failed, part.errors, self.batch_size)
                self._place.put(record.name, record.encoded())
                self._tell(_Written(begun.shard))
            except ShardError as error:
                self._tell(_Written(begun.shard, error))
            except BaseException as error:  # a full disk, a store that is away: the loop must hear of it
                self._tell(_Written(begun.shard, error))
                return

    def _fill(self, part: Part) -> None:
        while True:
            given = self.waiting.get()
            if isinstance(given, Ended):
                if given.broken is not None:
                    raise ShardError(given.broken)
                return
            assert isinstance(given, tuple)
            table, size_bytes = given
            try:
                part.write(table)
            finally:
                self._budget.give(size_bytes)


class Scoring:
    """The loop."""

    def __init__(
        self, engines: Sequence[Engine], dispatch: Dispatch, signature: Signature, tally: Tally, max_error_share: float
    ) -> None:
        self._engines = engines
        self._dispatch = dispatch
        self._signature = signature
        self._tally = tally
        self._max_error_share = max_error_share
        self._events: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._windows: dict[int, _Open] = {}
        self._order: deque[Begun | Ended | int] = deque()
        self._up: set[int] = {0}
        self._numbers = 0
        self._all_read = False
        self._unwritten = 0
        # Of the shard that is passed on, and of those that are passed and not written.
        self._passed_bytes = 0.0
        self._under_way_bytes: dict[str, float] = {}

    def tell(self, event: Any) -> None:
        """Say that something happened; from any thread."""
        self._events.put(event)

    def run(self, read: Callable[[], None], writer: Writer, shown: Callable[[], None]) -> None:
        """Score all that is read.

        Raises:
            JobError: nothing goes on.
        """
        self._writer = writer
        writer.batch_size = self._dispatch.limit
        self._tally.begun_s = time.monotonic()
        threads = [
            read,
            writer.run,
            lambda: self._listen(0),
            *(self._launching(n) for n in range(1, len(self._engines))),
        ]
        for target in threads:
            threading.Thread(target=target, daemon=True).start()
        while not (self._all_read and self._dispatch.idle and not self._order and not self._unwritten):
            self._take(self._events.get())
            self._feed()
            self._pass_on()
            shown()
        writer.waiting.put(None)

    def _launching(self, number: int) -> Callable[[], None]:
        return lambda: self._launch(number)

    def _launch(self, number: int) -> None:
        try:
            self._events.put(_Told(number, self._engines[number].start()))
        except BaseException as error:
            self._events.put(_Over(number, "", error))
            return
        self._listen(number)

    def _listen(self, number: int) -> None:
        try:
            while True:
                self._events.put(_Told(number, self._engines[number].receive()))
        except EngineEnded as ended:
            self._events.put(_Over(number, str(ended)))

    def _take(self, event: Any) -> None:
        if isinstance(event, _Told):
            self._heard(event.engine, event.message)
        elif isinstance(event, Read):
            self._open(event)
        elif isinstance(event, Begun | Ended):
            self._order.append(event)
        elif isinstance(event, _Over):
            self._ended(event)
        elif isinstance(event, _Written):
            self._count(event)
        elif isinstance(event, AllRead):
            if event.error is not None:
                raise event.error
            self._all_read = True

    def _open(self, read: Read) -> None:
        self._numbers += 1
        rows = read.rows
        answers = Answers(len(rows.keys), self._signature.outputs, rows.errors, lengths(rows))
        self._windows[self._numbers] = _Open(read, answers)
        self._order.append(self._numbers)
        self._add(self._windows[self._numbers], len(rows.errors), rows.errors.values())
        batches = cut_batches(rows.keys, rows.sizes, rows.good, self._dispatch.limit)
        self._dispatch.offer(Work(self._numbers, batch) for batch in batches)

    def _heard(self, engine: int, message: Any) -> None:
        if isinstance(message, Ready):
            self._up.add(engine)
        elif isinstance(message, Done):
            work = self._dispatch.done(message.number)
            if work is not None:
                window = self._windows[work.window]
                self._add(window, len(work.rows), window.answers.add(work.rows, message.outputs, message.errors))
        elif isinstance(message, Failed):
            blamed = self._dispatch.failed(message.number, message.code)
            if blamed is not None:
                self._fail(blamed, message.why)

    def _ended(self, over: _Over) -> None:
        """Find who is to blame for the end of an engine, and start it again."""
        if over.error is not None:
            raise over.error
        self._up.discard(over.engine)
        blamed = self._dispatch.ended(over.engine)
        logger.warning("event=engine_ended engine=%d how=%s", over.engine, over.how)
        if blamed is not None:
            self._fail(blamed, f"the model's process {over.how} while it ran this row")
        threading.Thread(target=self._launching(over.engine), daemon=True).start()

    def _fail(self, work: Work, why: str) -> None:
        window = self._windows[work.window]
        window.answers.fail(work.rows, why)
        self._add(window, len(work.rows), [why] * len(work.rows))

    def _add(self, window: _Open, rows: int, errors: Collection[str]) -> None:
        self._tally.add(rows, errors, window.read.share_bytes * rows / window.answers.rows)

    def _feed(self) -> None:
        """Give every engine what it may have."""
        for number in sorted(self._up):
            while (taken := self._dispatch.take(number)) is not None:
                batch, work = taken
                rows: Rows = self._windows[work.window].read.rows
                try:
                    inputs = take(rows, work.rows, self._signature.inputs)
                except ValueError as error:  # rows that no padding makes one tensor
                    self._heard(number, Failed(batch, "", str(error)))
                    continue
                try:
                    self._engines[number].send(Batch(batch, inputs, len(work.rows)))
                except EngineEnded:
                    break  # whoever listens to it tells how

    def _pass_on(self) -> None:
        """Hand on what is complete, in the order in which it was read."""
        while self._order:
            head = self._order[0]
            if isinstance(head, int):
                if not self._windows[head].answers.complete:
                    return
                self._write(self._windows.pop(head))
            else:
                self._unwritten += isinstance(head, Begun)
                self._under_way_bytes[head.shard.name] = self._passed_bytes
                self._passed_bytes = 0.0
                self._writer.waiting.put(head)
            self._order.popleft()

    def _write(self, window: _Open) -> None:
        self._passed_bytes += window.read.share_bytes
        self._writer.batch_size = self._dispatch.limit
        table = window.answers.table(window.read.kept, self._signature.schema)
        self._writer.waiting.put((table, window.read.size_bytes))
        check_errors(self._tally, self._max_error_share)

    def _count(self, written: _Written) -> None:
        if isinstance(written.error, ShardError):
            self._tally.broken.append(str(written.error))
            logger.error("event=shard_failed shard=%s why=%s", written.shard.name, written.error)
        elif written.error is not None:
            raise written.error
        else:
            self._tally.shards_done += 1
        self._unwritten -= 1
        self._tally.bytes_done += written.shard.size_bytes
        self._tally.bytes_under_way -= self._under_way_bytes.pop(written.shard.name, 0.0)


def check_errors(tally: Tally, share: float, *, ended: bool = False) -> None:
    """Raise where more rows failed than may.

    Raises:
        TooManyErrors: with the first of the reasons.
    """
    found = tally.found
    rows, failed = tally.rows + found.rows, tally.failed + found.failed_rows
    allowed = max(FEW_ERRORS, share * (rows if ended else max(rows, EARLY_ROWS)))
    if share >= 1 or failed == 0 or (failed <= allowed and not (ended and failed == rows)):
        return
    reasons = "; ".join(first(tally.errors))
    more = "" if ended else " so far"
    raise TooManyErrors(
        f"{failed:,} of {rows:,} rows failed{more}, more than --max-error-share {share:g} allows. They say: {reasons}."
        " Correct what they name, or let more of them fail"
    )
