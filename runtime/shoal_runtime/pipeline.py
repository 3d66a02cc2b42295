"""One batch's way: preprocess and stage, forward, postprocess.

Several batches may be under way. Only `forward` needs the device's thread; the other stages run in
a thread pool (or on the event loop where there is nothing worth a thread), so the next batch is
prepared while the current one computes.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

from shoal_runtime.batches.collate import collate, misfits
from shoal_runtime.batches.padding import count_rows, next_size, pad_rows
from shoal_runtime.errors import BatchError, DeviceLost, FailedRow, ForwardFailed, ItemError, OutOfMemory, TimedOut
from shoal_runtime.executor import Executor
from shoal_runtime.faults import HANDLER_FAULTS, describe, run_contained, said
from shoal_runtime.handlers.answers import Answers, Collected
from shoal_runtime.handlers.base import Stages
from shoal_runtime.handlers.calling import preprocess_rows
from shoal_runtime.handlers.items import tensor_batch, unreadable_rows, without_rows
from shoal_runtime.handlers.signature import Signature
from shoal_runtime.handlers.spec import Rule
from shoal_runtime.placement import Placement, is_out_of_memory
from shoal_schema.wire.datatypes import Array

T = TypeVar("T")


@dataclass(slots=True)
class Timings:
    """Microseconds spent in each stage; `queue_us` is what was spent waiting for one."""

    preprocess_us: int = 0
    forward_us: int = 0
    postprocess_us: int = 0
    queue_us: int = 0


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of one batch.

    Args:
        outputs: the rows that succeeded, in order; empty when none did.
        errors: the rows that failed, in order.
        timings: for the answer's parameters.
        padded_rows: rows added to reach an allowed batch size.
    """

    outputs: Mapping[str, Array]
    errors: Sequence[FailedRow]
    timings: Timings
    padded_rows: int


@dataclass(frozen=True, slots=True)
class Lanes:
    """The threads that stages run in.

    Args:
        executor: the device's thread.
        pool: for preprocess and postprocess.
        threads: how many the pool has.
    """

    executor: Executor
    pool: ThreadPoolExecutor
    threads: int


@dataclass(slots=True)
class _Prepared:
    batch: Any
    rows: list[int]
    given: int
    errors: list[FailedRow] = field(default_factory=list)


