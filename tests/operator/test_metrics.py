"""What the operator shows of itself: as it is declared, and only what it knows."""

import asyncio

import pytest
from prometheus_client.parser import text_string_to_metric_families

from shoal_operator.children.observation import Key
from shoal_operator.errors import ApiError, NotLeadingError, reconcile_error
from shoal_operator.loop.workers import Workers
from shoal_operator.loop.workqueue import Outcome, WorkQueue
from shoal_operator.metrics import Metrics
from shoal_operator.operation import Operation
from shoal_operator.settings import Settings
from shoal_schema.interfaces.metrics import ALL_OF_OPERATOR, ReconcileError
from tests.operator.fakes import FakeCluster, upgrading
from tests.operator.samples import service

CAT = Key("default", "cat")


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """Return values by name and labels."""
    families = text_string_to_metric_families(metrics.text().decode())
    return {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}


def test_what_is_exposed_is_what_is_declared() -> None:
    families = text_string_to_metric_families(Operation(Settings.from_env({}))._metrics.text().decode())
    shown = {
        f"{family.name}_total" if family.type == "counter" else family.name: (family.type, family.documentation)
        for family in families
    }

    assert shown == {metric.name: (metric.kind, metric.description) for metric in ALL_OF_OPERATOR}


def test_a_standby_says_that_it_does_not_lead_and_nothing_of_services() -> None:
    shown = samples(Operation(Settings.from_env({}))._metrics)

    assert shown["shoal_operator_leader",] == 0
    assert not [name for name, *_ in shown if name in ("shoal_operator_services", "shoal_operator_queue_services")]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ApiError(0, "no"), ReconcileError.UNREACHABLE),
        (ApiError(403, "no"), ReconcileError.FORBIDDEN),
        (ApiError(409, "no"), ReconcileError.CONFLICT),
        (ApiError(422, "no"), ReconcileError.REFUSED),
        (ApiError(500, "no"), ReconcileError.SERVER),
        (ApiError(429, "no"), ReconcileError.SERVER),
        (NotLeadingError("no"), ReconcileError.NOT_LEADING),
        (RuntimeError("no"), ReconcileError.UNFORESEEN),
    ],
)
def test_aborted_reconciliation_is_counted_by_its_reason(error: Exception, reason: ReconcileError) -> None:
    assert reconcile_error(error) is reason
    metrics, now_s = Metrics(), [0.0]
    ended = asyncio.Event()

    async def reconcile(key: Key) -> Outcome:
        now_s[0] += 2.5
        asyncio.get_running_loop().call_soon(ended.set)
        raise error

    async def main() -> None:
        workers = Workers(WorkQueue(600), reconcile, lambda: now_s[0], metrics)
        workers.mark(CAT)
        task = asyncio.create_task(workers.run(1))
        await ended.wait()
        task.cancel()

    asyncio.run(main())
    shown = samples(metrics)
    assert shown["shoal_operator_look_errors_total", reason] == 1
    assert shown["shoal_operator_look_seconds_count",] == 1
    assert shown["shoal_operator_look_seconds_sum",] == 2.5


def test_requests_are_counted_by_method_and_status() -> None:
    metrics = Metrics()
    metrics.count_api_request("PATCH", 200)
    metrics.count_api_request("PATCH", 0)

    assert samples(metrics)["shoal_operator_api_requests_total", "PATCH", "0"] == 1


def test_services_are_told_by_what_their_status_says() -> None:
    upgrades = upgrading(FakeCluster())
    conditions = [{"type": "Ready", "status": "True", "reason": "Ready"}]
    upgrades.observe(CAT, {**service(), "status": {"conditions": conditions}})
    upgrades.observe(Key("default", "new"), service())

    assert upgrades.readiness() == [("True", "Ready")]
