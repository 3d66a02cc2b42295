"""Copies of batches that the candidate runs for comparison.

After the clients have their responses, a chosen batch is sent to a pod of the candidate as one request of the lowest
priority, with the credentials of one of its clients. Few batches are under way at a time, and none ever waits: a batch
that does not fit is dropped. Results are compared in the event loop, one piece of 0.2 ms per iteration.

Some of these batches also run again on this replica, while its device is idle.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Final

from shoal_proxy.balance.peers import ForwardingOutcome
from shoal_proxy.batching.batch import Batch, BatchResult, check_rows, make_batch, merge
from shoal_proxy.batching.pending import LaneKey, PendingRequest, RequestResult, RequestSlice, discard
from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.dispatch.remote_requests import RemoteCall, RemoteOutcome, RemoteRequests
from shoal_proxy.dispatch.replicas import ReplicaLink
from shoal_proxy.errors import ProxyError, RowsFailed
from shoal_proxy.lifecycle.drain import ProxyPhase
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.model.sizes import byte_size_of
from shoal_proxy.rollout.canary import INVALID_ROWS
from shoal_proxy.rollout.candidates import CandidatePods
from shoal_proxy.rollout.comparison import BatchComparison, ComparedOutput, OutputLengths
from shoal_proxy.rollout.counts import RolloutCounts
from shoal_proxy.rollout.repeats import MOST_SUSPECTED_ROWS, POLL_S, RepeatSchedule
from shoal_proxy.rollout.share import ExactShare
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.headers import LOWEST_PRIORITY, SHADOW
from shoal_schema.interfaces.rollout import RolloutPlan
from shoal_schema.resource.traffic import RowChecks
from shoal_schema.wire.datatypes import DATATYPES, Array

logger = logging.getLogger(__name__)

MAX_BATCHES: Final = 4
"""Most batches at the candidate; at most one at each pod."""
WITHIN_S: Final = 10.0
"""Time in which the candidate must return a batch."""
_BYTES_SHARE: Final = 4
"""Batches and results at the candidate take at most this part of the queue's limit in bytes."""
_LARGER: Final = 4
_OTHER_BYTES: Final = 1 << 16
"""A response of the candidate may be so many times as large as the stable result, and so many bytes more."""
_LOWEST: Final = LaneKey(level=LOWEST_PRIORITY)
_MARK: Final = {SHADOW.encode(): b"1"}


