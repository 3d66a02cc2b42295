"""Decisions on rollouts: whatever happens, they come to rest, and no revision that was not judged serves alone."""

import datetime
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from shoal_operator.cluster.api_time import age_s, timestamp
from shoal_operator.rollout.progress import Command, RolloutPhase, RolloutProgress
from shoal_operator.rollout.report_sums import NO_REPORT
from shoal_operator.rollout.situation import Care, Decision, ObservedCandidate, Reports, Situation
from shoal_operator.rollout.steps import decide
from shoal_schema.fields.declaring import Json
from shoal_schema.interfaces.rollout import RolloutReport
from shoal_schema.resource.conditions import Reason, Status
from shoal_schema.resource.rollout import OnFailure, RolloutCommand, RolloutSpec, RolloutStep, RolloutStrategy
from tests.operator.fakes import new_year
from tests.operator.rollout.rollouts import agreeing, differing

STEPS = (RolloutStep(shadow=10, rows=100), RolloutStep(weight=50, rows=100))
CANARY = RolloutSpec(strategy=RolloutStrategy.CANARY, steps=STEPS)


@dataclass
class World:
    """A service, its pods, and an operator that restarts."""

    rollout: RolloutSpec = CANARY
    newest: str = "a"
    stable: str | None = None
    candidate: str = ""
    status: Json = field(default_factory=dict)
    command: Command | None = None
    together: tuple[str, ...] = ()
    obstacle: str = ""
    replicas: int = 3
    settled: bool = True
    ready: int = 1
    overdue: bool = False
    heard: bool = True
    report: RolloutReport | None = None
    now: datetime.datetime = field(default_factory=new_year)
    approved: set[str] = field(default_factory=set)
    """Revisions that a promotion is about: the one that passed, and the one that served before."""
    plan: tuple[bool, int, int] = (False, 0, 0)

    def decide(self) -> Decision:
        """Make one decision and act on it."""
        progress = RolloutProgress.stored({"status": {"rollout": self.status}}) if self.status else None
        quiet = self.heard and not any(self.plan)
        situation = Situation(
            rollout=self.rollout,
            newest=self.newest,
            stable=self.stable,
            progress=progress,
            command=self.command,
            changed_together=self.together,
            obstacle=self.obstacle,
            stable_replicas=self.replicas,
            stable_settled=self.settled,
            candidate=ObservedCandidate(
                revision=self.candidate,
                ready=self.ready if self.candidate else 0,
                overdue=self.overdue and bool(self.candidate),
            ),
            responds=self.heard,
            quiet=quiet,
            reports=Reports(self.report, NO_REPORT) if self.report and self.candidate == self.newest else None,
            now=timestamp(self.now),
            age_s=partial(age_s, self.now),
        )
        made = decide(situation)
        # A promotion ends when the stable pods are replaced.
        replacing = progress and progress.phase is RolloutPhase.PROMOTING and progress.candidate
        assert replacing != self.newest or self.stable != self.newest or self.settled or self._promotes(made)
        # Nothing may be sent to a candidate that is removed.
        assert quiet or not (self.candidate and made.care is Care.REMOVE)
        if made.applied:
            judged = self.rollout.strategy is not RolloutStrategy.ROLLING
            assert not judged or self._is_approved(), "a revision that was not judged serves alone"
            self.approved = {self.newest, self.stable or "", *(self.approved if self._promotes(made) else ())}
            self.stable = self.newest
        if not self._promotes(made):
            self.approved = set()
        if made.care is Care.RUN:
            assert self.candidate in ("", self.newest)
            self.candidate = self.newest
        elif made.care is Care.REMOVE:
            self.candidate = ""
        self.plan = (made.compared, made.weight, made.shadow) if made.compared else (False, 0, 0)
        self.status = made.progress.as_status() if made.progress else {}
        return made

    def _promotes(self, made: Decision) -> bool:
        return made.progress is not None and made.progress.phase is RolloutPhase.PROMOTING

    def _is_approved(self) -> bool:
        passed = self.report is not None and self.report.shadowed_rows >= 200 and self.candidate == self.newest
        commanded = self.command == Command(RolloutCommand.PROMOTE, self.newest)
        return self.stable in (None, self.newest) or passed or commanded or self.newest in self.approved

    def rest(self) -> Decision:
        """Decide until nothing changes."""
        self.heard = True
        for _ in range(12):
            before = (self.stable, self.candidate, self.status, self.plan)
            made = self.decide()
            if before == (self.stable, self.candidate, self.status, self.plan):
                return made
        raise AssertionError(f"no rest: {self}")


