"""Deliver webhooks: read the keys, send, and retry."""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Final

import httpcore
import httpx

from shoal_proxy.asynchronous.callbacks import ListedHosts
from shoal_proxy.asynchronous.deliveries import Delivery, DeliveryQueue
from shoal_proxy.asynchronous.network import AddressRefused, CheckedNetwork, Resolve, resolve_host
from shoal_proxy.asynchronous.webhooks import (
    GONE,
    RetrySchedule,
    described_by,
    is_delivered,
    parse_keys,
    requested_pause_s,
    sign,
    webhook_headers,
)
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import InvalidRequest, WebhooksUnavailable
from shoal_proxy.observe.log_sampling import LogSampler
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.settings import Settings
from shoal_schema.interfaces.metrics import WebhookOutcome
from shoal_schema.process.environment import SettingsError
from shoal_schema.version import VERSION

logger = logging.getLogger(__name__)

TRY_S: Final = 15.0
"""Time for one try, from the resolution of the host until the head of the response."""
CONNECT_S: Final = 5.0
CHECK_S: Final = 1.0
"""Interval of checks of the keys' files."""
MAX_KEYS_BYTES: Final = 4096
_PIECE_BYTES: Final = 65_536
_SCHEDULE: Final = RetrySchedule()


class SigningKeys:
    """The keys that sign webhooks, in a file or in the files of a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: object = None
        self._fault = ""
        self.keys: tuple[bytes, ...] = ()
        """The keys in the order of the files' names; empty until they are read."""

    def reload(self) -> None:
        """Read changed files; keep the previous keys if they are unreadable."""
        try:
            files = [self._path]
            if self._path.is_dir():
                files = sorted(each for each in self._path.iterdir() if not each.name.startswith("."))
            stats = [each.stat() for each in files]
            seen = [(stat.st_ino, stat.st_mtime_ns, stat.st_size) for stat in stats]
            if seen == self._seen:
                return
            if sum(stat.st_size for stat in stats) > MAX_KEYS_BYTES:
                raise ValueError(f"more than {MAX_KEYS_BYTES} bytes")
            self.keys = parse_keys(b"\n".join(each.read_bytes() for each in files))
            self._seen, self._fault = seen, ""
            logger.info("event=webhook_keys_read keys=%d", len(self.keys))
        except (OSError, ValueError) as error:
            fault = (error.strerror or "unreadable") if isinstance(error, OSError) else str(error)
            if fault != self._fault:
                self._fault = fault
                logger.error("event=webhook_keys_unreadable path=%s message=%s", self._path, fault)


