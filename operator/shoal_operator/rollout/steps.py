"""Steps of a rollout with a candidate: a function of what is stored, observed and compared.

The newest spec reaches the stable pods only with a strategy without candidates, after the candidate has passed all
steps, or by a user's command. Everything that a decision depends on is in the cluster, so a restart of the operator
changes no decision.
"""

import math
from dataclasses import replace

from msgspec import structs

from shoal_operator.rollout.findings import VerdictCause, candidate_rows, dropped_for_candidate
from shoal_operator.rollout.progress import Command, RolloutPhase, RolloutProgress
from shoal_operator.rollout.situation import Care, Decision, Situation
from shoal_operator.rollout.verdict import IDLE_S, StartTimes, StepProgress, Verdict, VerdictState, judge
from shoal_schema.fields.declaring import Json
from shoal_schema.resource.conditions import Reason
from shoal_schema.resource.rollout import OnFailure, RolloutCommand, RolloutStep, steps_of


def decide(situation: Situation) -> Decision:
    """Return what to do for a rollout."""
    now, newest, stable = situation, situation.newest, situation.stable
    before = now.progress
    if stable is None or newest == stable:
        # A candidate that failed or was aborted has no pods when a user promotes it.
        promoted = now.candidate.revision == newest or (before is not None and before.candidate == newest)
        return _promoting(now) if stable and promoted and not now.stable_settled else _ended(now)
    if not now.judged:
        return _ended(now)
    # The stable pods are being replaced: by this revision, or by another one whose predecessor is wanted again.
    if before and before.phase is RolloutPhase.PROMOTING and newest in (before.candidate, before.stable):
        return _promoting(now)
    if _commands(now, RolloutCommand.PROMOTE):
        return _promoting(now)
    if now.obstacle:
        return _held(now, RolloutPhase.WAITING, Reason.CANDIDATE_UNSUPPORTED, now.obstacle)
    if now.changed_together:
        return _held(now, RolloutPhase.WAITING, Reason.CHANGED_TOGETHER, _together(now))
    if _has_failed(now):
        assert before is not None
        return _failed(now, before.verdict, Reason(before.reason or Reason.CANDIDATE_FAILED))
    if _commands(now, RolloutCommand.ABORT):
        return _failed(now, f"a user aborted the rollout of revision {newest}", Reason.CANDIDATE_FAILED)
    # Another candidate leaves first, so that pods of one revision alone have its name.
    if now.candidate.revision not in ("", newest):
        text = f"revision {now.candidate.revision} is replaced by the newer candidate {newest}"
        return _held(now, RolloutPhase.WAITING, Reason.CANDIDATE_STARTING, text)
    return _compare(now, _continued(now))


def _commands(now: Situation, verb: RolloutCommand) -> bool:
    """Return whether a user's command about this candidate has this verb."""
    return now.command == Command(verb, now.newest)


def _stale(now: Situation) -> str:
    """Return a sentence about a command that is not for this candidate, or ""."""
    if now.command is None or now.command.revision == now.newest or str(now.command) == _earlier(now):
        return ""
    of = f"revision {now.command.revision}" if now.command.revision else "no revision"
    return f". The command {now.command.verb} is ignored: it is for {of}, and the candidate is {now.newest}"


def _earlier(now: Situation) -> str:
    """Return the command about another revision that is older than this candidate, or ""."""
    if now.progress and now.progress.candidate == now.newest:
        return now.progress.earlier_command
    return str(now.command) if now.command and now.command.revision != now.newest else ""


def _removal(now: Situation) -> Care:
    """Return the care for a candidate that must go: first no stable pod may send anything to it."""
    return Care.REMOVE if now.quiet or not now.candidate.revision else Care.KEEP


def _ended(now: Situation) -> Decision:
    """Return the decision without a candidate: the stable pods get the newest spec."""
    gone = now.candidate.revision == ""
    verdict, figures = _outcome(now)
    kept = RolloutProgress(RolloutPhase.STABLE, now.newest, verdict=verdict, figures=figures)
    text = f"the stable pods have the newest spec, revision {now.newest}{_last(verdict)}"
    return Decision(applied=True, care=_removal(now), progress=None if not now.judged and gone else kept, message=text)


def _outcome(now: Situation) -> tuple[str, Json]:
    """Return the last verdict and figures of the newest revision as a candidate; empty if it ran no rows."""
    before = now.progress
    if before is None or not before.figures.get("rows"):
        return "", {}
    about = before.stable if before.phase is RolloutPhase.STABLE else before.candidate
    if about != now.newest:
        return "", {}
    # The verdict of a failure may be a user's command, without figures.
    return "" if before.phase is RolloutPhase.FAILED else before.verdict, before.figures


def _last(verdict: str) -> str:
    return f". Last verdict: {verdict.removesuffix('.')}" if verdict else ""