EDITS = st.sampled_from("abc").map(lambda revision: ("newest", revision))
COMMANDS = st.one_of(st.none(), st.builds(Command, st.sampled_from(RolloutCommand), st.sampled_from("abc")))
ACTIONS = st.one_of(
    EDITS,
    COMMANDS.map(lambda command: ("command", command)),
    st.sampled_from([None, agreeing(50), agreeing(100), agreeing(200), differing()]).map(lambda each: ("report", each)),
    st.sampled_from([0, 1, 3, 10]).map(lambda count: ("replicas", count)),
    st.sampled_from([0, 1]).map(lambda count: ("ready", count)),
    st.booleans().map(lambda value: ("settled", value)),
    st.booleans().map(lambda value: ("overdue", value)),
    st.booleans().map(lambda value: ("heard", value)),
    st.sampled_from([(), ("pod",)]).map(lambda parts: ("together", parts)),
    st.sampled_from(["", "no proxy can"]).map(lambda text: ("obstacle", text)),
    st.just(("candidate", "")),
    st.sampled_from([CANARY, structs.replace(CANARY, on_failure=OnFailure.PAUSE), RolloutSpec()]).map(
        lambda rollout: ("rollout", rollout)
    ),
)


@given(st.lists(st.tuples(ACTIONS, st.integers(0, 3)), max_size=25))
@settings(deadline=None)
def test_whatever_happens_a_rollout_comes_to_rest_in_one_phase(events: list[tuple[tuple[str, object], int]]) -> None:
    world = World()
    world.rest()
    for (name, value), decisions in events:
        setattr(world, name, value)
        for _ in range(decisions):
            world.decide()
    made = world.rest()

    phase = made.progress.phase if made.progress else RolloutPhase.STABLE
    same = world.stable == world.newest
    assert same == (phase in (RolloutPhase.STABLE, RolloutPhase.PROMOTING))
    assert (phase is RolloutPhase.PROMOTING) <= (not world.settled)
    # A candidate exists only while it is compared, promoted, or kept after a failure.
    kept = phase is RolloutPhase.FAILED and world.rollout.on_failure is OnFailure.PAUSE
    alive = phase in (RolloutPhase.WAITING, RolloutPhase.COMPARING, RolloutPhase.PAUSED, RolloutPhase.PROMOTING)
    assert bool(world.candidate) <= (kept or alive)
    assert world.candidate in ("", world.newest)
    # The next operator, which remembers nothing, decides the same.
    assert world.decide() == made


def compared(**changes: object) -> World:
    """Return a world whose candidate is being compared."""
    world = World()
    world.rest()
    world.newest = "b"
    world.rest()
    for name, value in changes.items():
        setattr(world, name, value)
    return world


def test_a_step_needs_its_rows_and_its_minutes() -> None:
    world = compared(rollout=structs.replace(CANARY, steps=(RolloutStep(shadow=10, minutes=10), STEPS[1])))
    world.report = agreeing(500)
    assert world.rest().progress.step == 1  # type: ignore[union-attr]
    world.now += datetime.timedelta(minutes=10)
    made = world.rest()

    assert made.progress is not None
    assert (made.progress.step, made.progress.rows_before) == (2, 500)
    assert (made.weight, made.shadow, made.replicas) == (50, 0, 2)


def test_rows_that_are_lost_at_a_restart_delay_the_step_alone() -> None:
    world = compared(report=agreeing(100))
    assert world.rest().progress.step == 2  # type: ignore[union-attr]
    world.report = agreeing(30)
    world.rest()
    world.report = agreeing(129)
    assert world.rest().progress.step == 2  # type: ignore[union-attr]
    world.report = agreeing(200)
    world.settled = False
    assert world.rest().reason is Reason.PROMOTING


@pytest.mark.parametrize("on_failure", OnFailure)
@pytest.mark.parametrize("failure", [{"command": Command(RolloutCommand.ABORT, "b")}, {"report": differing()}])
def test_promoting_a_failed_candidate_lasts_until_the_stable_pods_are_replaced(
    failure: dict[str, object], on_failure: OnFailure
) -> None:
    world = compared(rollout=structs.replace(CANARY, on_failure=on_failure), **failure)
    assert world.rest().reason in (Reason.CANDIDATE_FAILED, Reason.SIGNATURE_CHANGED)
    world.command, world.settled = Command(RolloutCommand.PROMOTE, "b"), False
    made = world.rest()

    assert (made.applied, made.reason, made.status) == (True, Reason.PROMOTING, Status.FALSE)
    assert made.progress is not None
    assert (made.progress.stable, made.progress.candidate, made.progress.reason) == ("a", "b", "")
    world.settled = True
    assert world.rest().reason is Reason.NO_CANDIDATE


def test_the_former_spec_comes_back_at_once_during_the_promotion_of_an_aborted_candidate() -> None:
    world = compared(command=Command(RolloutCommand.ABORT, "b"))
    world.rest()
    world.command, world.settled = Command(RolloutCommand.PROMOTE, "b"), False
    world.rest()
    world.newest = "a"
    made = world.rest()

    assert (made.applied, made.reason, world.stable, world.candidate) == (True, Reason.PROMOTING, "a", "")


