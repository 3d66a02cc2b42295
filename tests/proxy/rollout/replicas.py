"""A stable replica and a candidate, and the plans that an operator would send."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from shoal_schema.interfaces.rollout import PATH, RolloutPlan, RolloutReport
from tests import plain
from tests.fakes import FakeRuntime, RunningProxy, running_proxy

STABLE, CANDIDATE = "aaaa", "bbbb"
ADMIN = {"x-shoal-admin": "1"}


def at(running: RunningProxy) -> str:
    """Return where a replica listens."""
    return "{}:{}".format(*running.address)


def send_plan(running: RunningProxy, **plan: Any) -> RolloutReport:
    """Send a plan as the operator does; return the report in the response."""
    body = msgspec.json.encode(RolloutPlan(**plan))
    response = plain.put(running.admin_url + PATH, content=body, headers=ADMIN, timeout=20)
    assert response.status_code == 200, response.text
    return msgspec.json.decode(response.content, type=RolloutReport)


def report(running: RunningProxy) -> RolloutReport:
    """Return a replica's report."""
    return msgspec.json.decode(plain.get(running.admin_url + PATH).content, type=RolloutReport)


def until_report(
    running: RunningProxy, condition: Callable[[RolloutReport], bool], within_s: float = 10.0
) -> RolloutReport:
    """Wait until a replica's report fulfils a condition; return it."""
    rollout = running.proxy.rollout
    assert rollout is not None
    running.until(lambda: condition(rollout.report()), within_s)
    return report(running)


def until_usable(running: RunningProxy, pods: int = 1) -> None:
    """Wait until a stable replica would send rows to so many candidate pods."""
    rollout = running.proxy.rollout
    assert rollout is not None
    running.until(lambda: len(rollout._pods.usable) == pods)


@contextmanager
def stable(
    *candidates: str, make_runtime: Callable[[], FakeRuntime] = FakeRuntime, **settings: Any
) -> Iterator[RunningProxy]:
    """Run a stable replica that looks for candidates at these addresses."""
    given = {"max_batch_size": 8, "process__revision": STABLE, "process__candidates": candidates, **settings}
    with running_proxy(make_runtime, **given) as running:
        yield running


@contextmanager
def candidate(make_runtime: Callable[[], FakeRuntime] = FakeRuntime, **settings: Any) -> Iterator[RunningProxy]:
    """Run a pod of the candidate, which has a plan that names it."""
    given = {"max_batch_size": 8, "process__revision": CANDIDATE, "process__candidates": ("127.0.0.1:9",), **settings}
    with running_proxy(make_runtime, **given) as running:
        send_plan(running, candidate=CANDIDATE)
        yield running


@contextmanager
def both(
    make_candidate: Callable[[], FakeRuntime] = FakeRuntime, *, plan: dict[str, Any] | None = None, **settings: Any
) -> Iterator[tuple[RunningProxy, RunningProxy]]:
    """Run both with a plan; the candidate may get rows."""
    with candidate(make_candidate, **settings) as other, stable(at(other), **settings) as running:
        send_plan(running, candidate=CANDIDATE, **(plan or {}))
        until_usable(running)
        yield running, other


def settle(running: RunningProxy) -> None:
    """Wait until all comparisons of a replica have ended."""
    rollout = running.proxy.rollout
    assert rollout is not None
    begun_s = time.monotonic()
    running.until(lambda: not rollout._shadow._tasks)
    assert time.monotonic() - begun_s < 10
