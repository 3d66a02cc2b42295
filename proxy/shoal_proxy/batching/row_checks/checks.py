"""Run rows of shared batches again, to verify that each got its own result.

Rows of batches of more than one request are kept (`samples`) and run again while the device is idle. A check takes
rows of different batches, so that one small batch verifies many. A result that differs strongly is a suspicion, and the
row is run several more times before a conclusion (`suspicion`). After a row had the result of another row, the
other rows of its batch are run next. `evidence` draws the conclusion from all findings.

Checks have a budget of device time that grows with the square of the share that clients leave unused:
7.1 % of the device at a load of 0.1, 0.7 % at a load of 0.9. A check is sent when no request waits or runs. If this
does not occur for `OVERDUE_S`, as on a device that is always busy with partial batches, a check is sent between two
batches.
"""

from collections import deque
from typing import Final, NamedTuple

from shoal_proxy.batching.batch import Batch, BatchResult
from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.pending import NEVER_S, BatchKey
from shoal_proxy.batching.row_checks.distance import ResultDistance, Row, row_of
from shoal_proxy.batching.row_checks.evidence import BatchTally, Evidence, RowFinding
from shoal_proxy.batching.row_checks.samples import Group, Pick, SampledBatch, SampledRow, SampleStore, SamplingRules
from shoal_proxy.batching.row_checks.suspicion import COPIES, GROSS, RerunKind, RowCheck, RowCheckBudget, Suspicion
from shoal_proxy.model.signature import ModelSignature

MAX_ROWS: Final = 32
"""Rows of a check."""
ROWS_PER_S: Final = 256
"""Most rows that are run again: comparing them is the proxy's work."""
OBJECTIVE_SHARE: Final = 0.2
"""Share of the latency objective that a check may take."""
ALONE_TIMES: Final = 2.0
"""Maximum time of a check, as a multiple of the time of a single row."""
OVERDUE_S: Final = 1.0
"""Wait for an idle moment after which a check is sent between two batches."""
WAITS_S: Final = 2.0
"""Longest wait of a kept row for others to be checked with."""
_ANCHOR_S: Final = 60.0
"""Age at which the anchor is replaced."""
_PAUSE_S: Final = 60.0
_MAX_PAUSE_S: Final = 3600.0
"""Pause after a failed check, doubled for each further one in a row."""
_MIN_TIMEOUT_S: Final = 2.0
_SUSPICIONS: Final = 4
"""Most suspicions at a time."""
_WEIGHT: Final = 1 / 200
"""Weight of the newest row in the mean noise."""
_NOISES: Final = 8.0
"""Distances above so many times the mean noise are suspicions."""
_MIN_NOISE: Final = 3e-5
"""Noise of a model that repeats itself to the last digit."""
_FEW_COMPARED: Final = 64
"""Rows compared before the measured noise counts."""
_MAX_CAUTION: Final = 1e6
_MAX_OTHERS: Final = 64


class RowViolation(NamedTuple):
    """A proof that a row's result depends on other rows of its batch.

    Contains no data of clients.
    """

    finding: RowFinding
    rows: int
    """Rows of the batch in which the violation was found."""
    checked_rows: int