class Pipeline:
    """Run batches through a handler's stages.

    Args:
        stages: the handler's methods.
        signature: of the model.
        placement: where batches run.
        lanes: the threads that stages run in.
        on_lost: told why, when the device turns out to be gone.
    """

    def __init__(
        self,
        stages: Stages,
        signature: Signature,
        placement: Placement,
        lanes: Lanes,
        on_lost: Callable[[str], None],
    ) -> None:
        self.signature = signature
        self._stages = stages
        self._placement = placement
        self._answers = Answers(signature, stages.postprocess, placement.fetch)
        self._lanes = lanes
        self._on_lost = on_lost
        self._per_row = stages.preprocess is not None or all(spec.datatype == "BYTES" for spec in signature.inputs)
        self._batch_dims = {} if stages.preprocess else {spec.name: spec.batch_dim for spec in signature.inputs}

    async def run(self, inputs: Mapping[str, Array], rows: int, *, deadline_s: float | None = None) -> BatchResult:
        """Run one batch.

        Args:
            inputs: wire arrays by name.
            rows: how many they hold.
            deadline_s: monotonic time after which nobody waits; the batch is dropped if it has not
                reached the device.

        Raises:
            BatchError: the batch fails as a whole.
        """
        start = time.monotonic()
        timings = Timings()
        prepared = await self._prepare(inputs, rows, timings)
        if not prepared.rows:
            return BatchResult({}, prepared.errors, timings, 0)
        collected = await self._lanes.executor.call(lambda: self._forward(prepared, timings, deadline_s))
        outputs, errors = await self._finish(prepared, collected, inputs, timings)
        spent = timings.preprocess_us + timings.forward_us + timings.postprocess_us
        timings.queue_us = max(0, _micros(start) - spent)
        padded = prepared.given - len(prepared.rows)
        return BatchResult(outputs, sorted(errors, key=lambda e: e.row), timings, padded)

    async def _prepare(self, inputs: Mapping[str, Array], rows: int, timings: Timings) -> _Prepared:
        if not self._per_row:
            if self._placement.stages_off_loop:
                return await self._in_pool(lambda: self._place_tensors(inputs, rows, timings))
            return self._place_tensors(inputs, rows, timings)
        call = self._stages.preprocess
        if call is None:
            values = preprocess_rows(range(rows), inputs, self.signature, None)
        else:
            start = time.monotonic()
            parts = await asyncio.gather(
                *(
                    self._in_pool(partial(preprocess_rows, part, inputs, self.signature, call))
                    for part in _parts(rows, self._lanes.threads)
                )
            )
            values = [value for part in parts for value in part]
            timings.preprocess_us = _micros(start)
        return await self._collate(values, timings)

    async def _collate(self, values: list[Any], timings: Timings) -> _Prepared:
        errors = [value for value in values if isinstance(value, FailedRow)]
        kept = [row for row, value in enumerate(values) if not isinstance(value, FailedRow)]
        if not kept:
            return _Prepared(None, [], 0, errors)
        good = [values[row] for row in kept]
        if self._stages.preprocess is None:
            return _Prepared(good, kept, len(kept), errors)
        return await self._in_pool(lambda: self._place_rows(good, kept, errors, timings))

    def _place_tensors(self, inputs: Mapping[str, Array], rows: int, timings: Timings) -> _Prepared:
        start = time.monotonic()
        kept, errors = list(range(rows)), []
        try:
            batch = tensor_batch(inputs, self.signature)
        except ItemError:
            bad = unreadable_rows(inputs, self.signature)
            errors = [FailedRow(row, 400, why) for row, why in bad.items()]
            kept = [row for row in kept if row not in bad]
            batch = tensor_batch(without_rows(inputs, list(bad), self.signature), self.signature)
        prepared = self._place(batch, kept, errors) if kept else _Prepared(None, [], 0, errors)
        timings.preprocess_us = _micros(start)
        return prepared

    def _place_rows(self, values: list[Any], kept: list[int], errors: list[FailedRow], timings: Timings) -> _Prepared:
        start = time.monotonic()
        rules = self._stages.preprocess_padding
        odd = misfits(values, rules)
        errors = errors + [FailedRow(kept[index], 400, why) for index, why in odd.items()]
        good = [value for index, value in enumerate(values) if index not in odd]
        kept = [row for index, row in enumerate(kept) if index not in odd]
        try:
            batch = collate(good, rules)
        except HANDLER_FAULTS as error:
            culprits = _unstackable(good, kept, rules)
            if not culprits:
                raise ForwardFailed(f"preprocessed rows do not stack: {said(error)}", executed=False) from error
            batch, kept = self._stack_others(good, kept, culprits)
            errors = errors + culprits
        prepared = self._place(batch, kept, errors) if kept else _Prepared(None, [], 0, errors)
        timings.preprocess_us += _micros(start)
        return prepared

    def _stack_others(self, values: list[Any], kept: list[int], culprits: Sequence[FailedRow]) -> tuple[Any, list[int]]:
        bad = {error.row for error in culprits}
        others = [row for row in kept if row not in bad]
        good = [value for value, row in zip(values, kept, strict=True) if row not in bad]
        try:
            return collate(good, self._stages.preprocess_padding) if good else None, others
        except HANDLER_FAULTS as error:
            raise ForwardFailed(f"preprocessed rows do not stack: {said(error)}", executed=False) from error

    def _place(self, batch: Any, kept: list[int], errors: list[FailedRow]) -> _Prepared:
        size = next_size(len(kept), self.signature.allowed_batch_sizes)
        if size > len(kept):
            batch = pad_rows(batch, size, self._batch_dims)
        given = count_rows(batch, self._batch_dims)
        try:
            return _Prepared(self._placement.stage(batch), kept, given, errors)
        except HANDLER_FAULTS as error:
            failure = self._classified(error, "staging")
            failure.executed = False
            raise failure from error

    def _forward(self, prepared: _Prepared, timings: Timings, deadline_s: float | None) -> Collected:
        start = time.monotonic()
        if deadline_s is not None and start >= deadline_s:
            raise TimedOut("the batch's time ran out before it reached the device")
        try:
            with self._placement.active():
                result = self._placement.forward(self._stages.forward, prepared.batch)
                return self._answers.collect(result)
        except BatchError as error:
            error.executed = True
            raise
        except HANDLER_FAULTS as error:
            raise self._classified(error, "forward") from error
        finally:
            timings.forward_us = _micros(start)

    def _classified(self, error: BaseException, stage: str) -> BatchError:
        if self._placement.is_lost(error):
            reason = f"the device failed: {describe(error)}"
            self._on_lost(reason)
            return DeviceLost(reason)
        if is_out_of_memory(error):
            return OutOfMemory(f"the device ran out of memory: {describe(error)}")
        return ForwardFailed(f"{stage} raised {describe(error)}")

    async def _finish(
        self, prepared: _Prepared, collected: Collected, inputs: Mapping[str, Array], timings: Timings
    ) -> tuple[Mapping[str, Array], list[FailedRow]]:
        finish = partial(self._answers.finish, collected, prepared.rows, prepared.given, inputs)
        if not collected.per_row:
            outputs, errors = finish()
            return outputs, prepared.errors + errors
        start = time.monotonic()
        outputs, errors = await self._in_pool(finish)
        timings.postprocess_us = _micros(start)
        return outputs, prepared.errors + errors

    async def _in_pool(self, function: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._lanes.pool, run_contained, function)


def _unstackable(values: Sequence[Any], rows: Sequence[int], rules: Sequence[Rule]) -> list[FailedRow]:
    """Return the errors of rows that do not even make a batch of their own: too long, a number beyond 64 bits..."""
    errors = []
    for row, value in zip(rows, values, strict=True):
        try:
            collate([value], rules)
        except ValueError as error:
            errors.append(FailedRow(row, 400, said(error)))
        except HANDLER_FAULTS as error:
            errors.append(FailedRow(row, 500, f"what preprocess gave makes no tensor: {describe(error)}", error))
    return errors


def _parts(rows: int, threads: int) -> list[range]:
    """Split rows into at most `threads` runs of about equal length."""
    count = min(rows, threads)
    bounds = [rows * index // count for index in range(count + 1)]
    return [range(low, high) for low, high in pairwise(bounds)]


def _micros(since_s: float) -> int:
    return int((time.monotonic() - since_s) * 1e6)
