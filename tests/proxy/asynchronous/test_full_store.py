"""Results and requests are deleted although the store of asynchronous requests is full."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError

from tests import plain
from tests.calls import V2_PATH, row, v2_body
from tests.fakes import RunningProxy
from tests.proxy.asynchronous.requests import ASYNC, accept, requests_of, result
from tests.proxy.asynchronous.test_store import REQUESTS, runs, stored_proxy, until_accepting


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that fills the store, so that only so many bytes are free from then on."""
    put, quota_bytes = obstore.put_async, [1 << 30]

    def used_bytes() -> int:
        return sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())

    async def put_within_quota(store: Any, path: str, content: bytes, **options: Any) -> Any:
        if used_bytes() + len(content) > quota_bytes[0]:
            raise GenericError("No space left on device (os error 28)")
        return await put(store, path, content, **options)

    monkeypatch.setattr(obstore, "put_async", put_within_quota)

    def fill_store(free_bytes: int) -> None:
        quota_bytes[0] = used_bytes() + free_bytes

    return fill_store


def until_result(running: RunningProxy, value: float) -> str:
    """Send a request and wait until its result is in the store; return its location."""
    location = accept(running.url, value)
    assert result(running.url, location).status_code == 200
    running.until(lambda: requests_of(running).settled)
    return location


@pytest.mark.parametrize("free_bytes", [0, -1000])
def test_a_result_is_deleted_although_the_store_is_full(
    tmp_path: Path, fill: Callable[[int], None], free_bytes: int
) -> None:
    with stored_proxy(tmp_path) as first, stored_proxy(tmp_path) as second:
        until_accepting(first, second)
        location = until_result(first, 1.0)
        fill(free_bytes)
        assert plain.post(first.url + V2_PATH, json=v2_body([row(2.0)]), headers=ASYNC).status_code == 503
        assert plain.delete(second.url + location).status_code == 204
        assert [plain.get(each.url + location).status_code for each in (first, second)] == [404, 404]


@pytest.mark.parametrize("free_bytes", [0, -1000])
def test_a_waiting_request_is_cancelled_although_the_store_is_full(
    tmp_path: Path, fill: Callable[[int], None], free_bytes: int
) -> None:
    with stored_proxy(tmp_path) as running:
        until_accepting(running)
        running.hold()
        locations = [accept(running.url, float(number)) for number in range(REQUESTS)]
        running.until(lambda: running.runtime.running >= 1)
        fill(free_bytes)
        assert plain.delete(running.url + locations[-1]).status_code == 204
        assert plain.get(running.url + locations[-1]).status_code == 404
        fill(1 << 20)
        running.release()
        running.until(lambda: requests_of(running).settled)
        assert plain.get(running.url + locations[-1]).status_code == 404
        assert float(REQUESTS - 1) not in runs(running)


def test_a_deleted_result_that_does_not_fit_into_the_store_is_not_written_later(
    tmp_path: Path, fill: Callable[[int], None]
) -> None:
    with stored_proxy(tmp_path) as running:
        until_accepting(running)
        running.hold()
        location = accept(running.url, 1.0)
        running.until(lambda: running.runtime.running >= 1)
        fill(-1000)
        running.release()
        running.until(lambda: requests_of(running).table.started == 0)
        assert plain.get(running.url + location).status_code == 202
        assert plain.delete(running.url + location).status_code == 204
        fill(1 << 20)
        running.until(lambda: requests_of(running).settled)
        assert plain.get(running.url + location).status_code == 404
