"""A whole canary under 16 kept connections, and rollbacks of a wrong candidate.

The verdict is the operator's own code, on the reports of real proxies, every two seconds as in the operator. There is
no API server: a plan is sent as soon as the verdict is known.
"""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.report import Row, Target, make_row
from benchmarks.rollout.load import Sample, Seen, candidate_share, closed_loop
from benchmarks.rollout.replicas import (
    CANDIDATE,
    CANDIDATE_CORE,
    STABLE,
    STABLE_CORE,
    Cost,
    Replica,
    pinned,
    replica,
)
from shoal_operator.rollout.verdict import StepProgress, VerdictState, judge
from shoal_schema.interfaces.rollout import RolloutPlan
from shoal_schema.resource.comparison import CompareSpec
from shoal_schema.resource.rollout import RolloutStep

CLIENTS = 16
COST = Cost(base_ms=4, per_row_ms=0.2, max_rows=32)
INTERVAL_S = 2.0
AFTER_S = 3.0
"""Time of the load after the last plan."""
LIMIT_S = 180.0
WEIGHTS = (5, 25, 50, 100)
WRONG_EVERY = 20
WRONG = "wrong"
"""Revision of a candidate with wrong results."""
ROLLED_BACK_FROM = (5, 25, 50)
CANARY, ROLLBACK = "canary 5-25-50-100", "rollback"
TARGETS = (
    *(Target(CANARY, name, 0, at_least=False) for name in ("failed", "wrong", "lost", "run_twice")),
    Target(CANARY, "share_off_points", 1.0, at_least=False),
    Target(CANARY, "passed_steps", len(WEIGHTS), at_least=True),
    *(Target(f"{ROLLBACK} from {weight} %", "failed", 0, at_least=False) for weight in ROLLED_BACK_FROM),
    *(Target(f"{ROLLBACK} from {weight} %", "rolled_back_s", 5.0, at_least=False) for weight in ROLLED_BACK_FROM),
)


@dataclass(frozen=True, slots=True)
class Change:
    """A plan's weight, and when the stable proxy had accepted it."""

    weight: int
    accepted_s: float


class Judge:
    """Collects the reports of both replicas, and moves through the steps by the operator's verdict."""

    def __init__(self, stable: Replica, candidate: Replica, revision: str, steps: Sequence[RolloutStep]) -> None:
        self._replicas = stable, candidate
        self._revision = revision
        self._steps = steps
        self.changes: list[Change] = []
        self.passed = 0
        self.verdict_s: float | None = None
        """When the candidate failed."""

    def run(self) -> None:
        """Judge every two seconds until the candidate has failed or has passed all steps."""
        begun_s, rows_before, end_s = self._apply(self._steps[0]), 0, time.monotonic() + LIMIT_S
        while time.monotonic() < end_s:
            time.sleep(INTERVAL_S)
            step = self._steps[self.passed]
            stable, own = (each.send(self._plan(step)) for each in self._replicas)
            progress = StepProgress(step, rows_before, time.monotonic() - begun_s)
            verdict = judge(CompareSpec(), stable, own, progress, repeats=False)
            if verdict.state is VerdictState.FAILED:
                self.verdict_s = time.monotonic()
                self._apply(None)
                return
            if verdict.state is VerdictState.STEP_PASSED:
                self.passed += 1
                if self.passed == len(self._steps):
                    return
                begun_s, rows_before = self._apply(self._steps[self.passed]), int(verdict.figures["rows"])

    def _apply(self, step: RolloutStep | None) -> float:
        plan = RolloutPlan(self._revision) if step is None else self._plan(step)
        for each in self._replicas:
            each.send(plan)
        now_s = time.monotonic()
        self.changes.append(Change(0 if step is None else step.weight or 0, now_s))
        return now_s

    def _plan(self, step: RolloutStep) -> RolloutPlan:
        return RolloutPlan(self._revision, shadow=(step.shadow or 0) / 100, weight=(step.weight or 0) / 100)


