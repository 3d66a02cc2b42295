"""Webhooks over sockets: to receivers that accept, fail, hang, redirect and flood, and to refused addresses."""

import asyncio
import contextlib
import json
import logging
import ssl
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from standardwebhooks import Webhook

from shoal_proxy.asynchronous.callbacks import ListedHosts
from shoal_proxy.asynchronous.deliveries import MAX_RUNNING_PER_HOST, DeliveryQueue
from shoal_proxy.asynchronous.delivery import SigningKeys, WebhookDelivery
from shoal_proxy.asynchronous.webhooks import RetrySchedule, parse_keys
from shoal_proxy.codecs.base import HttpResponse
from shoal_proxy.errors import InvalidRequest, WebhooksUnavailable
from shoal_proxy.observe.metrics import Metrics
from tests.certificates import Authority
from tests.proxy.asynchronous.receivers import Receiver, responds

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FAST = RetrySchedule(max_tries=3, first_pause_s=0.01, factor=1.0, max_pause_s=0.01, max_age_s=60.0)
RESULT = HttpResponse(200, (b'{"outputs": ', memoryview(b"[1]}")), lines=b"x-request-id: fish\r\nset-cookie: a=b\r\n")


class Delivering:
    """A running `WebhookDelivery`, whose hosts resolve to loopback."""

    def __init__(self, webhooks: WebhookDelivery, metrics: Metrics) -> None:
        self.webhooks = webhooks
        self.metrics = metrics

    async def ended(self, count: int = 1) -> dict[str, int]:
        """Return the outcomes once there are ``count``."""
        async with asyncio.timeout(20):
            while sum(self.metrics.webhooks.values()) < count:  # noqa: ASYNC110 (a counter signals nothing)
                await asyncio.sleep(0.005)
        return dict(self.metrics.webhooks)


