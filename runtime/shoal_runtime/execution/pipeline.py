"""Pipeline of a batch through the stages preprocess, stage, forward and postprocess.

Several batches are in progress at once. Only the launch of `forward` needs the device's thread. Other stages run in a
thread pool, or on the event loop if they are short, so the next batch is prepared while the current one computes.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from shoal_runtime.batches.collate import collate, misfits
from shoal_runtime.batches.padding import count_rows, next_size, pad_rows
from shoal_runtime.errors import BatchError, DeviceLost, FailedRow, ForwardFailed, ItemError, OutOfMemory, TimedOut
from shoal_runtime.execution.executor import Executor
from shoal_runtime.execution.placement import Placement, is_out_of_memory
from shoal_runtime.faults import HANDLER_FAULTS, call_contained, describe, exception_message
from shoal_runtime.handlers.base import HandlerMethods
from shoal_runtime.handlers.calling import preprocess_rows
from shoal_runtime.handlers.items import tensor_batch, unreadable_rows, without_rows
from shoal_runtime.handlers.outputs import HostResult, OutputConverter, PendingResult
from shoal_runtime.signature.spec import Rule
from shoal_runtime.signature.tensors import Signature
from shoal_runtime.tensors.library import Library
from shoal_schema.wire.datatypes import Array

T = TypeVar("T")


class Timings:
    """Microseconds that a batch spent in each stage, and waiting (`queue_us`)."""

    __slots__ = ("forward_us", "postprocess_us", "preprocess_us", "queue_us")

    def __init__(self) -> None:
        self.queue_us = self.preprocess_us = self.forward_us = self.postprocess_us = 0


class BatchResult:
    """Result of a batch: outputs of successful rows and errors of the others, both in row order.

    ``padded_rows`` is the number of rows added to reach an allowed batch size.
    """

    __slots__ = ("errors", "outputs", "padded_rows", "timings")

    def __init__(
        self, outputs: Mapping[str, Array], errors: Sequence[FailedRow], timings: Timings, padded_rows: int
    ) -> None:
        self.outputs = outputs
        self.errors = errors
        self.timings = timings
        self.padded_rows = padded_rows


@dataclass(frozen=True)
class StageThreads:
    """Threads that run stages: the device's thread, and a pool for preprocess and postprocess."""

    executor: Executor
    pool: ThreadPoolExecutor
    threads: int


class _Prepared:
    """A batch that was copied to the device, ready for `forward`.

    ``given`` counts its rows including padding. ``rows`` lists the indices, in the received batch, of the rows that are
    not padding.
    """

    __slots__ = ("batch", "errors", "given", "rows")

    def __init__(self, batch: Any, rows: list[int], given: int, errors: list[FailedRow]) -> None:
        self.batch = batch
        self.rows = rows
        self.given = given
        self.errors = errors


class _Launched:
    """A batch whose forward was launched at `start_s`."""

    __slots__ = ("_classify", "_pending", "_start_s", "_timings", "ready")

    def __init__(
        self,
        pending: PendingResult,
        start_s: float,
        timings: Timings,
        classify: Callable[[BaseException, str], BatchError],
    ) -> None:
        self._pending = pending
        self._start_s = start_s
        self._timings = timings
        self._classify = classify
        self.ready = pending.fetch.ready

    def wait(self) -> HostResult:
        """Wait until the device has executed the batch, and return its result."""
        try:
            return self._pending.wait()
        except BatchError as error:
            error.executed = True
            raise
        except HANDLER_FAULTS as error:
            raise self._classify(error, "forward") from error
        finally:
            # The time since the launch includes the wait for the batch before.
            device_s = self._pending.fetch.device_s
            self._timings.forward_us = _micros(self._start_s) if device_s is None else int(device_s * 1e6)


