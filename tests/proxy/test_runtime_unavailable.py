"""A runtime that is not there, goes away, or comes back."""

from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest

from shoal_proxy.routes.admin import MAX_READY_WAITING
from tests import plain
from tests.calls import V2_PATH, answer_to, concurrent_clients, row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy


def test_errors_before_the_runtime_is_ready_state_the_cause() -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False) as running:
        running.until(lambda: "warming up" in running.proxy.link.reason)
        answer = plain.post(running.url + V2_PATH, json=v2_body([row(1)]))
        assert answer.status_code == 503
        assert "warming up" in answer.json()["error"]
        assert answer.headers["retry-after"] == "1"
        assert plain.get(running.admin_url + "/readyz").json() == {"ready": False, "reason": "warming up"}
        assert plain.get(running.url + "/ping").status_code == 503
        running.call(setattr, running.runtime, "ready", True)
        running.until(lambda: running.proxy.link.ready)
        assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(1)])))


def test_the_devices_memory_is_that_reported_by_the_runtime() -> None:
    with running_proxy(lambda: FakeRuntime(health={"device_memory": [60, 80, 50]})) as running:
        shown = plain.get(running.admin_url + "/metrics").text

    assert "\nshoal_proxy_device_memory_used_bytes 60.0\n" in shown
    assert "\nshoal_proxy_device_memory_bytes 80.0\n" in shown


@pytest.mark.parametrize(("reported", "shown"), [("TF32", "TF32"), ("full, as in a paper", ""), (["TF32"], "")])
def test_the_load_has_the_precision_that_the_runtime_chose(reported: object, shown: str) -> None:
    with running_proxy(lambda: FakeRuntime(parameters={"precision": reported})) as running:
        assert plain.get(running.admin_url + "/v1/load").json()["precision"] == shown


@pytest.mark.parametrize("health", [{}, {"device_memory": 60}, {"device_memory": ["much", None]}])
def test_a_runtime_without_valid_memory_figures_serves(
    health: dict[str, object],
) -> None:
    with running_proxy(lambda: FakeRuntime(health=health)) as running:
        shown = plain.get(running.admin_url + "/metrics").text

    assert "\nshoal_proxy_device_memory_used_bytes " not in shown
    assert "\nshoal_proxy_runtime_ready 1.0\n" in shown


def test_each_time_that_a_runtime_goes_is_counted_and_its_start_is_none() -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False) as running:
        running.until(lambda: "warming up" in running.proxy.link.reason)
        for losses in (1, 2):
            running.call(setattr, running.runtime, "ready", True)
            running.until(lambda: running.proxy.link.ready)
            running.call(setattr, running.runtime, "ready", False)
            running.until(lambda: not running.proxy.link.ready)
            shown = plain.get(running.admin_url + "/metrics").text
            assert f"shoal_proxy_runtime_losses_total {losses}.0\n" in shown


def test_a_probe_that_waits_gets_the_response_at_once_when_the_first_yes_is_there() -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False) as running, ThreadPoolExecutor(1) as asking:
        assert plain.get(running.admin_url + "/readyz?wait_ms=1").status_code == 503
        answer = asking.submit(plain.get, running.admin_url + "/readyz?wait_ms=60000")
        running.until(lambda: any(each.busy for each in running.proxy.admin_limits.members))
        assert not answer.done()
        running.call(setattr, running.runtime, "ready", True)
        assert answer.result(20).json() == {"ready": True}
        # Ready once, it waits no more: a no is a no.
        running.call(setattr, running.runtime, "ready", False)
        running.until(lambda: not running.proxy.link.ready)
        assert plain.get(running.admin_url + "/readyz?wait_ms=60000").status_code == 503


