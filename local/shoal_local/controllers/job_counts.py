"""What a Job's pods amount to. Each pod counts once, also one that vanishes right after.

A pod is held by a finalizer until the status tells how it ended: first by its uid, where the number alone would not say
whom it counts (``uncountedTerminatedPods``), and once the finalizer is gone in the number. Source:
kubernetes/kubernetes pkg/controller/job/job_controller.go (trackJobStatusAndRemoveFinalizers).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from shoal_local.controllers.indexes import annotated, index_of, read_indexes
from shoal_local.objects import Object, condition, has_ended, is_going

TRACKING = "batch.kubernetes.io/job-tracking"
FAILURES = "batch.kubernetes.io/job-index-failure-count"


@dataclass(frozen=True, slots=True)
class Counts:
    """How far a Job is."""

    active: list[Object]
    """Pods that have not ended and are not going."""
    terminating: int
    """Pods that are going and have not ended."""
    counted: list[Object]
    """Pods whose end the status tells from now on: they may go."""
    held: int
    """Pods that have a finalizer still."""
    succeeded: int
    """Pods, or indexes of an Indexed Job."""
    failed: int
    uncounted: dict[str, list[str]]
    """Uids of those in the two numbers that the status has by uid only."""
    completed: frozenset[int]
    failed_indexes: frozenset[int]

    @property
    def settled(self) -> bool:
        """Return whether every pod has ended and is counted."""
        return not (self.active or self.terminating or self.held or any(self.uncounted.values()))


def count_pods(job: Object, pods: Sequence[Object]) -> Counts:
    """Count the pods of a Job on top of what its status says."""
    status, indexed = job.get("status") or {}, is_indexed(job)
    held = [pod for pod in pods if is_held(pod)]
    own = [pod for pod in held if fits(job, pod)]
    given_up = _known(status, "failed")
    lost = [pod for pod in own if pod["metadata"]["uid"] in given_up or _has_failed(job, pod)]
    done = [pod for pod in own if pod["metadata"]["uid"] not in given_up and _phase(pod) == "Succeeded"]
    completed = read_indexes(status.get("completedIndexes", "")) | {index_of(pod) for pod in done if indexed}
    broken = read_indexes(status.get("failedIndexes", ""))
    # A Job that has failed ends its pods itself, which says nothing of their indexes.
    if has_own_limits(job) and condition(job, "FailureTarget") is None:
        broken |= {index_of(pod) for pod in lost if annotated(pod, FAILURES, 0) >= job["spec"]["backoffLimitPerIndex"]}
        lost = [pod for pod in lost if index_of(pod) in completed | broken or _is_followed(pod, pods)]
    ended = {"failed": lost} if indexed else {"failed": lost, "succeeded": done}
    uncounted = {name: _uncounted(status, name, some, held) for name, some in ended.items()}
    return Counts(
        active=[pod for pod in pods if not is_going(pod) and not has_ended(pod)],
        terminating=sum(is_going(pod) and not has_ended(pod) for pod in pods),
        counted=[*done, *lost, *(pod for pod in held if has_ended(pod) and not fits(job, pod))],
        held=len(held),
        succeeded=len(completed) if indexed else _total(status, "succeeded", held) + len(uncounted["succeeded"]),
        failed=_total(status, "failed", held) + len(uncounted["failed"]),
        uncounted=uncounted,
        completed=completed,
        failed_indexes=broken - completed,
    )


def is_indexed(job: Object) -> bool:
    """Return whether each pod of the Job has an index."""
    return bool(job["spec"]["completionMode"] == "Indexed")


def fits(job: Object, pod: Object) -> bool:
    """Return whether the Job has use for a pod of this index."""
    return not is_indexed(job) or 0 <= index_of(pod) < int(job["spec"]["completions"])


def has_own_limits(job: Object) -> bool:
    """Return whether each index has a number of retries of its own."""
    return job["spec"].get("backoffLimitPerIndex") is not None


def is_held(pod: Object) -> bool:
    """Return whether the pod waits for its Job to count it."""
    return TRACKING in (pod["metadata"].get("finalizers") or [])


def _phase(pod: Object) -> str:
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _has_failed(job: Object, pod: Object) -> bool:
    """Return whether the pod counts as failed. One that is going does, if others may replace it before its end."""
    early = job["spec"]["podReplacementPolicy"] == "TerminatingOrFailed" and is_going(pod)
    return _phase(pod) == "Failed" or (early and not has_ended(pod))


def _is_followed(pod: Object, pods: Iterable[Object]) -> bool:
    """Return whether a later pod of the index knows of this failure; until then this pod alone does."""
    failures = annotated(pod, FAILURES, 0)
    return any(index_of(other) == index_of(pod) and annotated(other, FAILURES, 0) > failures for other in pods)


def _uncounted(status: Object, name: str, ended: Iterable[Object], held: Iterable[Object]) -> list[str]:
    uids = {pod["metadata"]["uid"] for pod in held}
    known = [uid for uid in _known(status, name) if uid in uids]
    return known + [uid for pod in ended if (uid := pod["metadata"]["uid"]) not in known]


def _total(status: Object, name: str, held: Iterable[Object]) -> int:
    """Return the number by now: what the status said, and those whose finalizer is gone since."""
    uids = {pod["metadata"]["uid"] for pod in held}
    return int(status.get(name, 0)) + sum(uid not in uids for uid in _known(status, name))


def _known(status: Object, name: str) -> list[str]:
    return (status.get("uncountedTerminatedPods") or {}).get(name) or []
