"""Admission and batch formation, based on measured batch times.

Failed batches and cancelled requests are handled by `scheduler`, which uses this module.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from shoal_proxy.batching.batch import Batch, CancelledRows, make_batch
from shoal_proxy.batching.early_batches import Clumps, HostTiming
from shoal_proxy.batching.latency import Margin
from shoal_proxy.batching.order import FairShares, Group
from shoal_proxy.batching.pending import NEVER_S, BatchKey, PendingRequest
from shoal_proxy.batching.policy import BatchLimits, DeviceState, Estimates, WaitUntil, decide_batch
from shoal_proxy.batching.queue import Queue, QueueLimits
from shoal_proxy.batching.rates import DrainRate
from shoal_proxy.batching.returns import ReturningClients
from shoal_proxy.batching.row_checks.suspicion import RowCheck
from shoal_proxy.batching.selection import BatchCosts, predict_finish_s, start_after_s
from shoal_proxy.batching.tables import LatencyTables
from shoal_schema.interfaces.metrics import RejectionReason
from shoal_schema.resource.traffic import BatchingPolicy

SLACK_QUANTILE = 0.75


class RunningBatch:
    """A batch at the runtime, and the times expected and measured for it."""

    def __init__(
        self, batch: Batch, sent_s: float, finish_s: float, *, guessed: bool, alone: bool, check: RowCheck | None = None
    ) -> None:
        self.batch = batch
        self.key = batch.key
        self.rows = batch.rows
        self.sent_s = sent_s
        self.finish_s = finish_s
        """Expected time at which the batch's responses have been sent."""
        self.guessed = guessed
        """Whether ``finish_s`` is a guess, because no batch of its shape was measured."""
        self.alone = alone
        """Whether the runtime was idle when it was sent."""
        self.check = check
        """The row check that it runs (`row_checks`); None for a batch of clients' requests."""
        self.started_s = NEVER_S
        """Time at which the runtime could start the batch, computed when the batch was released."""
        self.completed_s = NEVER_S
        self.forward_s: float | None = None
        """Duration of its forward pass; None where the runtime does not report it."""
        self.cancelled_rows: CancelledRows | None = None
        """Rows of cancelled requests, charged to their clients until it ends; None for none."""


class FormedBatch:
    """The next batch, if any, and the late requests to reject before it."""

    __slots__ = ("rejected", "running")

    def __init__(self, rejected: Sequence[PendingRequest], running: RunningBatch | None) -> None:
        self.rejected = rejected
        self.running = running


