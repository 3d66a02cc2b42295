"""The rollout of a candidate, as this replica carries it out: plan, report, canary and shadow traffic."""

import asyncio
from collections.abc import Callable, Sequence

from shoal_proxy.batching.batch import BatchResult
from shoal_proxy.batching.batcher import RunningBatch
from shoal_proxy.batching.pending import Delivery, PendingRequest
from shoal_proxy.certificate import Certificate
from shoal_proxy.dispatch.dispatcher import Dispatcher
from shoal_proxy.dispatch.link import BatchResponse, ModelLink
from shoal_proxy.model.signature import ModelSignature
from shoal_proxy.rollout.canary import CanaryTraffic
from shoal_proxy.rollout.candidates import CandidatePods
from shoal_proxy.rollout.counts import RolloutCounts
from shoal_proxy.rollout.shadow import ShadowTraffic
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.metrics import (
    ROLLOUT_COMPARED_ROWS,
    ROLLOUT_DISAGREEING_ROWS,
    ROLLOUT_FAILED_ROWS,
    ROLLOUT_ROWS,
    Metric,
)
from shoal_schema.interfaces.rollout import RolloutPlan, RolloutReport

NO_PLAN = RolloutPlan()
_ROLES = (("stable",), ("candidate",), ("shadow",))


class Rollout:
    """Carries out the plan of the operator; implements the dispatcher's `CandidateLink`."""

    def __init__(
        self, settings: Settings, dispatcher: Dispatcher, link: ModelLink, certificate: Certificate | None = None
    ) -> None:
        self._revision = settings.process.revision
        self._dispatcher = dispatcher
        self._link = link
        self._pods = CandidatePods(settings, link, dispatcher.scheduler.batcher, dispatcher.instance, certificate)
        self._canary = CanaryTraffic(settings, self._pods, dispatcher.scheduler.batcher)
        self._shadow = ShadowTraffic(settings, self._pods, dispatcher)
        self._counts = RolloutCounts()
        self._plan = NO_PLAN
        self._canary.on_returned = dispatcher.readmit
        self._canary.on_served = self._served_elsewhere
        self._canary.on_ended = dispatcher.check_settled
        self.on_plan: Callable[[RolloutPlan], None] = lambda _: None
        """Called with each new plan."""
        dispatcher.set_candidates(self)
        dispatcher.revision = self._revision.encode()

    @property
    def is_candidate(self) -> bool:
        """Return whether this pod itself is the candidate."""
        return self._plan.candidate != "" and self._plan.candidate == self._revision

    @property
    def counters(self) -> dict[Metric, dict[tuple[str], int]]:
        """Return the counters of metrics by their label: role or output; without a candidate, no label has one."""
        counts, compares = self._counts, self._plan.candidate != "" and not self.is_candidate
        rows = (counts.served_rows, counts.candidate_rows, counts.shadowed_rows)
        failed_rows = (counts.failed.rows, counts.candidate_failed.rows, counts.shadow_failed.rows)
        outputs = counts.compared_rows
        return {
            ROLLOUT_ROWS: dict(zip(_ROLES, rows, strict=True)) if compares else {},
            ROLLOUT_FAILED_ROWS: dict(zip(_ROLES, failed_rows, strict=True)) if compares else {},
            ROLLOUT_COMPARED_ROWS: {(name,): compared for name, (compared, _) in outputs.items()},
            ROLLOUT_DISAGREEING_ROWS: {(name,): disagreeing for name, (_, disagreeing) in outputs.items()},
        }

    def set_plan(self, plan: RolloutPlan) -> None:
        """Carry out a plan from now on; another candidate than before resets the counts."""
        if plan.candidate != self._plan.candidate:
            self._counts = RolloutCounts()
        self._plan = plan
        candidate = "" if self.is_candidate else plan.candidate
        self._pods.set_revision(candidate, allow_signature_change=plan.allow_signature_change)
        self._dispatcher.comparing = bool(plan.candidate)
        self.on_plan(plan)

    def report(self) -> RolloutReport:
        """Return the counts since the first plan that named the candidate."""
        pods = self._pods
        return self._counts.report(
            self._revision,
            self._plan.candidate,
            ready_candidates=len(pods.ready),
            memory=self._link.memory,
            input_change=pods.input_change,
            output_change=pods.output_change,
        )

    async def watch(self) -> None:
        """Track the candidate's pods, and run batches again, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pods.watch())
            group.create_task(self._shadow.watch())

    def close(self) -> None:
        """Cancel comparisons, and close the connections to the candidate."""
        self._shadow.close()
        self._pods.close()

    # The dispatcher's events.

    @property
    def has_forwarded(self) -> bool:
        """Return whether the candidate still has requests of clients."""
        return self._canary.requests.has_forwarded

    def forward(self, pending: PendingRequest, signature: ModelSignature | None) -> bool:
        """Assign a new request to a revision; return whether it was sent to the candidate."""
        if pending.client is not None:
            self._pods.credentials = pending.client.credentials
        if not self._plan.weight or signature is None or self.is_candidate:
            return False
        return self._canary.forward(pending, signature, self._plan, self._counts)

    def cancel(self, pending: PendingRequest) -> bool:
        """Cancel a disconnected client's request; return whether the candidate had it."""
        return self._canary.requests.cancel(pending)

    def fail_all(self) -> None:
        """Fail all requests that the candidate has, because the drain has timed out."""
        self._canary.requests.fail_all()

    def batch_completed(
        self,
        running: RunningBatch,
        sent: BatchResponse,
        result: BatchResult,
        signature: ModelSignature,
        deliveries: Sequence[Delivery],
    ) -> None:
        """Count a completed batch of this pod, and send a copy to the candidate if it is in the plan's share."""
        # A batch that was sent ahead waited at the runtime for the one before it.
        alone = self._dispatcher.scheduler.batcher.limits.in_flight == 1
        begun_s = max(sent.sent_s, running.started_s) if alone else sent.sent_s
        self._counts.record_batch(running.rows, sent.completed_s - begun_s)
        self._counts.record_outcomes(deliveries)
        if self._plan.shadow and not self.is_candidate:
            self._shadow.offer(running.batch, result, signature, self._plan, self._counts)

    def requests_ended(self, deliveries: Sequence[Delivery]) -> None:
        """Count requests of failed batches."""
        self._counts.record_outcomes(deliveries)

    def _served_elsewhere(self, pending: PendingRequest) -> None:
        # The service's load includes the requests that the candidate serves.
        traffic = self._dispatcher.scheduler.traffic
        traffic.arrived_rows += pending.rows
        traffic.forwarded_rows += pending.rows