@contextlib.asynccontextmanager
async def delivering(
    tmp_path: Path,
    hosts: Sequence[str],
    *,
    addresses: Sequence[str] = ("127.0.0.1",),
    secret: str | None = SECRET,
    limits: tuple[int, int] = (1000, 1 << 20),
    **options: Any,
) -> AsyncIterator[Delivering]:
    """Run a `WebhookDelivery` for these hosts, which resolve to ``addresses``."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    if secret is not None:
        (tmp_path / "secret").write_text(secret)
    metrics = Metrics()
    options.setdefault("ssl_context", ssl.create_default_context())
    options.setdefault("schedule", FAST)
    keys = SigningKeys(tmp_path / "secret")
    keys.reload()
    webhooks = WebhookDelivery(ListedHosts(hosts), keys, DeliveryQueue(*limits), metrics, resolve=resolve, **options)
    watch = asyncio.create_task(webhooks.watch())
    try:
        yield Delivering(webhooks, metrics)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
        await webhooks.close()


def test_a_webhook_arrives_by_tls_with_the_result_and_a_valid_signature(tmp_path: Path) -> None:
    async def run() -> None:
        authority = Authority()
        certificate, key = authority.issue("hooks.example.com", loopback=False).written(tmp_path / "tls")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        trusted = ssl.create_default_context(cadata=authority.certificate.decode())
        async with Receiver(responds(204), context) as receiver:
            host = f"hooks.example.com:{receiver.port}"
            async with delivering(tmp_path, [host], ssl_context=trusted) as running:
                running.webhooks.deliver("job-1", f"https://{host}/done?for=fish%20", RESULT)
                (webhook,) = await receiver.arrived(1)
                assert await running.ended() == {"delivered": 1}
        assert webhook.line == "POST /done?for=fish%20 HTTP/1.1"
        assert Webhook(SECRET).verify(webhook.body, webhook.headers) == {"outputs": [1]}
        assert webhook.headers["webhook-id"] == "job-1"
        assert webhook.headers["host"] == host
        assert webhook.headers["content-type"] == "application/json"
        assert webhook.headers["x-shoal-status"] == "200"
        assert webhook.headers["x-request-id"] == "fish"
        assert "set-cookie" not in webhook.headers

    asyncio.run(run())


def test_a_receiver_with_a_certificate_of_another_name_gets_nothing(tmp_path: Path) -> None:
    async def run() -> None:
        authority = Authority()
        certificate, key = authority.issue("evil.example.com").written(tmp_path / "tls")
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(certificate, key)
        trusted = ssl.create_default_context(cadata=authority.certificate.decode())
        async with Receiver(responds(204), context) as receiver:
            host = f"hooks.example.com:{receiver.port}"
            async with delivering(tmp_path, [host], ssl_context=trusted) as running:
                running.webhooks.deliver("job-1", f"https://{host}/", RESULT)
                assert await running.ended() == {"failed": 1}
            assert receiver.received == []

    asyncio.run(run())


def test_a_failed_try_is_repeated_with_the_same_id_and_its_own_signature(tmp_path: Path) -> None:
    async def run() -> None:
        async with Receiver(responds(500, 404, 200)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host]) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                webhooks = await receiver.arrived(3)
                assert await running.ended() == {"delivered": 1}
        assert {each.headers["webhook-id"] for each in webhooks} == {"job-1"}
        for each in webhooks:
            assert Webhook(SECRET).verify(each.body, each.headers)

    asyncio.run(run())


def test_the_last_failure_gives_up_and_logs_the_host_without_the_url(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        async with Receiver(responds(500)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host]) as running:
                running.webhooks.deliver("job-1", f"{host}/token-0123", RESULT)
                assert await running.ended() == {"failed": 1}
            assert len(receiver.received) == FAST.max_tries

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    (line,) = [each.getMessage() for each in caplog.records if "webhook_undelivered" in each.getMessage()]
    assert "host=receiver.svc" in line
    assert "status 500" in line
    assert "token-0123" not in caplog.text


@pytest.mark.parametrize(
    ("status", "lines", "outcome"),
    [
        (410, "", "gone"),
        # The pause is longer than tries last.
        (503, "retry-after: 86400\r\n", "failed"),
    ],
)
def test_a_receiver_ends_the_tries(tmp_path: Path, status: int, lines: str, outcome: str) -> None:
    async def run() -> None:
        async with Receiver(responds(status, lines=lines)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host]) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                assert await running.ended() == {outcome: 1}
            assert len(receiver.received) == 1

    asyncio.run(run())


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(tmp_path: Path, status: int) -> None:
    async def run() -> None:
        async with Receiver(responds(200)) as other:
            target = f"http://other.svc:{other.port}"
            async with Receiver(responds(status, lines=f"location: {target}/\r\n")) as receiver:
                host = f"http://receiver.svc:{receiver.port}"
                async with delivering(tmp_path, [host, target]) as running:
                    running.webhooks.deliver("job-1", f"{host}/", RESULT)
                    assert await running.ended() == {"failed": 1}
            assert other.connections == 0

    asyncio.run(run())


def test_a_receiver_that_hangs_delays_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        hung = asyncio.Event()

        async def hang(writer: asyncio.StreamWriter, number: int) -> None:
            await hung.wait()

        async with Receiver(hang) as slow, Receiver(responds(200)) as fast:
            hosts = [f"http://slow.svc:{slow.port}", f"http://fast.svc:{fast.port}"]
            async with delivering(tmp_path, hosts, try_s=60.0) as running:
                for number in range(50):
                    running.webhooks.deliver(f"slow-{number}", f"{hosts[0]}/", RESULT)
                await slow.arrived(MAX_RUNNING_PER_HOST)
                running.webhooks.deliver("fast", f"{hosts[1]}/", RESULT)
                assert await running.ended() == {"delivered": 1}
                assert slow.connections == MAX_RUNNING_PER_HOST
            hung.set()
        # The others are dropped when the proxy stops.
        assert running.metrics.webhooks == {"delivered": 1, "stopped": 50}

    asyncio.run(run())


def test_a_try_ends_after_its_time(tmp_path: Path) -> None:
    async def run() -> None:
        hung = asyncio.Event()

        async def hang(writer: asyncio.StreamWriter, number: int) -> None:
            await hung.wait()

        async with Receiver(hang) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host], try_s=0.1) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                assert await running.ended() == {"failed": 1}
            assert receiver.connections == FAST.max_tries
            hung.set()

    asyncio.run(run())


@pytest.mark.parametrize("begin", [b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 100 Continue\r\n\r\n" * 9, b"", b"\x00" * 99])
def test_a_flood_before_the_end_of_the_head_is_a_failure(tmp_path: Path, begin: bytes) -> None:
    async def run() -> None:
        async def flood(writer: asyncio.StreamWriter, number: int) -> None:
            writer.write(begin)
            while not writer.is_closing():
                writer.write(begin if b"100" in begin else b"x-fish: " + b"y" * 8192 + b"\r\n")
                await writer.drain()

        async with Receiver(flood) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            # Its size ends each try, not its time.
            async with delivering(tmp_path, [host], try_s=60.0) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                assert await running.ended() == {"failed": 1}

    asyncio.run(run())


def test_an_endless_response_is_not_read(tmp_path: Path) -> None:
    async def run() -> None:
        sent_bytes, ended = 0, asyncio.Event()

        async def flood(writer: asyncio.StreamWriter, number: int) -> None:
            nonlocal sent_bytes
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            try:
                while True:
                    writer.write(b"y" * 65_536)
                    await writer.drain()
                    sent_bytes += 65_536
            finally:
                ended.set()

        async with Receiver(flood) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host]) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                assert await running.ended() == {"delivered": 1}
                await asyncio.wait_for(ended.wait(), 20)
        assert sent_bytes < 1 << 26

    asyncio.run(run())


@pytest.mark.parametrize(
    ("entry", "addresses"),
    [
        ("http://receiver.svc:{}", ("169.254.169.254",)),
        ("http://receiver.svc:{}", ("0.0.0.0",)),
        ("http://receiver.svc:{}", ("::ffff:169.254.169.254", "224.0.0.1")),
    ],
)
def test_a_host_with_refused_addresses_gets_no_connection(tmp_path: Path, entry: str, addresses: Sequence[str]) -> None:
    async def run() -> None:
        async with Receiver(responds(200)) as receiver:
            host = entry.format(receiver.port)
            async with delivering(tmp_path, [host], addresses=addresses) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                assert await running.ended() == {"refused": 1}
            assert receiver.connections == 0

    asyncio.run(run())


def test_a_wildcards_host_with_a_private_address_gets_no_connection(tmp_path: Path) -> None:
    async def run() -> None:
        async with Receiver(responds(200)) as receiver:
            entry = f"*.example.com:{receiver.port}"
            async with delivering(tmp_path, [entry]) as running:
                running.webhooks.deliver("job-1", f"https://a.example.com:{receiver.port}/", RESULT)
                assert await running.ended() == {"refused": 1}
            assert receiver.connections == 0

    asyncio.run(run())


def test_the_connection_goes_to_the_checked_address_only(tmp_path: Path) -> None:
    async def run() -> None:
        resolved = []
        answers = [["127.0.0.1"], ["169.254.169.254"]]

        async def rebind(host: str, port: int) -> Sequence[str]:
            resolved.append(host)
            return answers[min(len(resolved), len(answers)) - 1]

        async with Receiver(responds(500)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            metrics, keys = Metrics(), SigningKeys(tmp_path / "secret")
            (tmp_path / "secret").write_text(SECRET)
            queue = DeliveryQueue(9, 999)
            webhooks = WebhookDelivery(ListedHosts([host]), keys, queue, metrics, resolve=rebind, schedule=FAST)
            running = Delivering(webhooks, metrics)
            watch = asyncio.create_task(webhooks.watch())
            webhooks.deliver("job-1", f"{host}/", RESULT)
            # The first try reaches the receiver; the second resolves the name again, and is refused.
            assert await running.ended() == {"refused": 1}
            watch.cancel()
            await webhooks.close()
            assert (receiver.connections, len(resolved)) == (1, 2)

    asyncio.run(run())


def test_an_allowed_address_beside_refused_ones_and_silent_ones_is_found(tmp_path: Path) -> None:
    async def run() -> None:
        async with Receiver(responds(200)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            addresses = ("169.254.169.254", "127.0.0.2", "127.0.0.1")  # none listens on the second one
            async with delivering(tmp_path, [host], addresses=addresses) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                assert await running.ended() == {"delivered": 1}

    asyncio.run(run())


@pytest.mark.parametrize("addresses", [(), ("127.0.0.2",)])
def test_a_host_without_a_listening_address_is_a_failure(tmp_path: Path, addresses: Sequence[str]) -> None:
    async def run() -> None:
        async with Receiver(responds(200)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host], addresses=addresses) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                assert await running.ended() == {"failed": 1}

    asyncio.run(run())


def test_proxies_of_the_environment_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def run() -> None:
        async with Receiver(responds(200)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host]) as running:
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                assert await running.ended() == {"delivered": 1}

    asyncio.run(run())


def test_webhooks_beyond_the_limits_and_of_hosts_not_listed_are_dropped(tmp_path: Path) -> None:
    async def run() -> None:
        async with delivering(tmp_path, ["http://receiver.svc:1"], secret=None, limits=(2, 20)) as running:
            for url in ("http://receiver.svc:1/", "http://receiver.svc:1/", "https://receiver.svc/"):
                running.webhooks.deliver("job-1", url, RESULT)
            assert running.metrics.webhooks == {"overflow": 1, "refused": 1}
            assert running.webhooks.queue.held == 1

    asyncio.run(run())


def test_webhooks_wait_for_the_keys_and_follow_their_changes(tmp_path: Path) -> None:
    async def run() -> None:
        async with Receiver(responds(200)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host], secret=None) as running:
                with pytest.raises(WebhooksUnavailable):
                    running.webhooks.check(f"{host}/")
                with pytest.raises(InvalidRequest):
                    running.webhooks.check("http://other.svc/")
                running.webhooks.deliver("job-1", f"{host}/", RESULT)
                (tmp_path / "secret").write_text(SECRET)
                (webhook,) = await receiver.arrived(1)
                assert Webhook(SECRET).verify(webhook.body, webhook.headers)
                running.webhooks.check(f"{host}/")
                await running.webhooks.finish(20.0)
                assert running.metrics.webhooks == {"delivered": 1}
                other = SECRET.replace("M", "N")
                (tmp_path / "secret").write_text(f"{other}\n{SECRET}\n")
                async with asyncio.timeout(20):
                    while " " not in receiver.received[-1].headers["webhook-signature"]:
                        running.webhooks.deliver("job-2", f"{host}/", RESULT)
                        await receiver.arrived(len(receiver.received) + 1)
                assert Webhook(other).verify(receiver.received[-1].body, receiver.received[-1].headers)
                # An unreadable file keeps the keys.
                (tmp_path / "secret").write_text("no secret")
                running.webhooks.deliver("job-3", f"{host}/", RESULT)
                await receiver.arrived(len(receiver.received) + 1)
                running.webhooks.check(f"{host}/")

    asyncio.run(run())


def test_a_directory_of_keys_holds_one_in_each_file(tmp_path: Path) -> None:
    # As a kubelet mounts a Secret.
    (tmp_path / "..2026").mkdir()
    other = SECRET.replace("M", "N")
    (tmp_path / "..2026" / "new").write_text(other)
    (tmp_path / "..2026" / "old").write_text(SECRET + "\n")
    (tmp_path / "..data").symlink_to("..2026")
    for name in ("new", "old"):
        (tmp_path / name).symlink_to(Path("..data") / name)
    keys = SigningKeys(tmp_path)
    keys.reload()
    assert keys.keys == parse_keys(f"{other}\n{SECRET}".encode())


def test_a_large_result_arrives_whole(tmp_path: Path) -> None:
    async def run() -> None:
        body = json.dumps(list(range(100_000))).encode()
        response = HttpResponse(500, (body[:70_000], memoryview(body)[70_000:]))
        async with Receiver(responds(200)) as receiver:
            host = f"http://receiver.svc:{receiver.port}"
            async with delivering(tmp_path, [host], limits=(9, 1 << 24)) as running:
                running.webhooks.deliver("job-1", f"{host}/", response)
                (webhook,) = await receiver.arrived(1)
                assert await running.ended() == {"delivered": 1}
        assert Webhook(SECRET).verify(webhook.body, webhook.headers) == list(range(100_000))
        assert webhook.headers["x-shoal-status"] == "500"

    asyncio.run(run())
