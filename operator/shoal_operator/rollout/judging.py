"""Loop that sends the plans of rollouts to proxies, and collects their reports.

Pods are untrusted: a response may be malformed, endless or missing. It then counts as no report of this pod. All pods
are requested concurrently within one time limit, so a slow one delays no other service.
"""

import asyncio
import datetime
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import aiohttp
import msgspec

from shoal_operator.children.observation import Key
from shoal_operator.cluster.api_time import age_s, timestamp
from shoal_operator.loop.records import Records
from shoal_operator.manifests.environment import ADMIN_PORT
from shoal_operator.rollout.plans import Assignment, Found, RolloutPod
from shoal_operator.rollout.report_sums import add_reports
from shoal_operator.rollout.situation import Decision, Reports
from shoal_operator.rollout.steps import decide
from shoal_operator.scaling.service_cache import Replica
from shoal_schema.fields.addresses import TcpAddress
from shoal_schema.interfaces.headers import ADMIN, INSTANCE
from shoal_schema.interfaces.rollout import MAX_BYTES, PATH, RolloutPlan, RolloutReport

logger = logging.getLogger(__name__)

_INTERVAL_S = 2.0
_TIMEOUT = aiohttp.ClientTimeout(total=1.5)
_UNANSWERED_S = 10.0
"""How long the end of a rollout waits for pods that do not respond: their requests to the candidate are returned."""
_RENEWED_S = 30.0
"""Minimum age of reported figures before they are replaced: each report costs a reconciliation and a status write."""
_UNSUPPORTED = (404, 405, 409, 501)
"""Statuses of proxies that cannot compare a candidate."""
_MAX_LOG_TIME = 100.0
_MAX_LOG_VARIANCE_SUM = 1e15


class InvalidReportError(ValueError):
    """A pod's response is not a report for its plan."""


class UnsupportedError(Exception):
    """A pod's proxy cannot compare a candidate."""


@dataclass(slots=True)
class JudgedRollout:
    """Plans and reports of one service's pods; times in monotonic seconds."""

    assignment: Assignment | None = None
    revision: str = ""
    """Candidate that proxies count for."""
    reports: dict[tuple[str, bool], RolloutReport] = field(default_factory=dict)
    """The last report of each pod about this candidate, by uid and whether the pod is the candidate's.

    Reports of pods that are gone stay.
    """
    accepted: dict[str, RolloutPlan] = field(default_factory=dict)
    """By uid, the last plan that a pod accepted."""
    unsupported: set[str] = field(default_factory=set)
    """Pods, by uid, that cannot compare a candidate."""
    assigned_s: float = 0.0
    """When the plans were last changed."""
    passes: int = 0
    """How often all pods were requested with these plans' candidate."""
    sending: bool = False
    woken: "tuple[object, ...] | None" = None
    """The decision that last caused a reconciliation."""
    woken_s: float = -math.inf
    """When the service was last reconciled, or is to be."""


class Judging:
    """Exchange of plans and reports with the pods of rollouts.

    Args:
        records: rollouts of all services.
        mark: schedules a service's reconciliation after a delay (s).
        utc_now: wall clock, for the time of steps.
        clock: monotonic seconds.
        port: admin port of the pods.
    """

    def __init__(
        self,
        records: Records,
        mark: Callable[[Key, float], object],
        utc_now: Callable[[], datetime.datetime],
        clock: Callable[[], float],
        port: int = ADMIN_PORT,
    ) -> None:
        self._records = records
        self._mark = mark
        self._utc_now = utc_now
        self._clock = clock
        self._port = port
        self._changed = asyncio.Event()

    # Called by the reconciler.

    def found(self, key: Key, revision: str, stable: frozenset[str]) -> Found:
        """Return what is known of a rollout.

        Args:
            key: the service.
            revision: revision of its newest spec.
            stable: uids of its stable pods.
        """
        rollout = self._records.find(key, JudgedRollout)
        if rollout is None:
            return Found()
        unsupported = not stable.isdisjoint(rollout.unsupported)
        if rollout.revision != revision:
            return Found(unsupported=unsupported, quiet=_is_quiet(rollout, self._clock()))
        return Found(
            responds=any(not is_candidate for _, is_candidate in rollout.reports),
            unsupported=unsupported,
            quiet=_is_quiet(rollout, self._clock()),
            reports=_sums(rollout),
        )

    def follow(self, key: Key, assignment: Assignment | None) -> None:
        """Send these plans to a service's pods from now on; None: no more."""
        if assignment is None and self._records.find(key, JudgedRollout) is None:
            return
        rollout = self._records.get(key, JudgedRollout)
        before = rollout.assignment
        rollout.assignment = assignment
        if assignment is None:
            return
        rollout.woken, rollout.woken_s = None, self._clock()
        # Proxies count from 0 for another candidate, and for the same one after a plan without any.
        if assignment.revision != rollout.revision:
            rollout.revision, rollout.passes = assignment.revision, 0
            rollout.reports = {}
        if before is None or before.pods != assignment.pods:
            rollout.assigned_s = self._clock()
            self._changed.set()

    # The loop.

    async def run(self) -> None:
        """Send plans and collect reports until cancelled."""
        # Another operator may have led since this one did: its candidates count from other rows.
        self._records.remove_all(JudgedRollout)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=_TIMEOUT, trust_env=False, auto_decompress=False
        )
        async with session, asyncio.TaskGroup() as tasks:
            while True:
                self._changed.clear()
                for key, rollout in self._records.of(JudgedRollout):
                    if rollout.assignment is not None and not rollout.sending:
                        rollout.sending = True
                        tasks.create_task(self._exchange(session, key, rollout, rollout.assignment))
                try:
                    async with asyncio.timeout(_INTERVAL_S):
                        await self._changed.wait()
                except TimeoutError:
                    pass

    async def _exchange(
        self, session: aiohttp.ClientSession, key: Key, rollout: JudgedRollout, assignment: Assignment
    ) -> None:
        try:
            await asyncio.gather(*(self._send(session, rollout, pod) for pod in assignment.pods))
            if assignment.revision == rollout.revision:
                rollout.passes += 1
            self._wake(key, rollout)
        except Exception:  # an unexpected error of one service must not stop the others
            logger.exception("event=judging_failed service=%s", key)
        finally:
            rollout.sending = False
            # The plans changed meanwhile.
            if rollout.assignment is not None and rollout.assignment.pods != assignment.pods:
                self._changed.set()

    async def _send(self, session: aiohttp.ClientSession, rollout: JudgedRollout, pod: RolloutPod) -> None:
        """Send a pod its plan, and store its report."""
        uid = pod.replica.uid
        try:
            report = await _put(session, pod.replica, pod.plan, self._port)
        except UnsupportedError:
            if not pod.is_candidate:
                rollout.unsupported.add(uid)
            rollout.accepted[uid] = RolloutPlan()
            return
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            logger.debug("event=plan_unanswered pod=%s error=%r", pod.replica, error)
            return
        rollout.accepted[uid] = pod.plan
        rollout.unsupported.discard(uid)
        if report.candidate and report.candidate == rollout.revision:
            rollout.reports[uid, pod.is_candidate] = report

    def _wake(self, key: Key, rollout: JudgedRollout) -> None:
        """Reconcile the service if its decision differs from the last one."""
        assignment, now_s = rollout.assignment, self._clock()
        if assignment is None:
            return
        situation = assignment.situation
        found = self.found(key, situation.newest, frozenset(_stable_uids(assignment)))
        decision = decide(
            replace(
                situation,
                responds=found.responds,
                quiet=found.quiet,
                reports=found.reports,
                now=timestamp(self._utc_now()),
                age_s=partial(age_s, self._utc_now()),
            )
        )
        new = (*_essence(decision), found.unsupported and not situation.obstacle, found.quiet)
        known = rollout.woken or (*_essence(assignment.decision), False, situation.quiet)
        is_stale = decision.message != assignment.decision.message and now_s - rollout.woken_s >= _RENEWED_S
        if new != known or is_stale:
            rollout.woken, rollout.woken_s = new, now_s
            self._mark(key, 0.0)