class Pipeline:
    """Pipeline that runs batches with a handler; `on_lost` receives the reason when the device is lost."""

    def __init__(
        self,
        stages: HandlerMethods,
        signature: Signature,
        placement: Placement,
        lanes: StageThreads,
        on_lost: Callable[[str], None],
    ) -> None:
        self.signature = signature
        self._stages = stages
        self._placement = placement
        self._library = placement.library
        self._answers = OutputConverter(signature, stages.postprocess, placement.fetch, self._library)
        self._lanes = lanes
        self._on_lost = on_lost
        lists = not self._library.holds_text and all(spec.datatype == "BYTES" for spec in signature.inputs)
        self._per_row = stages.preprocess is not None or lists
        self._batch_dims = {} if stages.preprocess else {spec.name: spec.batch_dim for spec in signature.inputs}

    async def run(self, inputs: Mapping[str, Array], rows: int, *, deadline_s: float | None = None) -> BatchResult:
        """Run one batch through all stages.

        Args:
            inputs: arrays by input name.
            rows: number of rows.
            deadline_s: time until which `forward` must be launched, in monotonic seconds; None for no deadline.

        Raises:
            BatchError: the batch fails as a whole.
        """
        start = time.monotonic()
        timings = Timings()
        prepared = await self._prepare(inputs, rows, timings)
        # All rows were invalid: nothing reaches the device.
        if not prepared.rows:
            return BatchResult({}, prepared.errors, timings, 0)
        collected = await self._lanes.executor.launch(lambda: self._launch(prepared, timings, deadline_s))
        outputs, errors = await self._finish(prepared, collected, inputs, timings)
        spent = timings.preprocess_us + timings.forward_us + timings.postprocess_us
        # The rest of the time was spent waiting for a stage.
        timings.queue_us = max(0, _micros(start) - spent)
        padded = prepared.given - len(prepared.rows)
        if errors:
            errors = sorted(errors, key=lambda e: e.row)
        return BatchResult(outputs, errors, timings, padded)

    async def _prepare(self, inputs: Mapping[str, Array], rows: int, timings: Timings) -> _Prepared:
        # Tensors without preprocess go to the device as they came; all else is handled row by row.
        if not self._per_row:
            if self._placement.stages_off_loop:
                return await self._in_pool(lambda: self._place_tensors(inputs, rows, timings))
            return self._place_tensors(inputs, rows, timings)
        call = self._stages.preprocess
        if call is None:
            values = preprocess_rows(range(rows), inputs, self.signature, None)
        else:
            start = time.monotonic()
            # At most one run of rows per thread, of about equal length.
            count = min(rows, self._lanes.threads)
            parts = [range(rows * part // count, rows * (part + 1) // count) for part in range(count)]
            work = [self._in_pool(partial(preprocess_rows, part, inputs, self.signature, call)) for part in parts]
            values = [value for part in await asyncio.gather(*work) for value in part]
            timings.preprocess_us = _micros(start)
        errors = [value for value in values if isinstance(value, FailedRow)]
        kept = [row for row, value in enumerate(values) if not isinstance(value, FailedRow)]
        if not kept:
            return _Prepared(None, [], 0, errors)
        good = [values[row] for row in kept]
        if self._stages.preprocess is None:
            if self._placement.stages_off_loop:
                return await self._in_pool(lambda: self._place(good, kept, errors))
            return self._place(good, kept, errors)
        return await self._in_pool(lambda: self._place_rows(good, kept, errors, timings))

    def _place_tensors(self, inputs: Mapping[str, Array], rows: int, timings: Timings) -> _Prepared:
        start = time.monotonic()
        kept, errors = list(range(rows)), []
        try:
            batch = tensor_batch(inputs, self.signature, self._library)
        except ItemError:
            # At least one row is invalid: find them, and run the others.
            bad = unreadable_rows(inputs, self.signature)
            errors = [FailedRow(row, 400, why) for row, why in bad.items()]
            kept = [row for row in kept if row not in bad]
            batch = tensor_batch(without_rows(inputs, list(bad), self.signature), self.signature, self._library)
        prepared = self._place(batch, kept, errors) if kept else _Prepared(None, [], 0, errors)
        timings.preprocess_us = _micros(start)
        return prepared

    def _place_rows(self, values: list[Any], kept: list[int], errors: list[FailedRow], timings: Timings) -> _Prepared:
        start = time.monotonic()
        rules = self._stages.preprocess_padding
        odd = misfits(values, rules, self._library)
        errors = errors + [FailedRow(kept[index], 400, why) for index, why in odd.items()]
        good = {row: value for index, (row, value) in enumerate(zip(kept, values, strict=True)) if index not in odd}
        try:
            batch = collate(list(good.values()), rules, self._library)
        except HANDLER_FAULTS:
            # The rows do not stack: rows that do not even make a batch of one are to blame.
            culprits = _unstackable(good, rules, self._library)
            good = {row: value for row, value in good.items() if row not in culprits}
            errors = errors + list(culprits.values())
            try:
                if not culprits:
                    raise
                batch = collate(list(good.values()), rules, self._library) if good else None
            except HANDLER_FAULTS as last:
                failure = ForwardFailed(f"preprocessed rows do not stack: {exception_message(last)}", executed=False)
                failure.__cause__ = last
                raise failure from last
        prepared = self._place(batch, list(good), errors) if good else _Prepared(None, [], 0, errors)
        timings.preprocess_us += _micros(start)
        return prepared

    def _place(self, batch: Any, kept: list[int], errors: list[FailedRow]) -> _Prepared:
        # Padded to an allowed size, for which kernels and graphs are warm.
        size = next_size(len(kept), self.signature.allowed_batch_sizes)
        if size > len(kept):
            batch = pad_rows(batch, size, self._batch_dims, self._library)
        # A handler's preprocess may return a batch of another size.
        given = count_rows(batch, self._batch_dims)
        try:
            return _Prepared(self._placement.stage(batch), kept, given, errors)
        except HANDLER_FAULTS as error:
            failure = self._classified(error, "staging")
            failure.executed = False
            raise failure from error

    def _launch(self, prepared: _Prepared, timings: Timings, deadline_s: float | None) -> "_Launched":
        start = time.monotonic()
        if deadline_s is not None and start >= deadline_s:
            raise TimedOut("the batch's deadline passed before it reached the device")
        try:
            with self._placement.active():
                result = self._placement.forward(self._stages.forward, prepared.batch)
                pending = self._answers.collect(result)
        except BatchError as error:
            error.executed = True
            raise
        except HANDLER_FAULTS as error:
            raise self._classified(error, "forward") from error
        return _Launched(pending, start, timings, self._classified)

    def _classified(self, error: BaseException, stage: str) -> BatchError:
        """Convert an exception of a stage to a BatchError."""
        failure: BatchError
        if self._placement.is_lost(error):
            failure = DeviceLost(f"the device failed: {describe(error)}")
            self._on_lost(str(failure))
        elif is_out_of_memory(error):
            failure = OutOfMemory(f"the device ran out of memory: {describe(error)}")
        else:
            failure = ForwardFailed(f"{stage} raised {describe(error)}")
        failure.__cause__ = error  # compiled code ignores the `from` of `raise`
        return failure

    async def _finish(
        self, prepared: _Prepared, collected: HostResult, inputs: Mapping[str, Array], timings: Timings
    ) -> tuple[Mapping[str, Array], list[FailedRow]]:
        converter, rows, given = self._answers, prepared.rows, prepared.given
        # Without postprocess the results are only sliced, which is too short for a thread.
        if not collected.per_row:
            outputs, errors = converter.finish(collected, rows, given, inputs)
            return outputs, prepared.errors + errors
        start = time.monotonic()
        outputs, errors = await self._in_pool(lambda: converter.finish(collected, rows, given, inputs))
        timings.postprocess_us = _micros(start)
        return outputs, prepared.errors + errors

    async def _in_pool(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._lanes.pool, call_contained, function)


def _unstackable(values: Mapping[int, Any], rules: Sequence[Rule], library: Library) -> dict[int, FailedRow]:
    """Return the rows that cannot be converted to a batch of one row.

    Each row index maps to the error of the row.
    """
    errors = {}
    for row, value in values.items():
        try:
            collate([value], rules, library)
        except ValueError as error:
            errors[row] = FailedRow(row, 400, exception_message(error))
        except HANDLER_FAULTS as error:
            errors[row] = FailedRow(row, 500, f"preprocess returned no tensor: {describe(error)}", error)
    return errors


def _micros(since_s: float) -> int:
    return int((time.monotonic() - since_s) * 1e6)