def _promoting(now: Situation) -> Decision:
    """Return the decision while the stable pods are replaced by those of the newest spec.

    The candidate keeps its share meanwhile, unless another revision than its own is applied.
    """
    before = now.progress or RolloutProgress(RolloutPhase.PROMOTING)
    continues = now.candidate.revision == now.newest
    weight = before.weight if continues else 0
    verdict, figures = _outcome(now)
    by_user = ", as a user commanded" if _commands(now, RolloutCommand.PROMOTE) else ""
    problem = f". It does not progress: {now.stable_problem}" if now.stable_problem else ""
    text = f"the stable pods are being replaced by those of revision {now.newest}{by_user}{problem}{_last(verdict)}"
    late = now.command if now.command and now.command.verb is not RolloutCommand.PROMOTE else None
    if late and late.revision == now.newest:
        text += f". The command {late.verb} is ignored: to end the promotion, apply the former spec"
    # Until the pods are replaced, the revision that they had may be applied again at once.
    known = before.phase is RolloutPhase.PROMOTING and before.stable
    return Decision(
        applied=True,
        care=Care.KEEP if continues else _removal(now),
        compared=continues,
        weight=weight,
        progress=structs.replace(
            before,
            phase=RolloutPhase.PROMOTING,
            stable=known or now.stable or before.stable,
            candidate=now.newest,
            weight=weight,
            shadow=0,
            reason="",
            verdict=verdict,
            figures=figures,
        ),
        reason=Reason.PROMOTING,
        message=text,
    )


def _held(now: Situation, phase: RolloutPhase, reason: Reason, text: str) -> Decision:
    """Return the decision to keep the stable pods and to have no candidate."""
    # A candidate that failed stays failed, whatever else prevents its comparison.
    failed = now.progress if _has_failed(now) else None
    waits = RolloutProgress(phase, now.stable or "", now.newest, earlier_command=_earlier(now), verdict=text)
    progress = failed or waits
    return Decision(applied=False, care=_removal(now), progress=progress, reason=reason, message=f"{text}{_stale(now)}")


def _together(now: Situation) -> str:
    return (
        f"the spec changes what a candidate compares, and also {' and '.join(now.changed_together)}. The stable pods"
        f" keep revision {now.stable}. Apply the other changes with the former model first, or promote {now.newest}"
    )


def _has_failed(now: Situation) -> bool:
    """Return whether the newest spec failed before, by the present steps and tolerances."""
    before = now.progress
    return (
        before is not None
        and before.phase is RolloutPhase.FAILED
        and before.candidate == now.newest
        and (before.terms == now.terms)
    )


def _failed(now: Situation, sentence: str, reason: Reason, verdict: Verdict | None = None) -> Decision:
    """Return the decision for a candidate that failed: no rows, and no pods unless they are to be kept."""
    kept = now.rollout.on_failure is OnFailure.PAUSE and now.candidate.revision == now.newest
    kept = kept and not _commands(now, RolloutCommand.ABORT)
    before = now.progress if now.progress and now.progress.candidate == now.newest else None
    text = f"{sentence.removesuffix('.')}. The stable revision {now.stable} serves all requests"
    return Decision(
        applied=False,
        care=Care.KEEP if kept else _removal(now),
        progress=RolloutProgress(
            RolloutPhase.FAILED,
            now.stable or "",
            now.newest,
            step=before.step if before else 0,
            steps=before.steps if before else 0,
            terms=now.terms,
            earlier_command=_earlier(now),
            verdict=sentence,
            reason=str(reason),
            figures=verdict.figures if verdict else before.figures if before else {},
        ),
        reason=reason,
        message=f"{text}{_stale(now)}",
    )


def _continued(now: Situation) -> RolloutProgress:
    """Return the progress of this candidate, from the first step unless it has begun."""
    before, steps = now.progress, steps_of(now.rollout)
    under_way = (RolloutPhase.WAITING, RolloutPhase.COMPARING, RolloutPhase.PAUSED)
    begun = before is not None and before.candidate == now.newest and before.phase in under_way and before.step
    if before is None or not begun:
        return RolloutProgress(
            RolloutPhase.WAITING,
            now.stable or "",
            now.newest,
            1,
            len(steps),
            now.now,
            terms=now.terms,
            earlier_command=_earlier(now),
        )
    return structs.replace(
        before,
        stable=now.stable or "",
        step=min(before.step, len(steps)),
        steps=len(steps),
        since=before.since or now.now,
        terms=now.terms,
    )


