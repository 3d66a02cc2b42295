"""Who is let in, when a batch closes and what is in it, by what is known of the runtime's speed.

The part of the `scheduler` that serves requests which succeed; what becomes of the others is decided there.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from shoal_proxy.batching.admission import predict_finish_s
from shoal_proxy.batching.batch import Batch, make_batch
from shoal_proxy.batching.clumps import Clumps
from shoal_proxy.batching.drain_rate import DrainRate
from shoal_proxy.batching.group import Group
from shoal_proxy.batching.margin import Margin
from shoal_proxy.batching.order import Shares
from shoal_proxy.batching.owed import Owed
from shoal_proxy.batching.pace import Pace
from shoal_proxy.batching.pending import NEVER_S, BatchKey, Pending
from shoal_proxy.batching.policy import BatchLimits, Device, Outlook, Wait, decide
from shoal_proxy.batching.queue import Queue, QueueLimits
from shoal_proxy.batching.returns import Returns
from shoal_proxy.batching.row_check import Check
from shoal_proxy.batching.selection import Costs
from shoal_proxy.batching.tables import Tables
from shoal_schema.metrics import Rejection
from shoal_schema.resource.traffic import BatchingPolicy

SLACK_QUANTILE = 0.75


class Running:
    """A batch at the runtime, and what is expected of it."""

    def __init__(
        self, batch: Batch, sent_s: float, finish_s: float, *, guessed: bool, alone: bool, check: Check | None = None
    ) -> None:
        self.batch = batch
        self.key = batch.key
        self.rows = batch.rows
        self.sent_s = sent_s
        self.finish_s = finish_s
        """When its answers should have left."""
        self.guessed = guessed
        """Nothing was known yet when that was expected."""
        self.alone = alone
        """Nothing else was at the runtime when it was sent."""
        self.check = check
        """Why rows are run again that no client waits for (`row_checks`); None: clients wait for them."""
        self.started_s = NEVER_S
        """When the runtime could begin with it, as known when it was done."""
        self.answered_s = NEVER_S
        self.forward_s: float | None = None
        """What its forward took; None where the runtime does not say."""
        self.owed: Owed | None = None
        """What it gives back when it ends; None: nothing."""


class Formed:
    """Answer ``refused`` that they would be late; send ``running``, if there is one."""

    __slots__ = ("refused", "running")

    def __init__(self, refused: Sequence[Pending], running: Running | None) -> None:
        self.refused = refused
        self.running = running


class Batcher:
    """Owns the queue and what is known of the runtime's speed."""

    def __init__(
        self,
        queue_limits: QueueLimits,
        limits: BatchLimits,
        *,
        objective_s: float = NEVER_S,
        shares: Shares | None = None,
    ) -> None:
        self.queue = Queue(queue_limits, shares, self._full_rows if limits.policy is BatchingPolicy.FIXED else None)
        self.limits = limits
        self.objective_s = objective_s
        self.tables = Tables(limits.max_rows)
        self.returns = Returns()
        self.clumps = Clumps()
        self.pace = Pace()
        self.slack = Margin(SLACK_QUANTILE)
        """How much later than expected answers leave."""
        self.rate = DrainRate()
        self.running: deque[Running] = deque()
        """The batches at the runtime, in the order in which it runs them."""
        self._outlook = Outlook(self.costs, self._hold_s)
        self.configured_rows = limits.max_rows
        self._freed_s = 0.0
        self._weighs = False
        """Whether anybody has asked by when an answer will be there."""

    def serve(
        self,
        max_rows: int | None,
        allowed_sizes: tuple[int, ...] = (),
        measured: tuple[tuple[int, float], ...] = (),
    ) -> None:
        """Begin with a model: its own limit of rows, the sizes that it pads to, and what its warm-up measured."""
        rows = self.configured_rows if max_rows is None else min(self.configured_rows, max_rows)
        self.limits = replace(self.limits, max_rows=rows)
        self.tables = Tables(rows, allowed_sizes)
        self.tables.preset(measured)

    def separate(self, *, alone: bool) -> None:
        """Form batches of one request each, or of several again."""
        self.limits = replace(self.limits, alone=alone)

    def costs(self, group: Group) -> Costs:
        """Return what batches of ``group`` cost."""
        return self._costs(group.key)

    def attainable(self, key: BatchKey) -> bool:
        """Return whether a request alone, on an idle runtime, would meet the objective."""
        return self._meets_objective(self._costs(key))

    def _meets_objective(self, costs: Costs) -> bool:
        return costs.finish_s(0.0, 1) <= self.objective_s

    def _within_s(self, costs: Costs) -> float:
        """Return the objective; where nothing could meet it, the time of a full batch after another one.

        Without a bound the queue would fill, and all would be answered late; like this they are as fast as can be.
        """
        if self._meets_objective(costs):
            return self.objective_s
        return max(self.objective_s, 2 * costs.finish_s(0.0, costs.max_rows))

    def admit(self, pending: Pending, now_s: float) -> Rejection | None:
        """Set when ``pending`` is due and queue it, or return why not."""
        self.clumps.arrived(now_s)
        refusal = self.queue.refusal(pending.rows, pending.size_bytes)
        if refusal is not None:
            return refusal
        if self.limits.policy is BatchingPolicy.ADAPTIVE and self._too_late(pending, now_s):
            return Rejection.LATE
        self.queue.add(pending)
        if self._weighs and len(self.queue.groups) > 1:
            self._weigh(self.queue.groups[pending.key])
        return None

    def _full_rows(self, key: BatchKey) -> int:
        return self.tables.max_rows(key)

    def _weigh(self, changed: Group) -> None:
        """Keep what all groups should take, by which those of other keys can tell when their turn comes."""
        # Nobody asks while a group is alone, so what it takes is not up to date when a second one comes.
        second = len(self.queue.groups) == 2 and not changed.work_s
        for group in self.queue.groups.values() if second else (changed,):
            table, most = self.tables[group.key], self.tables.max_rows(group.key)
            full, rest = divmod(group.claimed_rows, most)
            rest_s = table.expected_s(rest) if rest else 0.0
            self.queue.weigh(group, full * table.expected_s(most) + rest_s if full else rest_s)

    def _too_late(self, pending: Pending, now_s: float) -> bool:
        """Return whether ``pending`` would be answered after it is due, by the caller's word or the objective."""
        if pending.due_s == NEVER_S and self.objective_s == NEVER_S:
            return False
        if not self._weighs:
            self._weighs = True
            for group in self.queue.groups.values():
                self._weigh(group)
        costs = self._costs(pending.key)
        if self.objective_s < NEVER_S:
            # The tighter of the two: how long a caller would wait is not how late the service means to be.
            pending.due_s = min(pending.due_s, pending.arrived_s + self._within_s(costs))
        if self._predict_finish_s(pending, costs, now_s) <= pending.due_s:
            return False
        if self.queue.requests or self.serves:
            return True
        # Nothing else wants the runtime, and what is known of it may be wrong: try.
        pending.due_s = NEVER_S
        return False

    def _predict_finish_s(self, pending: Pending, costs: Costs, now_s: float) -> float:
        """Return when ``pending`` would be answered, were it queued now."""
        group = self.queue.groups.get(pending.key)
        others_s = self._others_s(pending, group, costs)
        return predict_finish_s(
            group.claimed_rows if group is not None else 0,
            pending.rows,
            costs,
            free_s=self.free_s(now_s) + others_s,
            within_s=pending.due_s - pending.arrived_s,
            queued_behind=len(self.running) > self.limits.in_flight,
            others_first=others_s > 0,
        )

    def expected_wait_s(self, key: BatchKey, now_s: float) -> float:
        """Return in how many seconds a request of one row would be answered that arrived now, the 95th percentile."""
        costs, queue = self._costs(key), self.queue
        rows_ahead, others_s = queue.rows - queue.later_rows, 0.0
        if self._weighs and len(queue.groups) > 1:
            group = queue.groups.get(key)
            rows_ahead = group.claimed_rows if group is not None else 0
            others_s = max(0.0, queue.work_s - (group.work_s if group is not None else 0.0))
        full = rows_ahead // costs.max_rows
        start_s = self.free_s(now_s) + others_s + full * costs.table.expected_s(costs.max_rows)
        return costs.finish_s(start_s, rows_ahead - full * costs.max_rows + 1) - now_s

    def wanted_s(self, pending: Pending) -> float:
        """Return when the answer to ``pending`` should be there: as it was let in, or would have been."""
        due_s = min(pending.due_s, pending.deadline_s)
        if self.objective_s == NEVER_S:
            return due_s
        return min(due_s, pending.arrived_s + self._within_s(self._costs(pending.key)))

    def row_s(self, key: BatchKey) -> float:
        """Return what another row takes in full batches."""
        most = self.tables.max_rows(key)
        return self.tables[key].expected_s(most) / most

    def _others_s(self, pending: Pending, group: Group | None, costs: Costs) -> float:
        """Return what the batches of other keys take that come before that of ``pending``."""
        if group is None:
            if len(self.queue.groups) == 1:
                self._weigh(self.queue.first())
            return self.queue.work_s
        if len(self.queue.groups) == 1:
            return 0.0
        if group.claimed_rows + pending.rows <= costs.max_rows and group.head.due_s <= pending.due_s:
            return 0.0  # it travels with one who was let in although it has less time
        return self.queue.work_s - group.work_s

    def next(self, now_s: float) -> Formed | Wait:
        """Form the next batch, or return how long to wait; ask again after each formed one."""
        decision = decide(self.queue, self.limits, self._device(now_s), self._outlook)
        if isinstance(decision, Wait):
            return decision
        for pending in decision.refused:
            self.queue.remove(pending)
        if not decision.rows:
            return Formed(decision.refused, None)
        group = decision.group
        row_cost = self._row_cost(group, decision.rows) if self.queue.shares.classes else 1.0
        slices = self.queue.take(group, decision.rows, now_s, row_cost)
        if self._weighs and len(self.queue.groups) > 1 and group.lanes:
            self._weigh(group)
        return Formed(decision.refused, self.sending(make_batch(slices), now_s))

    def _row_cost(self, group: Group, rows: int) -> float:
        """Return how much longer a row takes in such a batch than in a full one: what a class uses is the runtime."""
        costs = self.costs(group)
        full_rate, rate = costs.rate(costs.max_rows), costs.rate(rows)
        return max(1.0, full_rate / rate) if costs.table.known else 1.0

    @property
    def serves(self) -> bool:
        """Return whether a client's batch is at the runtime."""
        return any(running.check is None for running in self.running)

    def has_time(self, seconds: float, now_s: float) -> bool:
        """Return whether the next batch is in time if the runtime works on something else for ``seconds`` first."""
        if not self.queue.groups:
            return True
        group = self.queue.first()
        costs = self.costs(group)
        return costs.finish_s(self.free_s(now_s) + seconds, min(group.rows, costs.max_rows)) <= group.head.due_s

    def sending(self, batch: Batch, now_s: float, check: Check | None = None) -> Running:
        """Note that ``batch`` goes to the runtime; with a ``check`` it is no client's."""
        table = self.tables[batch.key]
        finish_s = self.free_s(now_s) + table.seconds(batch.rows) + self.pace.overhead_s
        running = Running(batch, now_s, finish_s, guessed=not table.known, alone=not self.running, check=check)
        self.running.append(running)
        return running

    def released(self, running: Running, now_s: float) -> None:
        """Note that the runtime is done with a batch."""
        running.started_s = max(running.sent_s, self._freed_s)
        self.running.remove(running)
        self._freed_s = now_s

    def delivered(self, running: Running, now_s: float) -> None:
        """Learn from a batch that was `released`, has succeeded, and whose answers have left now."""
        forward_s = running.forward_s
        took_s = running.answered_s - (running.sent_s if self.limits.in_flight > 1 else running.started_s)
        self.rate.observe(running.rows, took_s / self.limits.in_flight)
        if self.tables.caps:
            self.tables.fitted(running.key, running.rows)
        self.tables[running.key].observe(running.rows, took_s if forward_s is None else forward_s)
        if running.alone and forward_s is not None:
            self.pace.observe(took_s - forward_s)
        if not running.guessed:
            self.slack.observe(now_s - running.finish_s)

    def free_s(self, now_s: float) -> float:
        """Return when the runtime could start another batch: now, or when it should be through with what it has."""
        if len(self.running) < self.limits.in_flight:
            return now_s
        ends_s: list[float] = []
        for running in self.running:
            freed_s = ends_s.pop(0) if len(ends_s) == self.limits.in_flight else self._freed_s
            forward_s = self.tables[running.key].expected_s(running.rows)
            ends_s.append(self.pace.free_s(forward_s, sent_s=running.sent_s, freed_s=freed_s))
            ends_s.sort()
        return max(now_s, ends_s[0])

    def _costs(self, key: BatchKey) -> Costs:
        return Costs(self.tables[key], self.pace.overhead_s + self.slack.value, self.tables.max_rows(key))

    def _device(self, now_s: float) -> Device:
        in_flight, free_s = len(self.running), self.free_s(now_s)
        # Of several executors one cannot tell which falls free next.
        if in_flight != 1 or self.limits.in_flight > 1 or self.limits.policy is not BatchingPolicy.ADAPTIVE:
            return Device(in_flight, now_s, free_s)
        running = self.running[0]
        forward_s = self.tables[running.key].expected_s(running.rows)
        return Device(in_flight, now_s, free_s, self.pace.send_ahead_s(forward_s, free_s))

    def _hold_s(self, group: Group, costs: Costs, device: Device) -> float:
        """Return how long to hold a batch for others about to come; never so long that it would be late."""
        if len(self.queue.groups) > 1 or group.key.solo or self.limits.in_flight > 1:
            return 0.0
        if group.rows >= costs.max_rows:
            return 0.0
        if self.returns.closed_loop:
            hold_s = self._hold_for_returning_s(group, costs, device)
        else:
            hold_s = self.clumps.hold_s(device.free_s, group.oldest_s)
        late = hold_s and costs.finish_s(device.free_s + hold_s, group.rows) > group.head.due_s
        return 0.0 if late else hold_s

    def _hold_for_returning_s(self, group: Group, costs: Costs, device: Device) -> float:
        answered_s = device.free_s + self.pace.overhead_s / 2
        return self.returns.hold_s(
            group.rows,
            [(running.rows, answered_s) for running in self.running if running.check is None],
            costs.table,
            free_s=device.free_s,
            max_rows=costs.max_rows,
        )
