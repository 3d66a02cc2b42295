"""The plan of a rollout for one service: from its objects to a decision and the objects of a candidate."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from shoal_operator.children.changes import Apply, Changes, Merge, is_own
from shoal_operator.children.observation import Observation, dig
from shoal_operator.children.pods import deployed_hash, find_problem, is_leaving, is_ready, runs, template_hash
from shoal_operator.manifests.containers import PROXY, REVISION
from shoal_operator.manifests.deployment import spec_annotations
from shoal_operator.manifests.desired import CANDIDATE, CANDIDATE_CHILDREN, CANDIDATE_POLICY, DEPLOYMENT, SERVICE
from shoal_operator.manifests.labels import REVISION_ANNOTATION, SPEC_HASH_ANNOTATION, digest
from shoal_operator.manifests.revisions import changed_parts, revision_of, stored_pod_spec, with_pod_spec
from shoal_operator.manifests.target import Target
from shoal_operator.rollout.plans import Assignment, Found, RolloutPod, make_plan
from shoal_operator.rollout.progress import Command, RolloutProgress
from shoal_operator.rollout.situation import Care, Decision, ObservedCandidate, Situation
from shoal_operator.rollout.steps import decide
from shoal_operator.rollout.upgrade import has_spec, is_pending
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.fields.declaring import Json, as_json
from shoal_schema.interfaces.rollout import RolloutPlan
from shoal_schema.resource.rollout import RolloutSpec, steps_of
from shoal_schema.resource.service import InferenceServiceSpec
from shoal_schema.resource.traffic import RowChecks

_UNKNOWN = "unknown"
"""Revision of a candidate's Deployment without the annotation."""
_OLDER_PROXY = (
    "the stable pods have the proxy of an older release, which compares nothing. The candidate starts after the"
    " upgrade of the stable pods (condition Upgraded). A proxy.image of the spec must be of this release"
)


@dataclass(frozen=True, slots=True)
class CandidatePlan:
    """The plan of one service's rollout."""

    target: Target
    """The stable pods, with the candidate."""
    decision: Decision
    situation: Situation
    keeps_pods: bool = False
    """The stable pods stay as they are, because the spec that they were made from is unknown."""

    def with_care(self, changes: Changes, observation: Observation) -> Changes:
        """Return the changes, with only those of the candidate's Deployment that the decision allows."""
        live, replicas = observation.owned(CANDIDATE), self.decision.replicas
        others = tuple(action for action in changes.actions if action.kind != CANDIDATE)
        action = next((action for action in changes.actions if action.kind == CANDIDATE), None)
        if action is None or self.decision.care is Care.KEEP:
            return replace(changes, actions=others)
        # A new release of the operator does not replace the candidate's pods: they are removed soon.
        if isinstance(action, Apply) and live and is_pending(action.body, live, observation.resource):
            action = Merge(CANDIDATE, {"spec": {"replicas": replicas}})
            if dig(live, "spec", "replicas") == replicas:
                return replace(changes, actions=others)
        return replace(changes, actions=(*others, action))

    def assignment(self, observation: Observation) -> Assignment | None:
        """Return the plans for the pods' proxies; None if no proxy has a plan.

        Args:
            observation: the service's objects after the writes.
        """
        decision, newest = self.decision, self.situation.newest
        revision = newest if decision.compared else ""
        live = observation.owned(CANDIDATE)
        if not revision and self.situation.quiet and not live:
            return None
        if not revision and not live and decision.progress is None:
            return None
        plan = RolloutPlan()
        if revision:
            plan = make_plan(self.situation.rollout, revision, decision.weight, decision.shadow)
        # Pods that already have the candidate's revision serve all of their requests.
        stable = (RolloutPod(each, RolloutPlan() if of == newest else plan) for each, of in _proxies(observation.pods))
        counting = RolloutPlan(candidate=revision)
        judged = (RolloutPod(each, counting, is_candidate=True) for each, _ in _proxies(observation.candidate_pods))
        situation = replace(self.situation, progress=decision.progress)
        return Assignment((*stable, *(judged if revision else ())), revision, situation, decision)