def test_so_many_probes_wait_and_one_more_gets_a_response_at_once() -> None:
    with (
        running_proxy(lambda: FakeRuntime(ready=False), ready=False) as running,
        ThreadPoolExecutor(MAX_READY_WAITING + 1) as asking,
    ):
        url = running.admin_url + "/readyz?wait_ms=60000"
        answers = [asking.submit(plain.get, url, timeout=60) for _ in range(MAX_READY_WAITING + 1)]
        answered, waiting = wait(answers, timeout=20, return_when=FIRST_COMPLETED)
        assert [answer.result().status_code for answer in answered] == [503]
        assert len(waiting) == MAX_READY_WAITING
        running.call(running.proxy.stop)


def test_a_probe_that_waits_holds_no_stop_back() -> None:
    with running_proxy(lambda: FakeRuntime(ready=False), ready=False) as running, ThreadPoolExecutor(1) as asking:
        answer = asking.submit(plain.get, running.admin_url + "/readyz?wait_ms=60000")
        running.until(lambda: any(each.busy for each in running.proxy.admin_limits.members))
        running.call(running.proxy.stop)
        assert answer.result(20).status_code == 503


@pytest.mark.parametrize("wait_ms", ["-1", "60001", "nan", "soon", "1_000", "1e3", "%2b5", ""])
def test_a_wait_that_makes_no_sense_is_rejected(running: RunningProxy, wait_ms: str) -> None:
    answer = plain.get(running.admin_url + f"/readyz?wait_ms={wait_ms}")
    assert answer.status_code == 400
    assert "wait_ms must be 0 to 60000" in answer.json()["error"]


def test_a_batch_whose_runtime_dies_is_503_and_what_waits_is_kept(running: RunningProxy) -> None:
    running.hold()
    with concurrent_clients(running.url) as group:
        died_with = group.ask(0)
        running.until(lambda: len(running.runtime.seen) == 1)
        waiting = [group.ask(number) for number in (1, 2)]
        running.until_waiting(2)
        address = running.proxy.settings.process.runtime
        running.call(running.runtime.stop)
        assert died_with.result().status_code == 503
        assert "lost" in died_with.result().json()["error"]
        assert plain.post(running.url + V2_PATH, json=v2_body([row(9)])).status_code == 503
        running.release()
        running.call(running.runtime.start, address)
        assert [answer_to(answer.result())[0] for answer in waiting] == [2, 4]
    assert [seen.rows for seen in running.runtime.seen] == [1, 2]


def test_a_runtime_that_disconnects_in_its_response_fails_that_batch_alone(running: RunningProxy) -> None:
    running.runtime.respond = lambda seen: None
    assert plain.post(running.url + V2_PATH, json=v2_body([row(1)])).status_code == 503
    running.runtime.respond = None
    running.until(lambda: running.proxy.link.ready)
    assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(2)])))[0] == 4


def test_a_stuck_batch_gives_its_slot_back_after_its_clients_deadline(running: RunningProxy) -> None:
    running.hold()
    headers = {"x-request-timeout-ms": "50"}
    assert plain.post(running.url + V2_PATH, json=v2_body([row(1)]), headers=headers).status_code == 504
    running.until(lambda: running.proxy.scheduler.in_flight_rows == 0)
    running.release()
    assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(2)])))[0] == 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": "another"}, "404"),
        ({"inputs": [{"name": "x", "datatype": "FP33", "shape": [-1, 4]}]}, "unknown datatype 'FP33'"),
        ({"inputs": [{"datatype": "FP32", "shape": [-1, 4]}]}, "name"),
    ],
)
def test_unusable_metadata_is_the_reason_of_unreadiness(change: dict[str, object], words: str) -> None:
    def make() -> FakeRuntime:
        runtime = FakeRuntime()
        for key, value in change.items():
            setattr(runtime, key, value)
        return runtime

    with running_proxy(make, ready=False, metadata__name="double") as running:
        running.until(lambda: words in running.proxy.link.reason)
        assert words in plain.get(running.admin_url + "/readyz").json()["reason"]
