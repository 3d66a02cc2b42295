"""Reconciliation of a Job: completion, status and pods.

Source: kubernetes/kubernetes pkg/controller/job/job_controller.go (syncJob).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from shoal_local.controllers.changes import Changes, Delete, Patch, PostEvent, seconds_since
from shoal_local.controllers.job_counts import Counts, count_pods, format_indexes, has_own_limits, is_indexed
from shoal_local.controllers.job_pods import RETRY_S, end, plan_pods, release
from shoal_local.objects import Object, condition, is_deleting, is_ready, timestamp

ConditionParts = tuple[str, str, str, str]
"""Type, status, reason and message of a condition."""
FINAL = {"FailureTarget": "Failed", "SuccessCriteriaMet": "Complete"}
"""Interim conditions, and the final ones that follow once every pod has ended."""
_EVENTS = {"JobSuspended": "Suspended", "JobResumed": "Resumed"}


def plan_job(job: Object, owned: Sequence[Object], now: datetime, *, retry_s: float = RETRY_S) -> Changes:
    """Return the next step for a Job and its pods.

    ``retry_s`` is the delay after the first failure; each further failure doubles it.
    """
    changes = Changes()
    if final := next(filter(None, (condition(job, kind) for kind in FINAL.values())), None):
        # Finished: delete the Job once its ttlSecondsAfterFinished has passed.
        kept_s = job["spec"].get("ttlSecondsAfterFinished")
        if kept_s is not None and not is_deleting(job):
            left_s = kept_s - seconds_since(final["lastTransitionTime"], now)
            changes.requeue(max(left_s, 0.0))
            if left_s <= 0:
                changes.add(Delete(job))
        return changes
    counts = count_pods(job, owned)
    # The condition that ends the Job: decided before, failed now, completed now, or none yet.
    verdict: ConditionParts | None = None
    wanted = job["spec"].get("completions")
    if known := next(filter(None, (condition(job, kind) for kind in FINAL)), None):
        verdict = known["type"], "True", known["reason"], known["message"]
    elif failure := _failure(job, owned, counts, now):
        verdict = "FailureTarget", "True", *failure
    elif not counts.active and counts.succeeded >= (1 if wanted is None else wanted):
        verdict = "SuccessCriteriaMet", "True", "CompletionsReached", "Reached expected number of succeeded pods"
    _plan_status(changes, job, counts, verdict, now)
    # After the status is written: once its finalizer is removed, a pod is never counted again.
    changes.add(*release(owned if is_deleting(job) else counts.counted))
    if verdict:
        changes.add(*(action for pod in counts.active for action in end(job, pod)))
    elif not is_deleting(job):
        pods = plan_pods(job, owned, counts, now, retry_s)
        changes.add(*pods.actions)
        changes.requeue(pods.requeue_s)
        changes.requeue(_left_s(job, now))
    return changes


def _failure(job: Object, pods: Iterable[Object], counts: Counts, now: datetime) -> tuple[str, str] | None:
    """Return reason and message of the Job's failure, or None."""
    spec, broken = job["spec"], len(counts.failed_indexes)
    if why := next(filter(None, (_matched_rule(spec, pod) for pod in pods)), None):
        return "PodFailurePolicy", why
    # Containers that restart in place count against the limit as pods do.
    restarts = 0
    if spec["template"]["spec"]["restartPolicy"] == "OnFailure":
        running = [pod["status"] for pod in pods if (pod.get("status") or {}).get("phase") in ("Pending", "Running")]
        parts = ("initContainerStatuses", "containerStatuses")
        restarts = sum(s.get("restartCount", 0) for one in running for part in parts for s in one.get(part) or [])
    if counts.failed > spec["backoffLimit"] or restarts >= max(1, spec["backoffLimit"]):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if _left_s(job, now) == 0:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    if broken > spec.get("maxFailedIndexes", broken):
        return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
    if broken and broken + len(counts.completed) >= spec["completions"]:
        return "FailedIndexes", "Job has failed indexes"
    return None


def _matched_rule(spec: Object, pod: Object) -> str | None:
    """Return the message of the exit-code rule that the pod matches, or None."""
    for number, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        wanted = rule.get("onExitCodes")
        for status in (pod.get("status") or {}).get("containerStatuses") or [] if wanted else []:
            code = ((status.get("state") or {}).get("terminated") or {}).get("exitCode")
            if code and wanted.get("containerName") in (None, status["name"]) and code in wanted["values"]:
                where = f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
                failed = f"Container {status['name']} for {where} failed with exit code {code}"
                return f"{failed} matching FailJob rule at index {number}"
    return None


def _left_s(job: Object, now: datetime) -> float | None:
    """Return the seconds until activeDeadlineSeconds; None without a deadline and while suspended."""
    limit_s, since = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
    if limit_s is None or since is None or job["spec"].get("suspend"):
        return None
    return max(0.0, float(limit_s) - seconds_since(since, now))


def _plan_status(changes: Changes, job: Object, counts: Counts, verdict: ConditionParts | None, now: datetime) -> None:
    known = job.get("status") or {}
    if verdict:
        # The final condition follows once every pod has ended and is counted.
        stated = [verdict, *([(FINAL[verdict[0]], *verdict[1:])] if counts.settled else [])]
    elif job["spec"].get("suspend"):
        stated = [("Suspended", "True", "JobSuspended", "Job suspended")]
    else:
        stated = [("Suspended", "False", "JobResumed", "Job resumed")] if condition(job, "Suspended") else []
    kept = {one["type"]: one for one in known.get("conditions") or []}
    new = [one for one in stated if kept.get(one[0], {}).get("status") != one[1]]
    for one in new:
        parts = dict(zip(("type", "status", "reason", "message"), one, strict=True))
        kept[one[0]] = {**parts, "lastProbeTime": timestamp(now), "lastTransitionTime": timestamp(now)}
    status = {**_numbers(job, counts), **({"conditions": list(kept.values())} if kept else {})}
    if verdict or not job["spec"].get("suspend"):
        status["startTime"] = known.get("startTime") or timestamp(now)
    if any(one[0] == "Complete" for one in stated):
        status["completionTime"] = timestamp(now)
    if status != known:
        # A merge patch: fields that have become empty must be null to be removed.
        uncounted = {name: uids or None for name, uids in counts.uncounted.items()}
        patch = {**dict.fromkeys(known), **status, "uncountedTerminatedPods": uncounted}
        changes.add(Patch(job, {"status": patch}, subresource="status"))
    for kind, _, reason, message in new:
        if kind == "Complete":
            changes.add(PostEvent(job, "Normal", "Completed", "Job completed"))
        elif kind not in FINAL:
            severity = "Warning" if kind == "Failed" else "Normal"
            changes.add(PostEvent(job, severity, _EVENTS.get(reason, reason), message))


def _numbers(job: Object, counts: Counts) -> Object:
    # Pods in `uncounted` are not yet in the numbers.
    uncounted = counts.uncounted
    counted = {
        "active": len(counts.active),
        "succeeded": counts.succeeded - len(uncounted.get("succeeded", [])),
        "failed": counts.failed - len(uncounted["failed"]),
        "completedIndexes": format_indexes(counts.completed) if is_indexed(job) else "",
    }
    return {
        **{name: value for name, value in counted.items() if value},
        **({"failedIndexes": format_indexes(counts.failed_indexes)} if has_own_limits(job) else {}),
        "ready": sum(map(is_ready, counts.active)),
        "terminating": counts.terminating,
        "uncountedTerminatedPods": {name: uids for name, uids in uncounted.items() if uids},
    }
