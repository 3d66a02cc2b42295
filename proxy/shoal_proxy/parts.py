"""Parts of a proxy that settings configure: scheduler, link, certificate and connection limits."""

from random import randrange

from shoal_proxy.batching.batcher import Batcher
from shoal_proxy.batching.order import FairShares
from shoal_proxy.batching.pending import NEVER_S
from shoal_proxy.batching.policy import BatchLimits
from shoal_proxy.batching.queue import QueueLimits
from shoal_proxy.batching.row_checks.checks import RowChecks
from shoal_proxy.batching.scheduler import Scheduler
from shoal_proxy.certificate import Certificate
from shoal_proxy.dispatch.exchange import RuntimeLink
from shoal_proxy.dispatch.instances import InstancesLink
from shoal_proxy.dispatch.link import ModelLink
from shoal_proxy.dispatch.unread import UnreadResponses
from shoal_proxy.graph.link import GraphLink
from shoal_proxy.http.connection_limits import ConnectionLimits
from shoal_proxy.http.handshakes import MAX_SHAKING
from shoal_proxy.http.idle_connections import connection_limit
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.instances import instance_address
from shoal_schema.interfaces.protocols import HTTP, expand
from shoal_schema.interfaces.rollout import MAX_BYTES as ROLLOUT_MAX_BYTES
from shoal_schema.interfaces.rollout import PATH as ROLLOUT_PATH
from shoal_schema.resource.traffic import RowChecks as RowChecksMode
from shoal_schema.wire.timeouts import TransferTimeouts

ADMIN_CONNECTIONS = 64
"""More than the kubelet, Prometheus, the operator and users need; separate from clients' connections."""
ADMIN_REQUEST_S = 10.0
"""Longest time for a head, and for a body below the minimum rate, on the admin port."""
_PORTIONS = 8
"""One request takes at most this part of the queue's limit in rows at a time."""


def make_scheduler(settings: Settings) -> Scheduler:
    """Return the scheduler that ``settings`` configure."""
    batching, queue = settings.batching, settings.queue
    objective_ms = batching.latency_objective_milliseconds
    batcher = Batcher(
        QueueLimits(
            settings.queue_rows, queue.max_bytes, max(batching.max_batch_size, settings.queue_rows // _PORTIONS)
        ),
        BatchLimits(
            batching.max_batch_size, batching.max_delay_milliseconds / 1000, batching.in_flight, batching.policy
        ),
        objective_s=NEVER_S if objective_ms is None else objective_ms / 1000,
        shares=FairShares(
            {name.encode(): share for name, share in (queue.fair_share_weights or {}).items()},
            queue.priority_ageing_milliseconds / 1000,
            classes=bool(settings.fair_share_header),
        ),
    )
    # Graphs form no batches whose rows could depend on each other.
    checked = settings.process.graph is None and batching.row_checks is not RowChecksMode.OFF
    checks = RowChecks(randrange) if checked else None
    return Scheduler(batcher, idempotent=batching.idempotent, coalesce=batching.coalesce_identical, checks=checks)


def make_link(settings: Settings) -> ModelLink:
    """Return the link to the configured graph or runtime."""
    if settings.process.graph is not None:
        return GraphLink(settings.process.graph, settings)
    process, batching = settings.process, settings.batching
    links = [
        RuntimeLink(
            instance_address(process.runtime, number),
            settings.name,
            batching.pad_buckets or {},
            in_flight=batching.in_flight,
        )
        for number in range(process.runtime_instances)
    ]
    return links[0] if len(links) == 1 else InstancesLink(links)


def make_certificate(settings: Settings) -> Certificate | None:
    """Return the server certificate; None without TLS.

    Raises:
        CertificateError: the files are not a valid certificate.
    """
    process = settings.process
    if not process.tls_certificate:
        return None
    return Certificate(process.tls_certificate, process.tls_key, process.tls_client_ca)


def make_connection_limits(
    settings: Settings, metrics: Metrics, descriptors: int, unread: UnreadResponses | None = None
) -> tuple[ConnectionLimits, ConnectionLimits]:
    """Return the connection limits of the inference port and the admin port."""
    timeouts = TransferTimeouts(
        settings.process.head_timeout_s,
        settings.process.body_timeout_s,
        settings.process.write_timeout_s,
        settings.process.idle_timeout_s,
        settings.process.min_bytes_per_s,
    )
    if settings.process.tls_certificate:
        # Sockets in a handshake do not count as connections yet.
        descriptors -= min(MAX_SHAKING, descriptors // 4)
    front = ConnectionLimits(
        timeouts,
        metrics,
        max_head_bytes=settings.process.max_head_bytes,
        max_body_bytes=settings.queue.max_body_bytes,
        max_connections=connection_limit(settings.process.max_connections, descriptors),
        max_per_address=settings.process.max_connections_per_address,
        max_age_s=settings.process.connection_age_s,
        unread=unread,
        read_paths=frozenset(path.encode() for page in HTTP.pages if page.reads_body for path in expand(page.path)),
    )
    admin = ConnectionLimits(
        timeouts._replace(
            head_s=min(timeouts.head_s, ADMIN_REQUEST_S),
            body_s=min(timeouts.body_s, ADMIN_REQUEST_S),
        ),
        metrics,
        max_head_bytes=settings.process.max_head_bytes,
        max_body_bytes=ROLLOUT_MAX_BYTES,
        read_paths=frozenset({ROLLOUT_PATH.encode()}),
        max_connections=ADMIN_CONNECTIONS,
        closes_busy=True,  # so that probes always find room
    )
    return front, admin