def plan_candidate(
    newest: Target,
    observation: Observation,
    found: Callable[[str, frozenset[str]], Found],
    now: str,
    age_s: Callable[[str], float],
    registry: Callable[[str], Mapping[str, str]],
) -> CandidatePlan | None:
    """Return the plan of a service's rollout; None if it has no candidate and needs none.

    Args:
        newest: the pods of the newest spec.
        observation: the service's objects.
        found: returns what the judging loop found, by the candidate's revision and the stable pods' uids.
        now: the time, in the API's format.
        age_s: returns the seconds since a time of the API.
        registry: returns the variables with the address of a registry.
    """
    resource, progress = observation.resource, RolloutProgress.stored(observation.resource)
    live = observation.owned(CANDIDATE)
    if newest.graph is not None or not (newest.judges or progress or live):
        return None
    revision = revision_of(newest.spec)
    stable, spec = _stable(newest, observation)
    pods = [pod for pod in observation.pods if not is_leaving(pod)]
    known = found(revision, frozenset(pod["metadata"]["uid"] for pod in pods))
    problem = find_problem(_newest_pods(observation))
    situation = Situation(
        rollout=newest.spec.rollout,
        newest=revision,
        stable=stable,
        progress=progress,
        command=Command.of(resource),
        changed_together=changed_parts(spec, newest.spec) if spec else (),
        obstacle=_obstacle(newest, observation, spec) or (_OLDER_PROXY if known.unsupported else ""),
        stable_replicas=newest.replicas,
        stable_settled=_is_settled(observation.owned(DEPLOYMENT)),
        stable_problem=problem.message if problem else "",
        stable_start_s=_start_s(pods, age_s),
        candidate=_observe_candidate(observation, newest.spec.rollout, age_s),
        responds=known.responds,
        quiet=known.quiet or not pods,
        reports=known.reports,
        repeats=(spec or newest.spec).batching.row_checks is not RowChecks.OFF,
        terms=_terms(newest.spec.rollout),
        now=now,
        age_s=age_s,
    )
    decision = decide(situation)
    held = not decision.applied and spec is not None and stable != revision
    target = newest
    if held and spec is not None:
        target = replace(newest, spec=spec, held=True, registry=registry(spec.model.uri or ""))
    if decision.care is Care.RUN:
        target = replace(target, candidate=replace(newest, candidate_replicas=decision.replicas))
    elif live and decision.care is Care.KEEP:
        # Its Deployment stays as it is, but its Service and NetworkPolicy must exist.
        target = replace(target, candidate=replace(newest, candidate_replicas=0))
    return CandidatePlan(target, decision, situation, keeps_pods=not decision.applied and not held)


def _stable(newest: Target, observation: Observation) -> tuple[str | None, InferenceServiceSpec | None]:
    """Return the revision of the stable pods and their spec.

    The revision is None without a Deployment, and empty where it is unknown; the spec is None where it is unknown.
    """
    live = observation.owned(DEPLOYMENT) or observation.orphaned(DEPLOYMENT)
    specs = [
        spec
        for child in (live, observation.owned(SERVICE))
        if child and (text := stored_pod_spec(child)) and (spec := with_pod_spec(newest.spec, text)) is not None
    ]
    if not live:
        # A deleted Deployment is restored with the revision that it had during this rollout.
        progress = RolloutProgress.stored(observation.resource)
        known = [spec for spec in specs if progress and revision_of(spec) == progress.stable]
        return (revision_of(known[0]), known[0]) if known else (None, None)
    revision = dig(live, "metadata", "annotations", REVISION_ANNOTATION, default="")
    if not revision and specs:
        revision = revision_of(specs[0])
    elif not revision and _has_spec(live, newest, observation.resource):
        return revision_of(newest.spec), newest.spec
    return revision, next((spec for spec in specs if revision_of(spec) == revision), None)


def _has_spec(live: Json, newest: Target, resource: Json) -> bool:
    """Return whether a Deployment of an older release has the newest spec."""
    annotations = (spec_annotations(replace(newest, peers_name_taken=taken)) for taken in (False, True))
    return has_spec(live, [each[SPEC_HASH_ANNOTATION] for each in annotations], resource)


def _obstacle(newest: Target, observation: Observation, spec: InferenceServiceSpec | None) -> str:
    """Return why the stable pods cannot compare a candidate, or ""."""
    if not newest.finds_candidates:
        return (
            f"the candidate's Service would be named {newest.candidate_name}, which exceeds 63 characters. Promote the"
            " new spec, or set rollout.strategy: Rolling"
        )
    for kind in CANDIDATE_CHILDREN:
        live = observation.children.get(kind)
        needed = newest.restricted or kind != CANDIDATE_POLICY
        if live and needed and not is_own(live, newest):
            name = live["metadata"]["name"]
            return f"{kind.kind} {name} exists and has another owner. Delete it, or promote the new spec"
    if spec is None:
        return (
            "the stable pods are of an older release or were changed, so their spec is unknown. Apply the former spec,"
            " or promote the new one"
        )
    live = observation.owned(DEPLOYMENT)
    containers: list[Json] = dig(live, "spec", "template", "spec", "containers", default=[])
    proxy: Json = next((each for each in containers if each["name"] == PROXY), {})
    if live and not any(each.get("name") == REVISION for each in proxy.get("env") or ()):
        return _OLDER_PROXY
    return ""