def test_the_last_verdict_and_its_figures_outlive_the_promotion_of_its_candidate_alone() -> None:
    world = compared(report=agreeing(100))
    world.rest()
    world.report, world.settled = agreeing(200), False
    promoting = world.rest()
    assert "200 rows failed" in promoting.message
    world.settled = True
    ended = world.rest()

    assert ended.progress is not None
    assert (ended.reason, ended.progress.figures["rows"]) == (Reason.NO_CANDIDATE, 200)
    assert "200 rows failed" in ended.message
    assert "200 rows failed" in ended.progress.verdict
    world.newest, world.command = "c", Command(RolloutCommand.ABORT, "c")
    failed = world.rest()
    assert failed.progress is not None
    assert (failed.reason, failed.progress.figures) == (Reason.CANDIDATE_FAILED, {})


def test_without_requests_the_candidate_waits_and_says_so() -> None:
    world = compared(report=structs.replace(NO_REPORT, ready_candidates=1))
    assert world.rest().reason is Reason.COMPARING
    world.now += datetime.timedelta(minutes=2)
    waiting = world.rest()

    assert waiting.reason is Reason.CANDIDATE_WAITING
    assert "no requests arrive" in waiting.message


def test_a_candidate_without_free_pods_waits_and_says_so_from_the_start_of_each_step() -> None:
    world = compared(report=agreeing(100))
    assert world.rest().progress.step == 2  # type: ignore[union-attr]
    world.now += datetime.timedelta(minutes=2)
    idle = world.rest()
    world.report = structs.replace(agreeing(100), served_rows=300, returned_requests=40)
    busy = world.rest()

    assert (idle.reason, busy.reason) == (Reason.CANDIDATE_WAITING, Reason.CANDIDATE_WAITING)
    assert "no requests arrive" in idle.message
    assert "no requests arrive" not in busy.message
    assert "40 batches and requests" in busy.message


def test_a_restart_of_the_operator_is_no_lack_of_requests() -> None:
    world = compared(report=agreeing(50))
    world.rest()
    world.now += datetime.timedelta(minutes=2)
    world.report = None

    assert world.rest().reason is Reason.COMPARING


@pytest.mark.parametrize("verb", [RolloutCommand.ABORT, RolloutCommand.PAUSE])
def test_a_command_during_the_promotion_is_reported_as_ignored(verb: RolloutCommand) -> None:
    world = compared(report=agreeing(100))
    world.rest()
    world.report, world.settled = agreeing(200), False
    assert "ignored" not in world.rest().message
    world.command = Command(verb, "b")
    made = world.rest()

    assert (made.applied, made.reason) == (True, Reason.PROMOTING)
    assert f"{verb} is ignored" in made.message


@pytest.mark.parametrize(
    ("stable", "step", "expected"),
    [(1, STEPS[0], 1), (10, STEPS[1], 5), (11, STEPS[1], 6), (3, RolloutStep(weight=100), 3), (0, STEPS[0], 0)],
)
def test_a_candidate_has_pods_for_its_share(stable: int, step: RolloutStep, expected: int) -> None:
    world = compared(replicas=stable, rollout=structs.replace(CANARY, steps=(step,)))
    assert world.rest().replicas == expected


def test_progress_survives_the_status_and_an_unreadable_one_starts_anew() -> None:
    progress = RolloutProgress(RolloutPhase.FAILED, "a", "b", 1, 2, "2026-01-01T00:00:00Z", 7, 9, 3, 5, 10, "t", "p a")
    progress = structs.replace(progress, reason="r", verdict="v", figures={"rows": 1})
    assert RolloutProgress.stored({"status": {"rollout": progress.as_status()}}) == progress
    unreadable: list[Any] = [None, {}, {"phase": "Odd"}, {"phase": "Failed", "step": "x"}, []]
    for broken in unreadable:
        assert RolloutProgress.stored({"status": {"rollout": broken}}) is None


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("obstacle", ["", "no proxy can"])
def test_a_command_is_reported_as_ignored_only_if_it_is_newer_than_the_candidate(obstacle: str, failing: bool) -> None:
    world = World(newest="b", stable="a", command=Command(RolloutCommand.PROMOTE, "b"))
    assert world.rest().reason is Reason.NO_CANDIDATE
    world.newest, world.obstacle, world.report = "c", obstacle, differing() if failing else None
    assert "ignored" not in world.rest().message
    world.newest = "d"
    assert "ignored" not in world.rest().message
    world.command = Command(RolloutCommand.ABORT, "c")

    assert "abort is ignored: it is for revision c" in world.rest().message


@pytest.mark.parametrize("text", ["", "promote", "promote  ", "retry a", "promote a b", "PROMOTE a"])
def test_a_command_needs_a_verb_and_a_revision(text: str) -> None:
    resource = {"metadata": {"annotations": {"serving.shoal.dev/rollout": text}}}
    command = Command.of(resource)

    assert command is None or command.revision not in ("a", "b")


def test_a_decision_does_not_depend_on_the_order_of_what_is_known() -> None:
    world = compared(report=agreeing(100))
    made = world.rest()
    assert replace(made, message="") == replace(world.decide(), message="")