def measure(rows: int) -> list[Row]:
    """Run a whole canary with so many rows a step, and a rollback from each of several steps."""
    steps = [RolloutStep(weight=weight, rows=rows) for weight in WEIGHTS]
    with (
        pinned(STABLE_CORE),
        replica(CANDIDATE, COST, CANDIDATE_CORE) as candidate,
        replica(WRONG, COST, CANDIDATE_CORE, wrong_every=WRONG_EVERY) as wrong,
        replica(STABLE, COST, STABLE_CORE, candidates=f"{candidate.address},{wrong.address}") as stable,
    ):
        measured = [make_row(CANARY, [_canary(stable, candidate, steps)])]
        for weight in ROLLED_BACK_FROM:
            figures = _rollback(stable, wrong, RolloutStep(weight=weight, shadow=20, rows=10**8))
            measured.append(make_row(f"{ROLLBACK} from {weight} %", [figures]))
    return measured


def _canary(stable: Replica, candidate: Replica, steps: Sequence[RolloutStep]) -> dict[str, float]:
    for each in (stable, candidate):
        each.forget_ids()
    seen, judged = _under_load(stable, candidate, CANDIDATE, steps)
    run = Counter([*stable.ids(), *candidate.ids()])
    for failure, count in seen.failures.items():
        print(f"{count} times {failure}")
    served = {sample.number for sample in seen.samples}
    figures = {
        "requests": float(len(seen.samples)),
        "failed": float(seen.failures.total()),
        "wrong": float(len(seen.wrong)),
        "lost": float(len(served - run.keys())),
        "run_twice": float(sum(count > 1 for count in run.values())),
        "passed_steps": float(judged.passed),
        "requests_per_s": len(seen.samples) / (seen.samples[-1].ended_s - seen.samples[0].wanted_s),
    }
    off = []
    for change, samples in by_step(judged.changes, seen.samples):
        share = 100 * candidate_share(samples)
        figures[f"share_at_{change.weight}"] = share
        off.append(abs(share - change.weight))
    return {**figures, "share_off_points": max(off)}


def by_step(changes: Sequence[Change], samples: Sequence[Sample]) -> Iterator[tuple[Change, list[Sample]]]:
    """Yield each step with the requests that were sent and served in it."""
    ends_s = [change.accepted_s for change in changes[1:]] + [samples[-1].ended_s + 1]
    for change, end_s in zip(changes, ends_s, strict=True):
        # The next plan takes effect before the response to it is read.
        inside = [each for each in samples if change.accepted_s <= each.wanted_s and each.ended_s < end_s - 0.05]
        if inside:
            yield change, inside


def _rollback(stable: Replica, wrong: Replica, step: RolloutStep) -> dict[str, float]:
    seen, judged = _under_load(stable, wrong, WRONG, [step])
    by_candidate = [each for each in seen.samples if each.revision == WRONG]
    if judged.verdict_s is None:
        return {"failed": float(seen.failures.total()), "rolled_back_s": LIMIT_S}
    after = [each for each in seen.samples if each.wanted_s > judged.verdict_s]
    return {
        "requests": float(len(seen.samples)),
        "failed": float(seen.failures.total()),
        "by_candidate": float(len(by_candidate)),
        "wrong_to_clients": float(len(seen.wrong)),
        "verdict_after_s": judged.verdict_s - judged.changes[0].accepted_s,
        "rolled_back_s": max(0.0, max(each.ended_s for each in by_candidate) - judged.verdict_s),
        "requests_after": float(len(after)),
    }


def _under_load(stable: Replica, candidate: Replica, revision: str, steps: Sequence[RolloutStep]) -> tuple[Seen, Judge]:
    """Judge a candidate under the load of all clients."""
    for plan in (RolloutPlan(), RolloutPlan(revision)):  # the first one sets the counts to 0
        candidate.send(plan)
        stable.send(plan)
    stable.find_candidate(RolloutPlan(revision))
    seen, judged, stopped = Seen(), Judge(stable, candidate, revision, steps), threading.Event()
    load = threading.Thread(target=lambda: asyncio.run(closed_loop(stable, CLIENTS, stopped.is_set, seen)))
    load.start()
    try:
        judged.run()
        time.sleep(AFTER_S)
    finally:
        stopped.set()
        load.join()
    seen.samples.sort(key=lambda each: each.ended_s)
    return seen, judged