class Batcher:
    """The queue of one model, with the measured times that decide on batches."""

    def __init__(
        self,
        queue_limits: QueueLimits,
        limits: BatchLimits,
        *,
        objective_s: float = NEVER_S,
        shares: FairShares | None = None,
    ) -> None:
        self.queue = Queue(queue_limits, shares, self._full_rows if limits.policy is BatchingPolicy.FIXED else None)
        self.limits = limits
        self.most_in_flight = 1
        """Most batches that all runtimes together ran at a time: the present ``limits.in_flight`` if none is away."""
        self.objective_s = objective_s
        self.tables = LatencyTables(limits.max_rows)
        self.returns = ReturningClients()
        self.clumps = Clumps()
        self.pace = HostTiming()
        self.slack = Margin(SLACK_QUANTILE)
        """Delay of responses beyond the expected time."""
        self.rate = DrainRate()
        self.running: deque[RunningBatch] = deque()
        """The batches at the runtime, in the order in which they run."""
        # Callbacks: the policy computes only what a decision needs.
        self._outlook = Estimates(self.costs, self._hold_s)
        self.configured_rows = limits.max_rows
        self._freed_s = 0.0
        self._weighs = False
        """Whether any request had a deadline, or the service has an objective. Only then work per group is tracked."""

    def set_model(
        self,
        max_rows: int | None,
        allowed_sizes: tuple[int, ...] = (),
        measured: tuple[tuple[int, float], ...] = (),
    ) -> None:
        """Set a new model's row limit, padded batch sizes and warm-up batch times."""
        rows = self.configured_rows if max_rows is None else min(self.configured_rows, max_rows)
        self.limits = replace(self.limits, max_rows=rows)
        self.tables = LatencyTables(rows, allowed_sizes)
        self.tables.preset(measured)

    def set_concurrency(self, batches: int) -> None:
        """Set the number of batches that run at a time; at least 1."""
        self.most_in_flight = max(self.most_in_flight, batches)
        self.limits = replace(self.limits, in_flight=batches)

    def isolate_requests(self, *, alone: bool) -> None:
        """Set whether each batch holds rows of only one request."""
        self.limits = replace(self.limits, alone=alone)

    def costs(self, group: Group) -> BatchCosts:
        """Return the batch times and the row limit for the batch key of ``group``."""
        return self._costs(group.key)

    def can_meet_objective(self, key: BatchKey) -> bool:
        """Return whether one row of ``key`` meets the objective on an idle runtime."""
        return self._costs(key).finish_s(0.0, 1) <= self.objective_s

    def _within_s(self, costs: BatchCosts) -> float:
        """Return the time (s) from arrival within which a response is wanted.

        This is the objective, if a single row can meet it, otherwise at least the time of two full batches. Without a
        limit the queue would fill, and every response would be late.
        """
        if costs.finish_s(0.0, 1) <= self.objective_s:
            return self.objective_s
        return max(self.objective_s, 2 * costs.finish_s(0.0, costs.max_rows))

    def admit(self, pending: PendingRequest, now_s: float) -> RejectionReason | None:
        """Queue ``pending`` and return None, or return the reason for rejection."""
        self.clumps.arrived(now_s)
        rejection = self.queue.rejection_reason(pending.rows, pending.size_bytes)
        if rejection is not None:
            return rejection
        # The other policies reject only when the queue is full.
        if self.limits.policy is BatchingPolicy.ADAPTIVE and self._too_late(pending, now_s):
            return RejectionReason.LATE
        self.queue.add(pending)
        if self._weighs and len(self.queue.groups) > 1:
            self._weigh(self.queue.groups[pending.key])
        return None

    def _full_rows(self, key: BatchKey) -> int:
        # Not `self.tables.max_rows` itself: `set_model` replaces the tables.
        return self.tables.max_rows(key)

    def _weigh(self, changed: Group) -> None:
        """Update the expected time to run the queued rows of ``changed``."""
        # Work is not tracked while a group is alone, so the first group's is stale when a second one comes.
        second = len(self.queue.groups) == 2 and not changed.work_s
        for group in self.queue.groups.values() if second else (changed,):
            table, most = self.tables[group.key], self.tables.max_rows(group.key)
            full, rest = divmod(group.claimed_rows, most)
            rest_s = table.mean_s(rest) if rest else 0.0
            self.queue.set_work(group, full * table.mean_s(most) + rest_s if full else rest_s)

    def _too_late(self, pending: PendingRequest, now_s: float) -> bool:
        """Return whether the response to ``pending`` would be late, by its client's timeout or the objective."""
        if pending.soft_deadline_s == NEVER_S and self.objective_s == NEVER_S:
            return False
        if not self._weighs:
            self._weighs = True
            for each in self.queue.groups.values():
                self._weigh(each)
        costs = self._costs(pending.key)
        if self.objective_s < NEVER_S:
            # The earlier of the two: a client's long timeout does not relax the objective.
            pending.soft_deadline_s = min(pending.soft_deadline_s, pending.arrived_s + self._within_s(costs))
        group = self.queue.groups.get(pending.key)
        others_s = self._others_s(pending, group, costs)
        finish_s = predict_finish_s(
            group.claimed_rows if group is not None else 0,
            pending.rows,
            costs,
            free_s=[free_s + others_s for free_s in self._free_executors_s(now_s)],
            within_s=pending.soft_deadline_s - pending.arrived_s,
            queued_behind=len(self.running) > self.limits.in_flight,
            others_first=others_s > 0,
        )
        if finish_s <= pending.soft_deadline_s:
            return False
        if self.queue.requests or self.is_serving:
            return True
        # The runtime is idle, and its estimated times may be wrong: try.
        pending.soft_deadline_s = NEVER_S
        return False

    def expected_wait_s(self, key: BatchKey, now_s: float) -> float:
        """Return the 95th percentile of the time (s) that a request of one row would take if it arrived now."""
        costs, queue = self._costs(key), self.queue
        # Without tracked work, waiting rows of other keys count as rows of this key.
        rows_ahead, others_s = queue.rows - queue.later_rows, 0.0
        if self._weighs and len(queue.groups) > 1:
            group = queue.groups.get(key)
            rows_ahead = group.claimed_rows if group is not None else 0
            others_s = max(0.0, queue.work_s - (group.work_s if group is not None else 0.0)) / self.limits.in_flight
        full = rows_ahead // costs.max_rows
        # Full batches take their mean time, and only the request's own batch the percentile: delays average out.
        start_s = others_s + start_after_s(self._free_executors_s(now_s), full, costs.table.mean_s(costs.max_rows))
        return costs.finish_s(start_s, rows_ahead - full * costs.max_rows + 1) - now_s

    def soft_deadline_for(self, pending: PendingRequest) -> float:
        """Return the earlier of the client's and the objective's deadline."""
        soft_deadline_s = min(pending.soft_deadline_s, pending.deadline_s)
        if self.objective_s == NEVER_S:
            return soft_deadline_s
        return min(soft_deadline_s, pending.arrived_s + self._within_s(self._costs(pending.key)))

    def row_s(self, key: BatchKey) -> float:
        """Return the time (s) per row of a full batch of ``key``."""
        most = self.tables.max_rows(key)
        return self.tables[key].mean_s(most) / most

    def _others_s(self, pending: PendingRequest, group: Group | None, costs: BatchCosts) -> float:
        """Return the time (s) of batches of other keys that run before ``pending``."""
        if group is None:
            if len(self.queue.groups) == 1:
                self._weigh(self.queue.first())
            return self.queue.work_s / self.limits.in_flight
        if len(self.queue.groups) == 1:
            return 0.0
        if (
            group.claimed_rows + pending.rows <= costs.max_rows
            and group.head.soft_deadline_s <= pending.soft_deadline_s
        ):
            return 0.0  # it joins a batch with a request that was admitted with an earlier deadline
        return (self.queue.work_s - group.work_s) / self.limits.in_flight

    def next_batch(self, now_s: float) -> FormedBatch | WaitUntil:
        """Form the next batch, or return how long to wait. Call again after each formed batch."""
        in_flight, ahead_s = len(self.running), NEVER_S
        free_s = self.free_s(now_s)
        # With several executors the next one to fall free cannot be predicted, so nothing partial is sent ahead.
        if in_flight == 1 and self.limits.in_flight == 1 and self.limits.policy is BatchingPolicy.ADAPTIVE:
            running = self.running[0]
            forward_s = self.tables[running.key].mean_s(running.rows)
            ahead_s = self.pace.send_ahead_s(forward_s, free_s)
        decision = decide_batch(self.queue, self.limits, DeviceState(in_flight, now_s, free_s, ahead_s), self._outlook)
        if isinstance(decision, WaitUntil):
            return decision
        for pending in decision.rejected:
            self.queue.remove(pending)
        if not decision.rows:
            return FormedBatch(decision.rejected, None)
        group = decision.group
        row_cost = 1.0
        if self.queue.shares.classes:
            # A row of a small batch takes more of the runtime than one of a full batch, and is charged for it.
            costs = self.costs(group)
            if costs.table.known:
                row_cost = max(1.0, costs.rate(costs.max_rows) / costs.rate(decision.rows))
        slices = self.queue.dequeue(group, decision.rows, now_s, row_cost)
        # Rows are left, and take less time than before.
        if self._weighs and len(self.queue.groups) > 1 and group.lanes:
            self._weigh(group)
        return FormedBatch(decision.rejected, self.start_batch(make_batch(slices), now_s))

    @property
    def is_serving(self) -> bool:
        """Return whether a batch of clients' requests is at the runtime."""
        return any(running.check is None for running in self.running)

    def has_spare_time(self, seconds: float, now_s: float) -> bool:
        """Return whether the next batch is in time if it starts ``seconds`` later."""
        if not self.queue.groups:
            return True
        group = self.queue.first()
        costs = self.costs(group)
        return (
            costs.finish_s(self.free_s(now_s) + seconds, min(group.rows, costs.max_rows)) <= group.head.soft_deadline_s
        )

    def start_batch(self, batch: Batch, now_s: float, check: RowCheck | None = None) -> RunningBatch:
        """Record that ``batch`` is sent to the runtime.

        Args:
            batch: the rows to run.
            now_s: monotonic time (s).
            check: the row check that the batch runs; None for a batch of clients' requests.
        """
        table = self.tables[batch.key]
        finish_s = self.free_s(now_s) + table.p95_s(batch.rows) + self.pace.overhead_s
        running = RunningBatch(batch, now_s, finish_s, guessed=not table.known, alone=not self.running, check=check)
        self.running.append(running)
        return running

    def record_finished(self, running: RunningBatch, now_s: float) -> None:
        """Record that the runtime has finished a batch."""
        # It waited at the runtime until the batch before had ended.
        running.started_s = max(running.sent_s, self._freed_s)
        self.running.remove(running)
        self._freed_s = now_s

    def record_delivered(self, running: RunningBatch, now_s: float) -> None:
        """Update the measured times after a successful batch's responses are sent."""
        forward_s = running.forward_s
        # With several executors a batch never waits for the one before it, so its time starts when it is sent.
        took_s = running.completed_s - (running.sent_s if self.limits.in_flight > 1 else running.started_s)
        self.rate.observe(running.rows, took_s / self.limits.in_flight)
        if self.tables.caps:
            self.tables.record_fit(running.key, running.rows)
        self.tables[running.key].observe(running.rows, took_s if forward_s is None else forward_s)
        # Only a batch that found the runtime idle shows the host's work without queueing.
        if running.alone and forward_s is not None:
            self.pace.observe(took_s - forward_s)
        # A guess says nothing about how late responses are.
        if not running.guessed:
            self.slack.observe(now_s - running.finish_s)

    def free_s(self, now_s: float) -> float:
        """Return the earliest time at which the runtime could start another batch."""
        return now_s if len(self.running) < self.limits.in_flight else self._free_executors_s(now_s)[0]

    def _free_executors_s(self, now_s: float) -> list[float]:
        """Return the earliest time at which each executor could start another batch, in order."""
        ends_s: list[float] = []
        # Replay the batches in order over the executors: each starts when the earliest executor falls free.
        for running in self.running:
            freed_s = ends_s.pop(0) if len(ends_s) == self.limits.in_flight else self._freed_s
            forward_s = self.tables[running.key].mean_s(running.rows)
            ends_s.append(self.pace.free_s(forward_s, sent_s=running.sent_s, freed_s=freed_s))
            ends_s.sort()
        idle = [now_s] * (self.limits.in_flight - len(ends_s))
        return [*idle, *[max(now_s, end_s) for end_s in ends_s]]

    def _costs(self, key: BatchKey) -> BatchCosts:
        return BatchCosts(self.tables[key], self.pace.overhead_s + self.slack.value, self.tables.max_rows(key))

    def _hold_s(self, group: Group, costs: BatchCosts, device: DeviceState) -> float:
        """Return how long (s) to hold a batch for requests expected soon, without making the batch late."""
        # A hold would delay other keys, and a request that runs alone gains nothing by it.
        if len(self.queue.groups) > 1 or group.key.solo or self.limits.in_flight > 1:
            return 0.0
        if group.rows >= costs.max_rows:
            return 0.0
        if self.returns.closed_loop:
            completed_s = device.free_s + self.pace.overhead_s / 2
            hold_s = self.returns.hold_s(
                group.rows,
                [(running.rows, completed_s) for running in self.running if running.check is None],
                costs.table,
                free_s=device.free_s,
                max_rows=costs.max_rows,
            )
        else:
            hold_s = self.clumps.hold_s(device.free_s, group.oldest_s)
        late = hold_s and costs.finish_s(device.free_s + hold_s, group.rows) > group.head.soft_deadline_s
        return 0.0 if late else hold_s
