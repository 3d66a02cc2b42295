"""One pass over a Job: whether it is over, its status, and its pods.

Source: kubernetes/kubernetes pkg/controller/job/job_controller.go (syncJob).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from shoal_local.controllers.changes import Changes, Delete, Patch, Tell, seconds_since
from shoal_local.controllers.indexes import written
from shoal_local.controllers.job_counts import Counts, count_pods, has_own_limits, is_indexed
from shoal_local.controllers.job_pods import RETRY_S, end, plan_pods, release
from shoal_local.objects import Object, condition, is_going, is_ready, timestamp

Told = tuple[str, str, str, str]
"""Type, status, reason and message of a condition."""
FINAL = {"FailureTarget": "Failed", "SuccessCriteriaMet": "Complete"}
_EVENTS = {"JobSuspended": "Suspended", "JobResumed": "Resumed"}


def plan_job(job: Object, owned: Sequence[Object], now: datetime, *, retry_s: float = RETRY_S) -> Changes:
    """Return the next step for a Job and the pods that it owns.

    ``retry_s`` is the wait after the first failure; it doubles with each.
    """
    changes = Changes()
    if final := next(filter(None, (condition(job, kind) for kind in FINAL.values())), None):
        _expire(changes, job, final, now)
        return changes
    counts = count_pods(job, owned)
    verdict = _verdict(job, owned, counts, now)
    _plan_status(changes, job, counts, verdict, now)
    # Once that is written: what was counted is never counted again.
    changes.add(*release(owned if is_going(job) else counts.counted))
    if verdict:
        changes.add(*(action for pod in counts.active for action in end(job, pod)))
    elif not is_going(job):
        pods = plan_pods(job, owned, counts, now, retry_s)
        changes.add(*pods.actions)
        changes.look_again(pods.again_s)
        changes.look_again(_left_s(job, now))
    return changes


def _expire(changes: Changes, job: Object, final: Object, now: datetime) -> None:
    kept_s = job["spec"].get("ttlSecondsAfterFinished")
    if kept_s is None or is_going(job):
        return
    left_s = kept_s - seconds_since(final["lastTransitionTime"], now)
    changes.look_again(max(left_s, 0.0))
    if left_s <= 0:
        changes.add(Delete(job))


def _verdict(job: Object, pods: Iterable[Object], counts: Counts, now: datetime) -> Told | None:
    """Return the condition that ends the Job; None as long as it goes on."""
    if known := next(filter(None, (condition(job, kind) for kind in FINAL)), None):
        return known["type"], "True", known["reason"], known["message"]
    if failure := _failure(job, pods, counts, now):
        return "FailureTarget", "True", *failure
    wanted = job["spec"].get("completions")
    if counts.active or counts.succeeded < (1 if wanted is None else wanted):
        return None
    return "SuccessCriteriaMet", "True", "CompletionsReached", "Reached expected number of succeeded pods"


def _failure(job: Object, pods: Iterable[Object], counts: Counts, now: datetime) -> tuple[str, str] | None:
    spec, broken = job["spec"], len(counts.failed_indexes)
    if why := next(filter(None, (_final(spec, pod) for pod in pods)), None):
        return "PodFailurePolicy", why
    if counts.failed > spec["backoffLimit"] or _restarts(job, pods) >= max(1, spec["backoffLimit"]):
        return "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    if _left_s(job, now) == 0:
        return "DeadlineExceeded", "Job was active longer than specified deadline"
    if broken > spec.get("maxFailedIndexes", broken):
        return "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
    if broken and broken + len(counts.completed) >= spec["completions"]:
        return "FailedIndexes", "Job has failed indexes"
    return None


def _final(spec: Object, pod: Object) -> str | None:
    """Return by which rule a pod's failure ends the Job. Rules of conditions never fit: nothing disrupts pods here."""
    for number, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or []):
        wanted = rule.get("onExitCodes")
        for status in (pod.get("status") or {}).get("containerStatuses") or [] if wanted else []:
            code = ((status.get("state") or {}).get("terminated") or {}).get("exitCode")
            if code and wanted.get("containerName") in (None, status["name"]) and code in wanted["values"]:
                where = f"pod {pod['metadata']['namespace']}/{pod['metadata']['name']}"
                said = f"Container {status['name']} for {where} failed with exit code {code}"
                return f"{said} matching FailJob rule at index {number}"
    return None


