"""The plan of one reconciliation: from a service's spec and its children to writes."""

import datetime
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from shoal_operator.children.observation import Key, Observation
from shoal_operator.cluster.api_time import age_s, timestamp
from shoal_operator.manifests.desired import DEPLOYMENT
from shoal_operator.manifests.origin import with_source
from shoal_operator.manifests.revisions import spec_of_pods
from shoal_operator.manifests.specs import graph_of, service_spec
from shoal_operator.manifests.target import Hosting, Target
from shoal_operator.models.resolution import ModelResolution, is_unresolved
from shoal_operator.policy.allowed import not_allowed
from shoal_operator.rollout.candidates import CandidatePlan, plan_candidate
from shoal_operator.rollout.plans import Assignment, Found
from shoal_operator.rollout.progress import RolloutProgress
from shoal_operator.rollout.upgrading import Plan, Upgrading
from shoal_schema.fields.declaring import Json
from shoal_schema.process.settings.operator import OperatorProcess
from shoal_schema.resource.model import Follow
from shoal_schema.resource.service import InferenceServiceSpec


class ModelResolver(Protocol):
    """The part of `shoal_operator.models.resolving.Resolver` that plans use."""

    def resolution(self, key: Key, resource: Json, uri: str | None, *, follows: bool) -> ModelResolution | None:
        """Return the resolution of a service's model name.

        None for a fixed version. A request to the registry starts in the background when it is due.
        """

    def registry(self, uri: str) -> Mapping[str, str]:
        """Return the environment variables with the address of the registry of ``uri``."""


class Judge(Protocol):
    """The part of `shoal_operator.rollout.judging.Judging` that reconciliations use."""

    def found(self, key: Key, revision: str, stable: frozenset[str]) -> Found:
        """Return what is known of a service's rollout to this revision."""

    def follow(self, key: Key, assignment: Assignment | None) -> None:
        """Send these plans to a service's pods from now on."""


class Hosts(Protocol):
    """The part of `shoal_operator.zero.scale_to_zero.ScaleToZero` that reconciliations use."""

    def host(self, key: Key, spec: InferenceServiceSpec, observation: Observation) -> Hosting | None:
        """Return the activator's port for a service; None if the service never scales to zero."""

    def observe(self, key: Key, observation: Observation) -> None:
        """Record a service's objects at the end of a reconciliation."""


@dataclass(frozen=True, slots=True)
class ServicePlan:
    """The plan for one service."""

    target: Target
    """The stable pods."""
    newest: Target
    """The pods of the newest spec."""
    plan: Plan
    resolution: ModelResolution | None
    """Of a mutable model name."""
    refused: str
    """Why the install's policy does not allow the spec; empty if it does."""
    rollout: CandidatePlan | None = None
    """Of a service whose changes are judged."""


@dataclass(frozen=True, slots=True)
class Planner:
    """Planner of the writes for services, from their specs.

    Args:
        defaults: images and addresses of this install.
        names: resolves model names.
        hosts: assigns ports of the activator to services that scale to zero.
        upgrading: decides when a new operator release may replace pods.
        judging: compares candidates.
        utc_now: wall clock, for the steps of rollouts.
    """

    defaults: OperatorProcess
    names: ModelResolver
    hosts: Hosts
    upgrading: Upgrading
    judging: Judge
    utc_now: Callable[[], datetime.datetime]

    def plan(self, key: Key, observation: Observation) -> ServicePlan:
        """Return the plan for a service.

        Raises:
            NoActivatorError: the service scales to zero, but no port of an activator is available for it.
            SpecError: the spec is invalid.
            LocationError: the model's URI is invalid.
        """
        resource = observation.resource
        spec = service_spec(resource)
        follows = spec.model.follow is Follow.ROLLOUT
        resolution = self.names.resolution(key, resource, spec.model.uri, follows=follows)
        # While a candidate is compared, requests are held and queued by the spec of the stable pods.
        judged = RolloutProgress.stored(resource) is not None
        served = spec_of_pods(spec, observation.owned(DEPLOYMENT)) if judged else spec
        newest = Target(
            name=key.name,
            namespace=key.namespace,
            uid=resource["metadata"]["uid"],
            spec=with_source(spec, resolution.resolved if resolution else ""),
            defaults=self.defaults,
            registry=self.names.registry(spec.model.uri or ""),
            graph=graph_of(resource, self.defaults.service_url),
            hosting=self.hosts.host(key, served, observation),
        )
        # Without a version, the newest spec has no revision yet.
        unresolved = is_unresolved(resolution)
        rollout = None if unresolved else self._plan_candidate(key, observation, newest)
        target = rollout.target if rollout else newest
        plan = self.upgrading.plan(key, observation, target)
        deployment = observation.owned(DEPLOYMENT)
        if refused := not_allowed(newest) or not_allowed(target):
            alone = plan.changes.scaling_alone(deployment, target.replicas)
            return ServicePlan(target, newest, replace(plan, changes=alone, kept=None), None, refused)
        if rollout:
            kept = rollout.with_care(plan.kept, observation) if plan.kept else None
            plan = replace(plan, changes=rollout.with_care(plan.changes, observation), kept=kept)
        # Without a version, or with another owner's account, no new pods.
        if plan.changes.account_taken or unresolved or (rollout and rollout.keeps_pods):
            plan = replace(plan, changes=plan.changes.keeping_pods(deployment, target.replicas), kept=None)
        return ServicePlan(target, newest, plan, resolution, "", rollout)

    def _plan_candidate(self, key: Key, observation: Observation, newest: Target) -> CandidatePlan | None:
        now = self.utc_now()
        return plan_candidate(
            newest,
            observation,
            partial(self.judging.found, key),
            now=timestamp(now),
            age_s=partial(age_s, now),
            registry=self.names.registry,
        )
