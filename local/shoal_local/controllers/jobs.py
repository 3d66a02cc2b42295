"""Reconciliation of a Job: completion, status, the pods to create or delete, and the delay of retries.

Source: kubernetes/kubernetes pkg/controller/job/job_controller.go (syncJob).
"""

from collections.abc import Iterable, Sequence
from datetime import datetime

from shoal_local.controllers.changes import Action, Changes, Create, Delete, Patch, PostEvent, seconds_since
from shoal_local.controllers.job_counts import (
    FAILURES,
    INDEX,
    TRACKING,
    Counts,
    count_pods,
    fits,
    format_indexes,
    has_own_limits,
    index_of,
    is_held,
    is_indexed,
)
from shoal_local.controllers.replica_sets import MAX_CREATED_AT_ONCE, make_pod, rank
from shoal_local.objects import (
    Object,
    annotated,
    condition,
    has_ended,
    is_deleting,
    is_ready,
    make_condition,
    timestamp,
)

RETRY_S, MAX_RETRY_S = 10.0, 600.0
MAX_PREFIX = 58
"""Characters of ``generateName`` that the Kubernetes API server keeps."""


def plan_pods(job: Object, pods: Sequence[Object], counts: Counts, now: datetime, retry_s: float) -> Changes:
    """Return the changes that bring an unfinished Job to its number of pods."""
    changes = Changes()
    spec, needless = job["spec"], counts.completed | counts.failed_indexes
    if spec.get("suspend"):
        wanted = 0
    elif spec.get("completions") is None:
        # A work queue: once a pod has succeeded, no new pods are created.
        wanted = len(counts.active) if counts.succeeded else int(spec["parallelism"])
    else:
        left = spec["completions"] - counts.succeeded - len(counts.failed_indexes)
        wanted = max(0, min(int(spec["parallelism"]), int(left)))
    surplus = _surplus(job, counts, wanted, now)
    for pod in surplus:
        changes.add(*release([pod]), *end(job, pod))
    taken = [pod for pod in counts.active if pod not in surplus]
    if spec["podReplacementPolicy"] == "Failed":
        # A pod that is being deleted is replaced only after its end.
        taken += [pod for pod in pods if is_deleting(pod) and not has_ended(pod)]
    missing = max(0, min(wanted - len(taken), MAX_CREATED_AT_ONCE))
    indexes = [-1] * missing
    if is_indexed(job):
        busy = needless | {index_of(pod) for pod in taken}
        indexes = [index for index in range(spec["completions"]) if index not in busy][:missing]
    for index in indexes:
        tried = [pod for pod in pods if index_of(pod) == index] if has_own_limits(job) else pods
        wait_s = retry_in_s(tried, now, retry_s)
        if wait_s > 0:
            changes.requeue(wait_s)
        else:
            # A pod that was released before its end, as surplus, did not fail.
            failures = [annotated(pod, FAILURES, 0) + 1 for pod in tried if is_held(pod) or not is_deleting(pod)]
            changes.add(Create(make_job_pod(job, index, max(failures, default=0))))
    return changes


def _surplus(job: Object, counts: Counts, wanted: int, now: datetime) -> list[Object]:
    """Return the pods beyond the wanted number: unneeded pods first, then pods with the least progress.

    A pod without the finalizer was released as surplus before a restart, and stays surplus.
    """
    ranked = sorted(counts.active, key=lambda pod: rank(pod, now))
    kept: dict[int, Object] = {}
    needless = counts.completed | counts.failed_indexes
    for number, pod in enumerate(reversed(ranked)):
        index = index_of(pod) if is_indexed(job) else number
        if is_held(pod) and fits(job, pod) and not (is_indexed(job) and index in needless):
            kept.setdefault(index, pod)
    # One pod per index, the one with the most progress.
    best = list(kept.values())[:wanted]
    return [pod for pod in ranked if not any(pod is other for other in best)]


def retry_in_s(pods: Iterable[Object], now: datetime, retry_s: float) -> float:
    """Return the seconds to the next attempt; each failure doubles the delay."""
    ends = []
    for pod in pods:
        if has_ended(pod) and not is_deleting(pod):
            states = [status.get("state", {}) for status in pod["status"].get("containerStatuses") or []]
            times = [s["terminated"]["finishedAt"] for s in states if s.get("terminated", {}).get("finishedAt")]
            ends.append((max(times, default=str(pod["metadata"]["creationTimestamp"])), pod["status"]["phase"]))
    last_success = max((at for at, phase in ends if phase == "Succeeded"), default="")
    failures = [at for at, phase in ends if phase == "Failed" and at > last_success]
    if not failures:
        return 0.0
    # The exponent is bounded: 2**1024 exceeds a float.
    delay_s = min(retry_s * 2.0 ** min(len(failures) - 1, 20), MAX_RETRY_S)
    return max(0.0, delay_s - seconds_since(max(failures), now))


def make_job_pod(job: Object, index: int, failures: int) -> Object:
    """Return a pod from the Job's template.

    ``index`` is the pod's completion index; a negative one means none.
    """
    pod = make_pod(job)
    pod["metadata"]["finalizers"] = [TRACKING]
    if index < 0:
        return pod
    meta, suffix = pod["metadata"], f"-{index}-"
    marks = {INDEX: str(index), **({FAILURES: str(failures)} if has_own_limits(job) else {})}
    meta["labels"] = {**meta.get("labels", {}), INDEX: str(index)}
    meta["annotations"] = {**meta.get("annotations", {}), **marks}
    meta["generateName"] = job["metadata"]["name"][: MAX_PREFIX - len(suffix)] + suffix
    spec = {**pod["spec"], "hostname": f"{job['metadata']['name']}-{index}"}
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{INDEX}']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    for part in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(part) or []):
            env = container.get("env") or []
            # A variable of the template takes precedence. The template itself stays unchanged.
            if all(known["name"] != variable["name"] for known in env):
                copied = {**container, "env": [*env, variable]}
                spec[part] = [*spec[part][:at], copied, *spec[part][at + 1 :]]
    pod["spec"] = spec
    return pod


def release(pods: Iterable[Object]) -> list[Action]:
    """Return the patches that remove the Job's finalizer from pods."""
    actions: list[Action] = []
    for pod in pods:
        if is_held(pod):
            others = [name for name in pod["metadata"]["finalizers"] if name != TRACKING] or None
            actions.append(Patch(pod, {"metadata": {"finalizers": others}}))
    return actions


def end(job: Object, pod: Object) -> list[Action]:
    """Return the actions that delete a Job's pod and post an event."""
    return [Delete(pod), PostEvent(job, "Normal", "SuccessfulDelete", f"Deleted pod: {pod['metadata']['name']}")]


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
        kept[one[0]] = {**make_condition(*one, timestamp(now)), "lastProbeTime": timestamp(now)}
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