def _restarts(job: Object, pods: Iterable[Object]) -> int:
    """Return how often containers were started again in place of new pods."""
    if job["spec"]["template"]["spec"]["restartPolicy"] != "OnFailure":
        return 0
    told = [pod["status"] for pod in pods if (pod.get("status") or {}).get("phase") in ("Pending", "Running")]
    parts = ("initContainerStatuses", "containerStatuses")
    return sum(status.get("restartCount", 0) for one in told for part in parts for status in one.get(part) or [])


def _left_s(job: Object, now: datetime) -> float | None:
    """Return how long the Job may go on; None without a deadline, and while it is suspended."""
    limit_s, since = job["spec"].get("activeDeadlineSeconds"), (job.get("status") or {}).get("startTime")
    if limit_s is None or since is None or job["spec"].get("suspend"):
        return None
    return max(0.0, float(limit_s) - seconds_since(since, now))


def _plan_status(changes: Changes, job: Object, counts: Counts, verdict: Told | None, now: datetime) -> None:
    known = job.get("status") or {}
    told = _told(job, counts, verdict)
    kept = {one["type"]: one for one in known.get("conditions") or []}
    new = [one for one in told if kept.get(one[0], {}).get("status") != one[1]]
    conditions = list({**kept, **{one[0]: _condition(one, now) for one in new}}.values())
    status = {**_numbers(job, counts), **({"conditions": conditions} if conditions else {})}
    if verdict or not job["spec"].get("suspend"):
        status["startTime"] = known.get("startTime") or timestamp(now)
    if any(one[0] == "Complete" for one in told):
        status["completionTime"] = timestamp(now)
    if status != known:
        uncounted = {name: uids or None for name, uids in counts.uncounted.items()}
        patch = {**dict.fromkeys(known), **status, "uncountedTerminatedPods": uncounted}
        changes.add(Patch(job, {"status": patch}, subresource="status"))
    changes.add(*(_event(job, one) for one in new if one[0] not in FINAL))


def _numbers(job: Object, counts: Counts) -> Object:
    uncounted = counts.uncounted
    counted = {
        "active": len(counts.active),
        "succeeded": counts.succeeded - len(uncounted.get("succeeded", [])),
        "failed": counts.failed - len(uncounted["failed"]),
        "completedIndexes": written(counts.completed) if is_indexed(job) else "",
    }
    return {
        **{name: value for name, value in counted.items() if value},
        **({"failedIndexes": written(counts.failed_indexes)} if has_own_limits(job) else {}),
        "ready": sum(map(is_ready, counts.active)),
        "terminating": counts.terminating,
        "uncountedTerminatedPods": {name: uids for name, uids in uncounted.items() if uids},
    }


def _told(job: Object, counts: Counts, verdict: Told | None) -> list[Told]:
    """Return the conditions by now. The final one waits until every pod has ended and is counted."""
    if verdict:
        return [verdict, *([(FINAL[verdict[0]], *verdict[1:])] if counts.settled else [])]
    if job["spec"].get("suspend"):
        return [("Suspended", "True", "JobSuspended", "Job suspended")]
    return [("Suspended", "False", "JobResumed", "Job resumed")] if condition(job, "Suspended") else []


def _condition(told: Told, now: datetime) -> Object:
    words = dict(zip(("type", "status", "reason", "message"), told, strict=True))
    return {**words, "lastProbeTime": timestamp(now), "lastTransitionTime": timestamp(now)}


def _event(job: Object, told: Told) -> Tell:
    kind, _, reason, message = told
    if kind == "Complete":
        return Tell(job, "Normal", "Completed", "Job completed")
    return Tell(job, "Warning" if kind == "Failed" else "Normal", _EVENTS.get(reason, reason), message)