class RowChecks:
    """The sampled rows, the schedule of row checks, and their evaluation.

    Args:
        pick: returns a random integer from 0 to below its argument, to select batches and rows.
    """

    def __init__(self, pick: Pick) -> None:
        self._pick = pick
        self.checked_rows = 0
        self.suspected_rows = 0
        self.violations = 0
        """Models found to have dependent rows since the process began."""
        self.violated = False
        """Whether rows of the served model are not independent."""
        self.unchecked = "NoModel"
        """The reason why rows are not checked; empty where they are."""
        self._identity: ModelSignature | None = None
        self._model = 0
        self._rules: SamplingRules | None = None
        self._budget = RowCheckBudget()
        self._forget()

    def _forget(self) -> None:
        self._samples = SampleStore(self._pick)
        self._ruler = ResultDistance({})
        self._suspicions: deque[Suspicion] = deque()
        self._recent: deque[tuple[Group, float, Row]] = deque(maxlen=_MAX_OTHERS)
        """Results that clients got, and when their batch was answered: a result common among them proves nothing."""
        self._anchor: SampledRow | None = None
        """A row that agreed when it was checked; checked again with others."""
        self._noise, self._caution, self._compared = 0.0, 1.0, 0
        self._idle_s = self._wanted_s = -1.0
        """Time since which the device is idle, and since which a check is ready; -1 if not."""
        self._paused_until_s = self._next_s = 0.0
        self._under_way = False
        self._failures = 0
        self._partners: deque[SampledBatch] = deque()
        """Batches with a row that had a foreign result."""
        self.evidence = Evidence()

    def set_model(self, identity: ModelSignature, rules: SamplingRules) -> None:
        """Start checks of a model; no effect if ``identity`` is already served."""
        if identity == self._identity:
            return
        self._identity = identity
        self._model += 1
        self._forget()
        self._rules = rules
        self.violated = False
        # Rows of these models cannot be run again, or not alone.
        if not identity.batches:
            self.unchecked = "NoBatches"
        elif identity.graphs:
            self.unchecked = "Graph"
        else:
            self.unchecked = "CarriesHeaders" if identity.request_headers or identity.response_head else ""
        self._ruler = ResultDistance({name: spec.datatype for name, spec in identity.outputs.items()})

    @property
    def device_s(self) -> float:
        """Return the device time (s) that checks have used."""
        return self._budget.spent_s

    @property
    def wants_rows(self) -> bool:
        """Return whether rows of the served model are to be sampled and checked."""
        return not (self.unchecked or self.violated)

    def sample_batch(self, batch: Batch, result: BatchResult, now_s: float) -> None:
        """Keep random rows of a completed batch of several requests."""
        key = batch.key
        # Forwarded headers belong to a client, so rows with them cannot run for none.
        if self._rules is None or result.errors or key.headers or not self._samples.wants():
            return
        self._samples.add(batch, result, self._rules, now_s)
        self._next_s = now_s

    def next_check_s(self) -> float:
        """Return when to call `next_check` if no event occurs before, or `NEVER_S`."""
        if not self.wants_rows or self._under_way or not (self._samples.batches or self._suspicions):
            return NEVER_S
        return max(self._paused_until_s, self._next_s)

    def is_possible(self, now_s: float, *, busy: bool) -> bool:
        """Return whether `next_check` may have a check to send now.

        ``busy``: whether clients' rows wait or run. A busy device restarts the measured idle time.
        """
        if busy:
            self._idle_s = -1.0
            if self._wanted_s >= 0 and now_s - self._wanted_s < OVERDUE_S:
                return False
        return now_s >= self.next_check_s()

    def next_check(self, batcher: Batcher, now_s: float, *, load: float, busy: bool) -> RowCheck | None:
        """Return the check to send now; None for none.

        Args:
            batcher: the running batches, and estimates of batch times.
            now_s: monotonic time (s).
            load: share of the device that clients need.
            busy: whether clients' rows wait or run.
        """
        self._budget.earn(load, now_s)
        if (wait_s := self._budget.wait_s(load)) > 0:
            self._paused_until_s = now_s + wait_s
            self._wanted_s = -1.0
            return None
        group = self._suspicions[0].sample.batch.group if self._suspicions else self._chosen(batcher, now_s)
        if group is None:
            self._wanted_s = -1.0
            return None
        if self._wanted_s < 0:
            self._wanted_s = now_s
        key = group[0]
        if busy:
            # A check that has waited too long for an idle moment goes between two batches, if clients have time.
            if now_s - self._wanted_s < OVERDUE_S or len(batcher.running) > batcher.limits.in_flight:
                return None
            if not batcher.has_spare_time(batcher.tables[key].p95_s(row_check_size(batcher, key)), now_s):
                return None
        else:
            # No client is about to return once no request has come for half the time of a single row.
            if self._idle_s < 0:
                self._idle_s = now_s
            self._next_s = self._idle_s + batcher.tables[key].mean_s(1) / 2
            if now_s < self._next_s:
                return None
        self._under_way = True
        if self._suspicions:
            return self._suspected(batcher, self._suspicions[0])
        rows, anchor = row_check_size(batcher, key), self._anchor
        # One place goes to a row that agreed before: where it agrees again, nothing has changed since.
        if anchor is None or anchor.batch.group != group or rows < 2:
            anchor = None
        fresh = rows if anchor is None else rows - 1
        if self._partners:
            samples = self._samples.take_of(self._partners[0], fresh)
        else:
            samples = self._samples.take(group, fresh)
        return RowCheck(samples if anchor is None else [*samples, anchor], self._model)

    def _chosen(self, batcher: Batcher, now_s: float) -> Group | None:
        """Return the group of sampled rows to check next; None if none is ready.

        Rows of a group have the same batch key and lengths, so they can share a batch.
        """
        while self._partners:
            partner = self._partners[0]
            if partner.samples and row_check_size(batcher, partner.group[0]):
                return partner.group
            self._partners.popleft()
        # No group fills a check yet: find out when the oldest one will have waited long enough.
        next_s = NEVER_S
        for group, batches, oldest_s in self._samples.groups():
            rows = row_check_size(batcher, group[0])
            if rows and (batches >= rows or now_s - oldest_s >= WAITS_S):
                return group
            next_s = min(next_s, oldest_s + WAITS_S if rows else now_s + _PAUSE_S)
        self._next_s = next_s
        return None

    def _suspected(self, batcher: Batcher, suspicion: Suspicion) -> RowCheck:
        """Return the next check of a suspected row."""
        trial, sample = suspicion.trial(self._ruler), suspicion.sample
        most = batcher.tables.max_rows(sample.batch.group[0])
        if trial is RerunKind.ORIGINAL and sample.batch.rows <= most:
            return RowCheck(list(sample.batch.whole), self._model, suspicion, trial, sample.position)
        if trial in {RerunKind.SIZED, RerunKind.ORIGINAL}:
            # Other neighbours at each run, and every second time another position in the batch.
            company = self._samples.companions(sample, min(sample.batch.rows, most) - 1, suspicion.runs)
            suspicion.company_s.update([each.batch.taken_s for each in company])
            place = (sample.position if suspicion.runs % 2 else suspicion.runs) % (len(company) + 1)
            return RowCheck(
                [*company[:place], sample, *company[place:]], self._model, suspicion, RerunKind.SIZED, place
            )
        if trial is RerunKind.REPEATED:
            return RowCheck(suspicion.neighbours, self._model, suspicion, trial, suspicion.place)
        if trial is RerunKind.COPIES:
            return RowCheck([sample] * min(COPIES, most), self._model, suspicion, trial)
        return RowCheck([sample], self._model, suspicion, RerunKind.ALONE)

    def timeout_s(self, expected_s: float) -> float:
        """Return the timeout (s) of a check that should take ``expected_s``."""
        return max(_MIN_TIMEOUT_S, 10 * expected_s)

    def failed(self, check: RowCheck, now_s: float) -> None:
        """Drop a failed check and pause; successive failures double the pause."""
        if check.model != self._model:
            return
        self._ended()
        self._budget.spend(now_s - check.sent_s)
        if check.suspicion is not None:
            self._suspicions.remove(check.suspicion)
        self._paused_until_s = now_s + min(_MAX_PAUSE_S, _PAUSE_S * 2**self._failures)
        self._failures += 1

    def complete(self, check: RowCheck, result: BatchResult, took_s: float) -> RowViolation | None:
        """Evaluate a check's results; return a violation once it is proven.

        Args:
            check: a check that `next_check` returned.
            result: one row per sample of the check; ignored if it has errors.
            took_s: device time of the check.
        """
        if check.model != self._model:
            return None
        self._ended()
        self._budget.spend(took_s)
        # Bounds the rows that are compared per second.
        self._paused_until_s = check.sent_s + len(check.samples) / ROWS_PER_S
        self._failures = 0
        suspicion = check.suspicion
        if suspicion is None:
            if not result.errors:
                self._compare(check, result, check.sent_s)
            return None
        if result.errors:
            self._suspicions.remove(suspicion)
            return None
        rows = [row_of(result.outputs, place, suspicion.sample.cuts) for place in range(len(check.samples))]
        suspicion.ran(check.trial, rows, check.place)
        if suspicion.trial(self._ruler) is not None:
            return None  # more runs are needed
        self._suspicions.remove(suspicion)
        return self._concluded(suspicion, suspicion.conclude(self._ruler))

    def _compare(self, check: RowCheck, result: BatchResult, now_s: float) -> None:
        """Compare rerun results with the clients' results; record suspicions."""
        samples = check.samples
        given = [sample.result() for sample in samples]
        again = [row_of(result.outputs, place, sample.cuts) for place, sample in enumerate(samples)]
        self._ruler.learn(given)
        # A suspicion is a distance of many times the usual noise, and more where that was often noise too.
        gross = GROSS
        if self._compared >= _FEW_COMPARED:
            gross = min(GROSS, _NOISES * max(_MIN_NOISE, self._noise) * self._caution)
        apart = self._ruler.units_of_all(given, again)
        # A row that agrees proves that results have not changed since its batch.
        agreed_s = min(
            [each.batch.taken_s for each, far in zip(samples, apart, strict=True) if far <= gross], default=0.0
        )
        anchored = samples[-1] is self._anchor
        checked = len(given) - anchored
        for each, row in zip(samples, given, strict=True):
            # Results that clients got, to recognize common ones.
            # Copies, since a view would keep the whole batch in memory.
            copied = {name: array.copy() for name, array in row.items()}
            self._recent.append((each.batch.group, each.batch.taken_s, copied))
        self.checked_rows += checked
        self.evidence.checked += checked
        # A fresh row replaces an anchor that is old, or did not agree.
        tally = BatchTally(checked)
        if not anchored or apart[-1] > gross or now_s - samples[-1].batch.taken_s > _ANCHOR_S:
            self._anchor = next((each for each, far in zip(samples, apart, strict=True) if far <= gross), None)
        for place, sample in enumerate(samples):  # the anchor is measured, but raises no suspicion
            self._compared += 1
            self._noise += (min(apart[place], GROSS / _NOISES) - self._noise) * max(_WEIGHT, 1 / self._compared)
            if apart[place] > gross and not (anchored and place == len(samples) - 1):
                self.suspected_rows += 1
                self.evidence.suspected += 1
                if len(self._suspicions) < _SUSPICIONS:
                    suspicion = Suspicion(sample, samples, place, again[place], tally=tally, gross=gross)
                    suspicion.steady = 0 < agreed_s <= sample.batch.taken_s
                    suspicion.agreed = agreed_s > 0
                    self._suspicions.append(suspicion)

    def _concluded(self, suspicion: Suspicion, finding: RowFinding) -> RowViolation | None:
        """Count a finding; return a violation once the evidence suffices."""
        tally, batch = suspicion.tally, suspicion.sample.batch
        if finding is not RowFinding.RANDOM and not self.evidence.random:
            # Results of other rows, without those that batches of this row may have held.
            met = suspicion.met(self._ruler)
            kept = [each for each in self._samples.others(suspicion.sample) if each.taken_s not in met]
            met = {*met, *(each.taken_s for each in kept)}
            others = [row for group, at_s, row in self._recent if group == batch.group and at_s not in met]
            others += [row_of(each.outputs, row, suspicion.sample.cuts) for each in kept for row in range(each.rows)]
            if suspicion.is_exchanged(self._ruler, others[: 2 * _MAX_OTHERS]):
                finding = RowFinding.EXCHANGED
        if finding in {RowFinding.NOISE, RowFinding.VARIED}:
            # Such distances are ordinary for this model: raise the one that counts as a suspicion.
            self._caution = min(_MAX_CAUTION, 2 * self._caution)
        if finding is RowFinding.FOREIGN and not (suspicion.steady or (suspicion.agreed and batch.tally.foreign)):
            finding = RowFinding.UNSTEADY  # without an earlier foreign row of the batch, results may have changed since
        if finding is RowFinding.FOREIGN:
            # The rows of the client's batch are the companions of a foreign row, and are checked next.
            tally = batch.tally
            if not tally.foreign:
                self._partners.append(batch)
        if self.evidence.add(finding, tally):
            self.violated = True
            self.violations += 1
            self._drop()
            return RowViolation(finding, batch.rows, self.checked_rows)
        if self.evidence.unchecked:
            self.unchecked = self.evidence.unchecked
            self._drop()
        return None

    def _drop(self) -> None:
        self._samples.clear()
        self._suspicions.clear()
        self._partners.clear()

    def _ended(self) -> None:
        self._under_way = False
        self._idle_s = self._wanted_s = -1.0
        self._next_s = 0.0


def row_check_size(batcher: Batcher, key: BatchKey) -> int:
    """Return the maximum rows of a check; 0 if one row would delay clients."""
    table, most = batcher.tables[key], min(MAX_ROWS, batcher.tables.max_rows(key))
    if not table.known:
        return min(4, most)
    within_s = ALONE_TIMES * table.p95_s(1)
    if batcher.objective_s < NEVER_S and batcher.can_meet_objective(key):
        if within_s + batcher.pace.overhead_s > batcher.objective_s:
            return 0
        within_s = min(within_s, OBJECTIVE_SHARE * batcher.objective_s)
    return max(1, table.largest(within_s, most))
