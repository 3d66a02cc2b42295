"""Leaving without losing a request."""

import asyncio
import logging
import threading

import httpx
import pytest

from shoal_proxy.dispatch.exchange import RuntimeLink
from shoal_proxy.lifecycle.drain import ProxyPhase
from shoal_schema.fields.addresses import Address
from tests import plain
from tests.calls import V2_PATH, RawConnection, answer_to, concurrent_clients, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy
from tests.proxy.test_connections import request, value_of


def test_queued_and_running_requests_get_responses_before_it_stops(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        first = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        rest = [group.ask(number) for number in range(1, 9)]
        running.until_waiting(8)
        options = {"timeout": 20, "headers": {"x-shoal-admin": "1"}}
        drained = threading.Thread(target=httpx.post, args=(running.admin_url + "/drain",), kwargs=options)
        drained.start()
        running.until(lambda: running.proxy.dispatcher.phase is ProxyPhase.DRAINING)
        assert plain.get(running.admin_url + "/readyz").status_code == 503
        running.release()
        drained.join(20)

        for answer in [first, *rest]:
            assert answer.result().headers["connection"] == "close"
            assert answer_to(answer.result())
    assert running.left_open.result(10) == 0


def test_while_leaving_requests_are_served_and_connections_sent_away() -> None:
    with running_proxy(drain_delay_seconds=30.0) as running, RawConnection(running.address) as kept:
        kept.send(request(1))
        assert "connection" not in kept.response()[1]
        running.call(running.proxy.stop)
        running.until(lambda: running.proxy.dispatcher.phase is ProxyPhase.LEAVING)
        ready = plain.get(running.url + "/v2/health/ready")
        assert (ready.status_code, ready.json()["reason"]) == (503, "proxy is leaving")
        kept.send(request(2))
        _, headers, body = kept.response()
        assert value_of(body) == 2
        assert headers["connection"] == "close"
        assert kept.closed()
        assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(3)])))
        running.call(running.proxy.stop)  # a second signal ends the delay


ADMIN = {"x-shoal-admin": "1"}


def stay(running: RunningProxy, seconds: object, **headers: str) -> int:
    """Request that a replica keeps serving; return the status."""
    url = f"{running.admin_url}/stay?seconds={seconds}"
    return httpx.post(url, headers={**ADMIN, **headers}, timeout=10, trust_env=False).status_code


def test_a_staying_replica_serves_until_the_stay_ends() -> None:
    with running_proxy(process__replacement_timeout_s=60.0, drain_delay_seconds=30.0) as running:
        assert stay(running, 60) == 200
        running.call(running.proxy.stop)
        running.until(lambda: running.proxy.dispatcher.phase is ProxyPhase.STAYING)
        assert plain.get(running.admin_url + "/readyz").status_code == 200
        answer = plain.post(running.url + V2_PATH, json=v2_body([row(3)]))
        assert answer_to(answer)
        assert answer.headers["connection"] == "close"

        assert stay(running, 0) == 200
        running.until(lambda: running.proxy.dispatcher.phase is ProxyPhase.LEAVING)
        assert plain.get(running.admin_url + "/readyz").status_code == 503
        # Routers learn of the other replica only now: the whole delay follows.
        assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(4)])))
        running.call(running.proxy.stop)


def test_a_replica_whose_operator_does_not_respond_leaves_and_a_second_signal_ends_a_stay() -> None:
    with running_proxy(process__replacement_timeout_s=0.05) as running:
        running.call(running.proxy.stop)
    assert running.proxy.dispatcher.phase is ProxyPhase.STOPPED
    with running_proxy(process__replacement_timeout_s=600.0) as running:
        assert stay(running, 600) == 200
        running.call(running.proxy.stop)
        running.until(lambda: running.proxy.dispatcher.phase is ProxyPhase.STAYING)
        running.call(running.proxy.stop)
    assert running.proxy.dispatcher.phase is ProxyPhase.STOPPED