class WebhookDelivery:
    """The webhooks of a model's asynchronous requests.

    Args:
        hosts: hosts that callback URLs may have.
        keys: keys that sign webhooks.
        queue: limits of deliveries.
        metrics: counts the outcomes.
        resolve: returns the IP addresses of a host.
        ssl_context: trusted authorities; by default the public ones, or those of ``SSL_CERT_FILE``.
        schedule: times of tries after a failed one.
        try_s: time for one try.
    """

    def __init__(  # noqa: PLR0913 (keywords, each with its default)
        self,
        hosts: ListedHosts,
        keys: SigningKeys,
        queue: DeliveryQueue,
        metrics: Metrics,
        *,
        resolve: Resolve = resolve_host,
        ssl_context: ssl.SSLContext | None = None,
        schedule: RetrySchedule = _SCHEDULE,
        try_s: float = TRY_S,
    ) -> None:
        self._hosts = hosts
        self._keys = keys
        self.queue = queue
        self._metrics = metrics
        self._schedule = schedule
        self._try_s = try_s
        self._failures = LogSampler()
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=ssl_context or httpx.create_ssl_context(),
            max_connections=None,
            max_keepalive_connections=0,
            network_backend=CheckedNetwork(hosts, resolve),
        )
        self._tries: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()

    def check(self, url: str) -> None:
        """Check the callback URL of a request before it is accepted.

        Raises:
            InvalidRequest: the URL is malformed or not allowed.
            WebhooksUnavailable: there is no key to sign with.
        """
        self._hosts.parse(url)
        if not self._keys.keys:
            raise WebhooksUnavailable("the keys that sign webhooks cannot be read")

    def deliver(self, job_id: str, url: str, response: HttpResponse) -> None:
        """Queue the webhook of a finished job; count and log it if it is rejected.

        Args:
            job_id: the value of ``webhook-id``.
            url: the callback URL of the request.
            response: the job's result.
        """
        try:
            callback = self._hosts.parse(url)  # a stored job's URL may not be listed any more
        except InvalidRequest as error:
            self._give_up(job_id, "", WebhookOutcome.REFUSED, error.message)
            return
        headers = [
            (b"host", callback.authority.encode()),
            (b"user-agent", f"shoal/{VERSION}".encode()),
            (b"content-type", response.content_type),
            (b"content-length", b"%d" % response.size_bytes),
            (b"connection", b"close"),
            *described_by(response.headers()),
        ]
        delivery = Delivery(job_id, callback, response.status, headers, response.body, response.size_bytes)
        dropped = self.queue.make_room(delivery)
        has_room = self.queue.has_room(response.size_bytes)
        for each in dropped if has_room else [*dropped, delivery]:
            full = "the limit of held webhooks is reached"
            self._give_up(each.job_id, each.callback.host, WebhookOutcome.OVERFLOW, full, each.tries)
        if not has_room:
            return
        self.queue.add(delivery, time.monotonic())
        self._changed.set()

    async def watch(self) -> None:
        """Deliver queued webhooks, and reload the keys when their files change, until cancelled."""
        checked_s = float("-inf")
        while True:
            self._changed.clear()
            now_s = time.monotonic()
            if now_s - checked_s >= CHECK_S:
                checked_s = now_s
                await asyncio.to_thread(self._keys.reload)  # a slow file system must not block requests
            if self._keys.keys:
                for delivery in self.queue.start(now_s):
                    task = asyncio.create_task(self._try(delivery))
                    self._tries.add(task)
                    task.add_done_callback(self._end_try)
            next_s = self.queue.next_start_s() if self._keys.keys else None
            wake_s = checked_s + CHECK_S if next_s is None else min(checked_s + CHECK_S, next_s)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wake_s - time.monotonic())):
                    await self._changed.wait()

    async def finish(self, within_s: float) -> None:
        """Wait until no try runs and no delivery awaits its first one, at most ``within_s``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._tries or self.queue.untried:
                    self._ended.clear()
                    await self._ended.wait()

    async def close(self) -> None:
        """Cancel all tries, and count the deliveries that are left as undelivered."""
        for task in list(self._tries):
            task.cancel()
        await asyncio.gather(*self._tries, return_exceptions=True)
        if self.queue.held:
            self._metrics.webhooks[WebhookOutcome.STOPPED] += self.queue.held
            logger.warning("event=webhooks_dropped count=%d reason=%s", self.queue.held, WebhookOutcome.STOPPED)
        await self._pool.aclose()

    def _end_try(self, task: asyncio.Task[None]) -> None:
        self._tries.discard(task)
        self._changed.set()
        self._ended.set()

    async def _try(self, delivery: Delivery) -> None:
        """Send a webhook; remove it from the queue, or queue it again."""
        requested_s, outcome = 0.0, WebhookOutcome.FAILED
        try:
            status, requested_s = await self._send(delivery)
            found = f"status {status}"
            if is_delivered(status):
                outcome = WebhookOutcome.DELIVERED
            elif status == GONE:
                outcome = WebhookOutcome.GONE
        except AddressRefused as error:
            outcome, found = WebhookOutcome.REFUSED, str(error)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            found = f"{type(error).__name__}: {error}"
        except Exception as error:  # an unexpected error fails this try alone
            logger.exception("event=webhook_try_failed job=%s", delivery.job_id)
            found = type(error).__name__
        at_s = None
        if outcome is WebhookOutcome.FAILED:
            at_s = self._schedule.next_try_s(
                delivery.tries, delivery.first_s, time.monotonic(), requested_s, random.random
            )
        if at_s is not None:
            self.queue.retry(delivery, at_s)
            return
        self.queue.remove(delivery)
        if outcome is WebhookOutcome.DELIVERED:
            self._metrics.webhooks[outcome] += 1
        else:
            self._give_up(delivery.job_id, delivery.callback.host, outcome, found, delivery.tries)

    async def _send(self, delivery: Delivery) -> tuple[int, float]:
        """Send a webhook; return the receiver's status and the pause that it requests (s)."""
        callback = delivery.callback
        wall_s = time.time()  # noqa: TID251 (the specification's timestamp)
        url = httpcore.URL(
            scheme=callback.scheme.encode(), host=callback.host.encode(), port=callback.port,
            target=callback.target.encode(),
        )  # fmt: skip
        signature = sign(self._keys.keys, delivery.job_id, int(wall_s), delivery.body)
        headers = [*delivery.headers, *webhook_headers(delivery.job_id, int(wall_s), signature, delivery.status)]
        timeouts = {"timeout": {"connect": CONNECT_S}}
        async with (
            asyncio.timeout(self._try_s),
            # The response's body is not read: its status decides.
            self._pool.stream(
                "POST", url, headers=headers, content=_pieces(delivery.body), extensions=timeouts
            ) as response,
        ):
            names = {name.lower(): value for name, value in response.headers}
            return response.status, requested_pause_s(names, wall_s)

    def _give_up(self, job_id: str, host: str, outcome: WebhookOutcome, found: str, tries: int = 0) -> None:
        self._metrics.webhooks[outcome] += 1
        if (unlogged := self._failures.take(time.monotonic())) is not None:
            # Without the URL, whose path may be a secret.
            logger.warning(
                "event=webhook_undelivered job=%s host=%s outcome=%s tries=%d unlogged=%d message=%s",
                job_id, host, outcome, tries, unlogged, found,
            )  # fmt: skip


def make_webhooks(settings: Settings, metrics: Metrics) -> WebhookDelivery | None:
    """Return the delivery of webhooks; None if the service sends none.

    Raises:
        SettingsError: a host is malformed, or there are no keys.
    """
    limits, allowed = settings.asynchronous, settings.webhooks.allowed_hosts
    if not (settings.has_asynchronous and allowed):
        return None
    if not settings.process.webhook_keys:
        raise SettingsError("SHOAL_ASYNC_WEBHOOK_HOSTS needs SHOAL_PROXY_WEBHOOK_KEYS, the keys that sign webhooks")
    try:
        hosts = ListedHosts(allowed)
    except ValueError as error:
        raise SettingsError(f"SHOAL_ASYNC_WEBHOOK_HOSTS: {error}") from None
    keys = SigningKeys(Path(settings.process.webhook_keys))
    # Before the first request, which would be rejected without them.
    keys.reload()
    return WebhookDelivery(hosts, keys, DeliveryQueue(limits.max_requests, limits.max_bytes), metrics)


async def _pieces(body: Iterable[bytes | memoryview]) -> AsyncIterator[bytes]:
    for piece in body:
        view = memoryview(piece)
        for start in range(0, len(view), _PIECE_BYTES):
            yield bytes(view[start : start + _PIECE_BYTES])