def _essence(decision: Decision) -> tuple[object, ...]:
    """Return what of a decision is acted upon at once; figures are reported at intervals."""
    progress = decision.progress
    return (
        decision.applied,
        decision.care,
        decision.replicas,
        decision.compared,
        decision.weight,
        decision.shadow,
        decision.reason,
        progress and (progress.phase, progress.step, progress.figures.get("rows", 0) > 0),
    )


def _stable_uids(assignment: Assignment) -> list[str]:
    return [pod.replica.uid for pod in assignment.pods if not pod.is_candidate]


def _is_quiet(rollout: JudgedRollout, now_s: float) -> bool:
    """Return whether no stable pod sends anything to a candidate."""
    assignment = rollout.assignment
    # Without plans, the last ones were accepted.
    if assignment is None:
        return True
    if assignment.revision:
        return False
    quiet = all(rollout.accepted.get(uid) == RolloutPlan() for uid in _stable_uids(assignment))
    return quiet or now_s - rollout.assigned_s >= _UNANSWERED_S


def _sums(rollout: JudgedRollout) -> Reports | None:
    """Return the sums of all reports; None before all pods were requested once."""
    if not rollout.passes:
        return None
    stable, candidate = (
        add_reports(report for (_, of), report in rollout.reports.items() if of is is_candidate)
        for is_candidate in (False, True)
    )
    return Reports(stable, candidate)


async def _put(session: aiohttp.ClientSession, replica: Replica, plan: RolloutPlan, port: int) -> RolloutReport:
    """Send a plan to a pod and return its report.

    Raises:
        UnsupportedError: the proxy cannot compare a candidate.
        InvalidReportError: the response is not a report for this plan.
        aiohttp.ClientError: no connection, or an invalid response.
        TimeoutError: no response in time.
    """
    url = f"http://{TcpAddress(replica.address, port)}{PATH}"
    headers = {
        ADMIN: "1",
        INSTANCE: replica.uid,
        "content-type": "application/json",
        # No compression, so that the size limit holds for the decoded body too.
        "accept-encoding": "identity",
    }
    request = session.put(url, data=msgspec.json.encode(plan), headers=headers, allow_redirects=False)
    async with request as response:
        # Another pod may have been given the address since.
        if response.headers.get(INSTANCE, replica.uid) != replica.uid:
            raise InvalidReportError("the address belongs to another pod now")
        if response.status in _UNSUPPORTED:
            raise UnsupportedError(f"status {response.status}")
        if response.status != 200:
            raise InvalidReportError(f"status {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_chunked(8192):
            body += chunk
            if len(body) > MAX_BYTES:
                raise InvalidReportError(f"more than {MAX_BYTES} bytes")
    return _read(bytes(body), plan)


def _read(body: bytes, plan: RolloutPlan) -> RolloutReport:
    """Decode a report.

    Raises:
        InvalidReportError: the body is no report, is about another candidate, or has an impossible time.
    """
    try:
        report = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidReportError(str(error)) from None
    if report.candidate != plan.candidate:
        raise InvalidReportError(f"a report about {report.candidate!r:.100}")
    for each in report.times:
        if abs(each.log_mean) > _MAX_LOG_TIME or each.log_variance_sum > _MAX_LOG_VARIANCE_SUM:
            raise InvalidReportError("an impossible time")
    return report


_DECODER = msgspec.json.Decoder(RolloutReport)