def test_a_drain_that_is_requested_ends_a_stay() -> None:
    with running_proxy(process__replacement_timeout_s=600.0) as running:
        assert stay(running, 600) == 200
        answer = httpx.post(running.admin_url + "/drain", headers=ADMIN, timeout=10, trust_env=False)
        assert answer.status_code == 200


@pytest.mark.parametrize("seconds", ["", "-1", "1.5", "3601", "99999", "NaN", "\u0663"])
def test_a_stay_of_another_length_is_rejected(running: RunningProxy, seconds: str) -> None:
    assert stay(running, seconds) == 400
    assert not running.proxy._stay.granted


def test_a_stay_that_was_meant_for_another_pod_is_rejected() -> None:
    with running_proxy(process__replacement_timeout_s=60.0, process__instance="this") as running:
        assert stay(running, 60, **{"x-shoal-instance": "other"}) == 409
        assert stay(running, 60, **{"x-shoal-instance": "this"}) == 200
        url = f"{running.admin_url}/stay?seconds=60"
        assert httpx.post(url, timeout=10, trust_env=False).status_code == 403
        assert stay(running, 0) == 200


def test_a_runtime_that_never_responds_does_not_hold_the_drain_forever() -> None:
    with running_proxy(drain_timeout_seconds=0.2) as running:
        running.hold()
        with concurrent_clients(running.url) as group:
            first = group.ask(0)
            running.until(lambda: len(running.runtime.seen) == 1)
            second = group.ask(1)
            running.until_waiting(1)
            running.call(running.proxy.stop)
            for answer in (first, second):
                assert answer.result().status_code == 503
                assert "stopped before" in answer.result().json()["error"]


@pytest.mark.parametrize("turns", range(8))
def test_the_watch_ends_though_the_runtime_goes_in_the_same_moment(turns: int) -> None:
    async def main() -> None:
        runtime = FakeRuntime()
        link = RuntimeLink(await runtime.start(Address("127.0.0.1", 0)), runtime.name)
        ready = asyncio.Event()
        link.on_change = ready.set
        watch = asyncio.create_task(link.watch())
        await ready.wait()
        await runtime.stop()
        for _ in range(turns):
            await asyncio.sleep(0)
        watch.cancel()
        await asyncio.wait([watch], timeout=5)
        assert watch.cancelled()

    asyncio.run(main())


@pytest.mark.parametrize("times", [1, 3])
def test_drain_may_be_requested_more_than_once(running: RunningProxy, times: int) -> None:
    with concurrent_clients(running.admin_url) as group:
        answers = [group.post("/drain", headers={"x-shoal-admin": "1"}) for _ in range(times)]
        statuses = {answer.result().status_code for answer in answers if answer.exception() is None}
    assert 200 in statuses


def test_why_a_proxy_is_not_ready_is_logged_once_though_it_never_was(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        runtime = FakeRuntime()
        address = await runtime.start(Address("127.0.0.1", 0))
        link = RuntimeLink(address, runtime.name, {"no-such-input": (8,)})
        for _ in range(3):
            await link.check()
        link.upstream.close()
        await runtime.stop()
        assert not link.ready

    asyncio.run(main())
    logged = [record.getMessage() for record in caplog.records if "event=not_ready" in record.getMessage()]
    assert len(logged) == 1
    assert "batching.padBuckets names ['no-such-input'], but the model's inputs are" in logged[0]


def test_a_runtime_that_starts_is_no_warning_until_it_is_late(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    link = RuntimeLink(Address("127.0.0.1", 1), "m")
    link._become("starting")
    link._become("starting")
    monkeypatch.setattr(link, "_begun_s", link._begun_s - 61)
    link._become("starting")
    link._become("")
    link._become("gone")

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "event=not_ready reason='starting'"),
        ("WARNING", "event=not_ready reason='starting'"),
        ("WARNING", "event=not_ready reason='gone'"),
    ]


def test_a_runtime_that_gives_ever_new_reasons_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    link = RuntimeLink(Address("127.0.0.1", 1), "m")
    for number in range(100):
        link._become(f"loading {number}%")
    assert len(caplog.records) == 16

    link._become("")
    link._become("loading again")
    assert "loading again" in caplog.records[-1].getMessage()
