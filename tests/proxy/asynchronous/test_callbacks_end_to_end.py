"""Webhooks of a real proxy's asynchronous requests."""

import asyncio
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from standardwebhooks import Webhook

from shoal_proxy.asynchronous.delivery import make_webhooks
from shoal_proxy.observe.metrics import Metrics
from shoal_proxy.settings import Settings
from shoal_schema.process.environment import SettingsError
from tests import plain
from tests.arranged import arranged
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy
from tests.listening import listening
from tests.proxy.asynchronous.receivers import ReceivedWebhook
from tests.proxy.asynchronous.requests import ASYNC, accept, asynchronous_proxy, result

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@contextmanager
def receiving() -> Iterator[tuple[str, "queue.SimpleQueue[ReceivedWebhook]"]]:
    """Receive webhooks in a thread; give the host and the webhooks."""
    received: queue.SimpleQueue[ReceivedWebhook] = queue.SimpleQueue()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in head[1:-2])}
        body = await reader.readexactly(int(headers["content-length"]))
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        await writer.drain()
        writer.close()
        received.put(ReceivedWebhook(head[0], headers, body))

    with listening(serve) as address:
        yield f"http://{address}", received


@contextmanager
def calling_back(tmp_path: Path, *hosts: str, secret: str | None = SECRET) -> Iterator[RunningProxy]:
    """Run a proxy that sends webhooks to these hosts."""
    if secret:
        (tmp_path / "key").write_text(secret)
    with asynchronous_proxy(webhooks__allowed_hosts=hosts, webhook_keys=str(tmp_path)) as running:
        yield running


def test_a_finished_request_calls_back_with_its_result(tmp_path: Path) -> None:
    with receiving() as (host, received), calling_back(tmp_path, host) as running:
        location = accept(running.url, 3.0, headers={"x-shoal-callback": f"{host}/done?of=fish"})
        webhook = received.get(timeout=20)
        response = result(running.url, location)

    assert webhook.line == "POST /done?of=fish HTTP/1.1"
    assert webhook.body == response.content
    assert webhook.headers["content-type"] == response.headers["content-type"]
    assert webhook.headers["webhook-id"] == location.rpartition("/")[2]
    assert webhook.headers["x-shoal-status"] == "200"
    assert Webhook(SECRET).verify(webhook.body, webhook.headers) == response.json()


def test_an_error_of_the_model_calls_back_with_its_status(tmp_path: Path) -> None:
    with receiving() as (host, received), calling_back(tmp_path, host) as running:
        running.runtime.respond = lambda seen: (500, {}, b'{"error": "broken"}')
        accept(running.url, headers={"x-shoal-callback": f"{host}/"})
        webhook = received.get(timeout=20)
    assert webhook.headers["x-shoal-status"] == "500"
    assert webhook.headers["x-shoal-executed"] == "maybe"


def test_a_stopping_replica_sends_the_webhooks_of_its_last_results(tmp_path: Path) -> None:
    with receiving() as (host, received):
        with calling_back(tmp_path, host) as running:
            running.hold()
            accept(running.url, headers={"x-shoal-callback": f"{host}/"})
            running.until(lambda: running.runtime.running >= 1)
            running.call(running.proxy.stop)
            running.release()
        assert received.get(timeout=20).headers["x-shoal-status"] == "200"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "https://example.com/", "ftp://receiver.svc/", "http://u:p@receiver.svc/", "x"]
)
def test_a_callback_that_is_not_allowed_is_rejected_at_once(tmp_path: Path, url: str) -> None:
    with calling_back(tmp_path, "http://receiver.svc") as running:
        headers = {**ASYNC, "x-shoal-callback": url}
        response = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers=headers)
    assert response.status_code == 400
    assert response.headers["x-shoal-executed"] == "no"


def test_without_webhooks_a_callback_is_rejected() -> None:
    with asynchronous_proxy() as running:
        headers = {**ASYNC, "x-shoal-callback": "https://example.com/"}
        response = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers=headers)
    assert response.status_code == 400
    assert "asynchronous.webhooks" in response.json()["error"]


def test_without_a_key_a_callback_is_rejected_until_there_is_one(tmp_path: Path) -> None:
    with calling_back(tmp_path, "http://receiver.svc", secret=None) as running:
        headers = {**ASYNC, "x-shoal-callback": "http://receiver.svc/"}
        response = plain.post(running.url + V2_PATH, json=v2_body([row(1.0)]), headers=headers)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")


@pytest.mark.parametrize(
    ("hosts", "keys"), [(("example.com",), None), (("10.1.2.3.4",), "/keys"), (("a.example.com:70000",), "/keys")]
)
def test_wrong_settings_stop_the_proxy(hosts: tuple[str, ...], keys: str | None) -> None:
    settings = arranged(
        Settings.from_env({}),
        asynchronous__timeout_seconds=60,
        webhooks__allowed_hosts=hosts,
        webhook_keys=keys,
    )
    with pytest.raises(SettingsError, match="SHOAL_ASYNC_WEBHOOK_HOSTS"):
        make_webhooks(settings, Metrics())