class CompletedBatch:
    """A batch, its result, and the plan and counts when it ended."""

    __slots__ = ("batch", "counts", "plan", "result", "result_bytes", "signature", "size_bytes")

    def __init__(
        self, batch: Batch, result: BatchResult, signature: ModelSignature, plan: RolloutPlan, counts: RolloutCounts
    ) -> None:
        self.batch = batch
        self.result = result
        self.signature = signature
        self.plan = plan
        self.counts = counts
        inputs_bytes = sum(part.pending.size_bytes * part.rows // part.pending.rows for part in batch.slices)
        self.result_bytes = byte_size_of(result.outputs)
        self.size_bytes = inputs_bytes + self.result_bytes

    def outputs(self) -> dict[str, ComparedOutput]:
        """Return the stable revision's outputs."""
        return compared_outputs(self.result.outputs, self.signature)

    def lengths(self) -> dict[str, OutputLengths]:
        """Return the own lengths of rows, by output of variable length."""
        lengths: dict[str, OutputLengths] = {}
        for name, spec in self.signature.outputs.items():
            if spec.unpad_axis is None or spec.unpad_input is None:
                continue
            of_parts = [(part, part.pending.lengths.get(spec.unpad_input)) for part in self.batch.slices]
            if all(own is not None for _, own in of_parts):
                own = [length for part, own in of_parts if own is not None for length in own[part.start : part.stop]]
                lengths[name] = OutputLengths(spec.unpad_axis, own)
        return lengths


class ShadowTraffic:
    """Sends batches to the candidate, and compares the results."""

    def __init__(self, settings: Settings, pods: CandidatePods, dispatcher: Dispatcher) -> None:
        self._pods = pods
        self._dispatcher = dispatcher
        self._requests = RemoteRequests(settings, pods.replicas)
        self._share = ExactShare()
        self._most_bytes = settings.queue.max_bytes // _BYTES_SHARE
        self._held_bytes = 0
        self._busy: set[ReplicaLink] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._repeats = RepeatSchedule() if settings.batching.row_checks is not RowChecks.OFF else None
        self._waiting: CompletedBatch | None = None
        """The newest batch to run again."""
        self._wanted = asyncio.Event()

    def offer(
        self, batch: Batch, result: BatchResult, signature: ModelSignature, plan: RolloutPlan, counts: RolloutCounts
    ) -> None:
        """Send a completed batch to the candidate if it is in the plan's share."""
        if result.errors or any(part.pending.shadow for part in batch.slices) or not self._share.takes(plan.shadow):
            return
        completed = CompletedBatch(batch, result, signature, plan, counts)
        now_s = time.monotonic()
        link = None
        if len(self._busy) < MAX_BATCHES and self._held_bytes + completed.size_bytes <= self._most_bytes:
            link = self._pods.choose(batch.rows, batch.key, now_s + WITHIN_S, now_s, without=self._busy)
        candidate = None if link is None else self._pods.known_signature(link)
        if link is None or candidate is None:
            counts.dropped_batches += 1
            return
        self._busy.add(link)
        self._held_bytes += completed.size_bytes
        # The task begins once the responses of this batch are written.
        task = asyncio.get_running_loop().create_task(self._compare(link, candidate, completed))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel all comparisons."""
        for task in self._tasks:
            task.cancel()
        self._requests.fail_all()

    async def _compare(self, link: ReplicaLink, candidate: ModelSignature, completed: CompletedBatch) -> None:
        try:
            ended = await self._run_at(link, candidate, completed)
            self._busy.discard(link)
            if ended is not None:
                await self._record(ended, completed, candidate)
        except Exception:  # nothing of a candidate may affect clients
            logger.exception("event=comparison_failed rows=%d", completed.batch.rows)
        finally:
            self._busy.discard(link)
            self._held_bytes -= completed.size_bytes

    async def _run_at(
        self, link: ReplicaLink, candidate: ModelSignature, completed: CompletedBatch
    ) -> RemoteOutcome | None:
        """Return the candidate's outcome of a batch; None if it did not accept the batch."""
        batch = completed.batch
        now_s = time.monotonic()
        pending = PendingRequest(
            inputs={},
            rows=batch.rows,
            size_bytes=completed.size_bytes,
            arrived_s=now_s,
            deadline_s=now_s + WITHIN_S,
            deliver=discard,
            key=batch.key,
            lane=_LOWEST,
        )
        pending.client = next((part.pending.client for part in batch.slices if part.pending.client is not None), None)
        future: asyncio.Future[RemoteOutcome] = asyncio.get_running_loop().create_future()

        def ended(outcome: RemoteOutcome) -> None:
            if not future.done():  # it is done if the comparison was cancelled
                future.set_result(outcome)

        merged = merge(batch, completed.signature).inputs
        most_bytes = _LARGER * completed.result_bytes + _OTHER_BYTES
        call = RemoteCall(link, pending, candidate, pending.deadline_s, ended, _MARK, merged, most_bytes)
        number = self._pods.begin(link, now_s)
        try:
            self._requests.send(call)
            outcome = await future
        finally:
            self._pods.end(link, number)
        self._pods.record_outcome(link, batch.rows, outcome)
        if outcome.outcome is None and not pending.may_have_run and outcome.status not in INVALID_ROWS:
            completed.counts.dropped_batches += 1
            return None
        return None if outcome.end is ForwardingOutcome.CANCELLED else outcome

    async def _record(self, ended: RemoteOutcome, completed: CompletedBatch, candidate: ModelSignature) -> None:
        counts, rows, outcome = completed.counts, completed.batch.rows, ended.outcome
        if not isinstance(outcome, RequestResult):
            counts.record_shadow(rows, len(outcome.errors) if isinstance(outcome, RowsFailed) else rows)
            return
        counts.record_shadow(rows, 0)
        other = compared_outputs(outcome.outputs, candidate)
        await self._differences(completed, other, repeated=False)
        # Forwarded headers belong to a client, so rows with them cannot run for none.
        if self._repeats is not None and not completed.batch.key.headers:
            self._waiting = completed
            self._wanted.set()

    async def _differences(
        self, completed: CompletedBatch, other: Mapping[str, ComparedOutput], *, repeated: bool
    ) -> None:
        rows = completed.batch.rows if completed.signature.batches else 1
        comparison = BatchComparison(rows, completed.outputs(), other, completed.plan.tolerances, completed.lengths())
        for _ in comparison.pieces():
            await asyncio.sleep(0)
        completed.counts.record_differences(comparison.differences, repeated=repeated)

    # Batches that run again here.

    async def watch(self) -> None:
        """Run batches again while the device is idle, until cancelled."""
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while (completed := self._waiting) is not None and self._repeats is not None:
                scheduler, now_s = self._dispatcher.scheduler, time.monotonic()
                if not self._dispatcher.comparing or self._dispatcher.phase is not ProxyPhase.SERVING:
                    self._waiting = None
                elif self._repeats.is_due(
                    scheduler,
                    completed.batch.key,
                    completed.batch.rows,
                    now_s,
                    suspected=completed.counts.needs_repeats(MOST_SUSPECTED_ROWS),
                ):
                    self._waiting = None
                    await self._run_again(completed, self._repeats)
                else:
                    await asyncio.sleep(POLL_S)

    async def _run_again(self, completed: CompletedBatch, repeats: RepeatSchedule) -> None:
        begun_s = time.monotonic()
        slices = []
        for part in completed.batch.slices:
            alone = part.pending.copy_without_client()
            alone.deadline_s, alone.trace = begun_s + WITHIN_S, None
            slices.append(RequestSlice(alone, part.start, part.rows, part.inputs))
        running = self._dispatcher.scheduler.start_again(make_batch(slices), begun_s)
        try:
            sent = await self._dispatcher.unseen.run(running, completed.signature)
            result = sent.result(completed.signature)
            check_rows(running.batch, result, completed.signature)
        except ProxyError as error:
            logger.info("event=repeated_batch_failed rows=%d error=%s", running.rows, error.message)
            return
        finally:
            repeats.record_run(time.monotonic() - begun_s)
        if not result.errors:
            await self._differences(completed, compared_outputs(result.outputs, completed.signature), repeated=True)


def compared_outputs(outputs: Mapping[str, Array], signature: ModelSignature) -> dict[str, ComparedOutput]:
    """Return outputs with their datatypes, batch dimension first."""
    compared: dict[str, ComparedOutput] = {}
    for name, array in outputs.items():
        spec = signature.outputs.get(name)
        declared = "" if spec is None else spec.datatype
        # An output may have another datatype than it declares; only BF16 has the array of another one.
        datatype = declared if declared == "BF16" and array.dtype.str == "<u2" else DATATYPES.get(array.dtype, declared)
        shape = () if spec is None else spec.shape
        compared[name] = ComparedOutput(array if signature.batches else array[None], datatype, shape)
    return compared