def _is_settled(live: Json) -> bool:
    """Return whether all pods of a Deployment have its template and are available."""
    counts = partial(dig, live, "status", default=0)
    wanted = dig(live, "spec", "replicas", default=0)
    seen = counts("observedGeneration") >= dig(live, "metadata", "generation", default=0)
    return bool(seen and counts("updatedReplicas") == counts("replicas") and counts("availableReplicas") >= wanted)


def _observe_candidate(
    observation: Observation, rollout: RolloutSpec, age_s: Callable[[str], float]
) -> ObservedCandidate:
    live = observation.owned(CANDIDATE)
    if not live:
        return ObservedCandidate()
    pods = [pod for pod in observation.candidate_pods if not is_leaving(pod)]
    conditions: list[Json] = dig(live, "status", "conditions", default=[])
    states = {each.get("type"): each for each in conditions}
    problem = find_problem(pods)
    refused = states.get("ReplicaFailure", {})
    text = problem.message if problem else refused.get("message", "") if refused.get("status") == "True" else ""
    exceeded = states.get("Progressing", {}).get("reason") == "ProgressDeadlineExceeded"
    # Pods that ran before have no deadline of the Deployment.
    waits_s = [_unready_s(pod, age_s) for pod in pods]
    lasting = bool(waits_s) and min(waits_s) > rollout.progress_deadline_seconds
    return ObservedCandidate(
        revision=dig(live, "metadata", "annotations", REVISION_ANNOTATION, default=_UNKNOWN),
        ready=sum(map(is_ready, pods)),
        problem=text,
        start_s=_start_s(pods, age_s),
        overdue=bool(dig(live, "spec", "replicas")) and (exceeded or lasting),
    )


def _ready_condition(pod: Json) -> Json:
    conditions: list[Json] = dig(pod, "status", "conditions", default=[])
    return next((each for each in conditions if each.get("type") == "Ready"), {})


def _start_s(pods: Iterable[Json], age_s: Callable[[str], float]) -> float | None:
    """Return the shortest time from the creation of a pod until it was ready (s); None if none is ready.

    A pod that was unready meanwhile seems to start later.
    """
    times = [
        (dig(pod, "metadata", "creationTimestamp"), _ready_condition(pod).get("lastTransitionTime"))
        for pod in pods
        if is_ready(pod)
    ]
    return min((age_s(created) - age_s(ready) for created, ready in times if created and ready), default=None)


def _unready_s(pod: Json, age_s: Callable[[str], float]) -> float:
    """Return for how long a pod has not been ready (s); 0 if it is ready, or if this is unknown."""
    ready = _ready_condition(pod)
    since = ready.get("lastTransitionTime") or dig(pod, "metadata", "creationTimestamp")
    if ready.get("status") == "True" or not since:
        return 0.0
    return age_s(since)


def _newest_pods(observation: Observation) -> list[Json]:
    """Return the stable pods of their Deployment's template."""
    newest = deployed_hash(observation.owned(DEPLOYMENT))
    return [pod for pod in observation.pods if template_hash(pod) == newest]


def _terms(rollout: RolloutSpec) -> str:
    """Return a digest of what a candidate is judged by."""
    return digest([as_json(rollout.compare), *(as_json(step) for step in steps_of(rollout))])[:10]


def _proxies(pods: tuple[Json, ...]) -> list[tuple[Replica, str]]:
    """Return the pods whose proxy runs, each with its revision."""
    return [
        (Replica.of(pod), _revision(pod))
        for pod in pods
        if dig(pod, "status", "podIP") and (is_ready(pod) or runs(pod, PROXY))
    ]


def _revision(pod: Json) -> str:
    containers: list[Json] = dig(pod, "spec", "containers", default=[])
    variables = (each for container in containers if container["name"] == PROXY for each in container.get("env") or ())
    return str(next((each.get("value") for each in variables if each["name"] == REVISION), ""))