def _compare(now: Situation, progress: RolloutProgress) -> Decision:
    """Return the decision for a candidate in one of its steps."""
    if now.candidate.overdue and not now.candidate.ready:
        why = f": {now.candidate.problem}" if now.candidate.problem else ""
        text = f"no pod of revision {now.newest} became ready within rollout.progressDeadlineSeconds{why}"
        return _failed(now, text, Reason.CANDIDATE_FAILED)
    progress = _within_reports(now, progress)
    verdict = _verdict(now, progress)
    if verdict is None:
        return _in_step(now, progress, None)
    if verdict.state is VerdictState.FAILED:
        changed = verdict.cause is VerdictCause.SIGNATURE
        reason = Reason.SIGNATURE_CHANGED if changed else Reason.CANDIDATE_FAILED
        return _failed(now, verdict.sentence, reason, verdict)
    progress = structs.replace(progress, verdict=verdict.sentence, figures=verdict.figures)
    passed = verdict.state is VerdictState.STEP_PASSED and now.candidate.ready
    if passed and not _commands(now, RolloutCommand.PAUSE):
        if progress.step >= progress.steps:
            return _promoting(replace(now, progress=progress))
        progress = structs.replace(progress, step=progress.step + 1, since=now.now, **_counts(now))
    return _in_step(now, progress, verdict)


def _counts(now: Situation) -> dict[str, int]:
    """Return the counts of the reports, by the field that keeps them from the start of a step."""
    if now.reports is None:
        return {}
    stable = now.reports.stable
    return {
        "rows_before": candidate_rows(stable),
        "served_before": stable.served_rows,
        "dropped_before": dropped_for_candidate(stable),
    }


def _within_reports(now: Situation, progress: RolloutProgress) -> RolloutProgress:
    """Return the progress with no more counts before the step than are reported.

    Counts of pods that are gone are lost when the operator restarts.
    """
    lowered = {name: min(getattr(progress, name), count) for name, count in _counts(now).items()}
    return structs.replace(progress, **lowered)


def _verdict(now: Situation, progress: RolloutProgress) -> Verdict | None:
    """Return the verdict on the candidate, None before all pods were read."""
    if now.reports is None:
        return None
    step = StepProgress(
        _step(now, progress),
        progress.rows_before,
        now.age_s(progress.since),
        served_before=progress.served_before,
        dropped_before=progress.dropped_before,
    )
    reports, starts = now.reports, StartTimes(now.stable_start_s, now.candidate.start_s)
    return judge(now.rollout.compare, reports.stable, reports.candidate, step, starts=starts, repeats=now.repeats)


def _in_step(now: Situation, progress: RolloutProgress, verdict: Verdict | None) -> Decision:
    """Return the decision for a candidate in a step."""
    step = _step(now, progress)
    share = max(step.weight or 0, step.shadow or 0)
    replicas = max(1, math.ceil(now.stable_replicas * share / 100)) if now.stable_replicas else 0
    paused = _commands(now, RolloutCommand.PAUSE)
    ran = now.reports is None or candidate_rows(now.reports.stable) > progress.rows_before
    where = f"step {progress.step} of {progress.steps} ({_shares(step)})"
    if paused:
        phase, reason = RolloutPhase.PAUSED, Reason.CANDIDATE_PAUSED
        text = f"a user paused the rollout of revision {now.newest} in {where}"
    elif not now.stable_replicas:
        phase, reason = RolloutPhase.WAITING, Reason.CANDIDATE_WAITING
        text = f"the service has no pods, so revision {now.newest} waits in {where}"
    elif not now.responds:
        phase, reason = RolloutPhase.WAITING, Reason.CANDIDATE_WAITING
        text = f"no stable pod has responded to the plan of the rollout yet, so revision {now.newest} is not started"
    elif not now.candidate.ready:
        phase, reason = RolloutPhase.WAITING, Reason.CANDIDATE_STARTING
        why = f": {now.candidate.problem}" if now.candidate.problem else ""
        text = f"the first pod of revision {now.newest} is not ready{why}"
    elif not ran and now.age_s(progress.since) >= IDLE_S:
        # The verdict states why.
        phase, reason = RolloutPhase.COMPARING, Reason.CANDIDATE_WAITING
        text = f"revision {now.newest} waits for rows in {where}"
    else:
        unknown = verdict is not None and verdict.cause is VerdictCause.UNKNOWN_OUTPUT
        phase, reason = RolloutPhase.COMPARING, Reason.OUTPUT_UNKNOWN if unknown else Reason.COMPARING
        text = f"revision {now.newest} is compared with {now.stable} in {where}"
    said = f". {verdict.sentence.removesuffix('.')}" if verdict else ""
    weight, shadow = (0, 0) if paused else (step.weight or 0, step.shadow or 0)
    # Its pods start once a stable pod can compare them.
    exists = now.candidate.revision == now.newest
    return Decision(
        applied=False,
        care=Care.RUN if exists or now.responds or not now.stable_replicas else Care.REMOVE,
        replicas=replicas,
        compared=True,
        weight=weight,
        shadow=shadow,
        progress=structs.replace(progress, phase=phase, weight=weight, shadow=shadow),
        reason=reason,
        message=f"{text}{said}{_stale(now)}",
    )


def _step(now: Situation, progress: RolloutProgress) -> RolloutStep:
    return steps_of(now.rollout)[progress.step - 1]


def _shares(step: RolloutStep) -> str:
    parts = {"shadow": step.shadow, "weight": step.weight}
    return ", ".join(f"{name} {value} %" for name, value in parts.items() if value)
