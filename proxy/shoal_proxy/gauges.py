"""Gauges of a proxy's metrics, which each scrape reads."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from shoal_proxy.explaining.load import demand, expected_wait_s, utilization
from shoal_proxy.explaining.report import last_key
from shoal_proxy.lifecycle.drain import ProxyPhase
from shoal_schema.interfaces import metrics as declared

if TYPE_CHECKING:
    from shoal_proxy.asynchronous.delivery import WebhookDelivery
    from shoal_proxy.asynchronous.execution import AsyncRequests
    from shoal_proxy.batching.scheduler import Scheduler
    from shoal_proxy.certificate import Certificate
    from shoal_proxy.dispatch.dispatcher import Dispatcher
    from shoal_proxy.dispatch.link import ModelLink
    from shoal_proxy.dispatch.unread import UnreadResponses
    from shoal_proxy.http.connection_limits import ConnectionLimits


class MeasuredParts(Protocol):
    """The parts of a proxy that its gauges describe."""

    scheduler: "Scheduler"
    dispatcher: "Dispatcher"
    link: "ModelLink"
    front_limits: "ConnectionLimits"
    unread: "UnreadResponses"
    certificate: "Certificate | None"
    asynchronous: "AsyncRequests | None"
    webhooks: "WebhookDelivery | None"


def gauges_of(proxy: MeasuredParts) -> dict[declared.Metric, Callable[[], float | None]]:
    """Return the functions that read the gauges of a proxy, by metric."""
    scheduler, queue = proxy.scheduler, proxy.scheduler.queue
    certificate, checks = proxy.certificate, scheduler.checks
    gauges: dict[declared.Metric, Callable[[], float | None]] = {
        **({declared.CERTIFICATE_EXPIRY: lambda: certificate.expires_s} if certificate else {}),
        declared.QUEUE_ROWS: lambda: queue.rows,
        declared.QUEUE_REQUESTS: lambda: queue.requests,
        declared.QUEUE_BYTES: lambda: queue.size_bytes,
        declared.IN_FLIGHT_ROWS: lambda: scheduler.in_flight_rows,
        declared.IN_FLIGHT_BATCHES: lambda: len(scheduler.running),
        declared.COALESCED_ROWS: lambda: scheduler.coalesced_rows,
        declared.CONNECTIONS: lambda: len(proxy.front_limits.members),
        declared.UNSENT_BYTES: lambda: proxy.unread.size_bytes,
        declared.RUNTIME_READY: lambda: proxy.link.ready,
        declared.RUNTIME_LOSSES: lambda: proxy.link.losses,
        declared.DEVICE_MEMORY_USED_BYTES: lambda: _part(proxy.link.device_memory, 0),
        declared.DEVICE_MEMORY_BYTES: lambda: _part(proxy.link.device_memory, 1),
        declared.BATCH_ROWS_LIMIT: lambda: scheduler.batcher.tables.least_max_rows,
        declared.OBJECTIVE_ATTAINABLE: lambda: scheduler.batcher.can_meet_objective(last_key(scheduler.batcher)),
        declared.UTILIZATION: lambda: utilization(scheduler, time.monotonic()),
        declared.DEMAND: lambda: demand(scheduler, time.monotonic()),
        declared.EXPECTED_WAIT_SECONDS: lambda: expected_wait_s(scheduler, time.monotonic()),
        declared.DRAINING: lambda: proxy.dispatcher.phase is not ProxyPhase.SERVING,
    }
    if proxy.asynchronous is not None:
        jobs = proxy.asynchronous.table
        gauges |= {
            declared.ASYNC_WAITING: lambda: jobs.waiting,
            declared.ASYNC_WAITING_ROWS: lambda: jobs.waiting_rows,
            declared.ASYNC_HELD: lambda: len(jobs),
            declared.ASYNC_BYTES: lambda: jobs.held_bytes,
        }
    if proxy.webhooks is not None:
        deliveries = proxy.webhooks.queue
        gauges[declared.WEBHOOKS_HELD] = lambda: deliveries.held
    if checks is not None:
        gauges |= {
            declared.ROWS_CHECKED: lambda: checks.checked_rows,
            declared.ROWS_SUSPECTED: lambda: checks.suspected_rows,
            declared.ROW_VIOLATIONS: lambda: checks.violations,
            declared.ROW_CHECK_SECONDS: lambda: checks.device_s,
            declared.ROWS_INDEPENDENT: lambda: None if checks.unchecked else not checks.violated,
        }
    return gauges


def _part(of: tuple[int, int] | None, number: int) -> int | None:
    return None if of is None else of[number]
