"""The admin port's `/v1/rollout`."""

import msgspec
import pytest

from shoal_schema.interfaces.rollout import MAX_BYTES, PATH, RolloutPlan, RolloutReport
from tests import plain
from tests.fakes import running_proxy
from tests.proxy.rollout.replicas import ADMIN, STABLE, report, send_plan, stable

PLAN = msgspec.json.encode(RolloutPlan(candidate="bbbb", weight=0.5))


def test_a_plan_needs_the_admin_header_and_reading_does_not() -> None:
    with stable("127.0.0.1:9") as running:
        assert plain.put(running.admin_url + PATH, content=PLAN).status_code == 403
        assert report(running) == RolloutReport(STABLE, "")
        assert send_plan(running, candidate="bbbb").candidate == "bbbb"
        assert report(running).ready_candidates == 0
        assert send_plan(running).candidate == ""


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"weight": 2}', 400),
        (b'{"candidate": "no spaces"}', 400),
        ('{"sticky_header": "\u00e9"}'.encode(), 400),
        (b'{"shadow": "x"}', 400),
        (b" " * (MAX_BYTES + 1), 413),
    ],
)
def test_a_bad_plan_is_rejected_and_the_last_one_stays(body: bytes, status: int) -> None:
    with stable("127.0.0.1:9") as running:
        send_plan(running, candidate="bbbb", weight=0.5)
        response = plain.put(running.admin_url + PATH, content=body, headers=ADMIN)
        assert response.status_code == status
        assert report(running).candidate == "bbbb"


def test_a_proxy_without_addresses_of_candidates_accepts_no_plan() -> None:
    with running_proxy() as running:
        response = plain.put(running.admin_url + PATH, content=PLAN, headers=ADMIN)
        assert response.status_code == 409
        assert "SHOAL_PROXY_CANDIDATES" in response.json()["error"]
        assert report(running) == RolloutReport("", "")


def test_a_plan_for_another_instance_is_rejected() -> None:
    with stable("127.0.0.1:9", instance="uid-1") as running:
        for meant, status in (("uid-2", 409), ("uid-1", 200)):
            headers = {**ADMIN, "x-shoal-instance": meant}
            response = plain.put(running.admin_url + PATH, content=PLAN, headers=headers)
            assert response.status_code == status
            assert response.headers["x-shoal-instance"] == "uid-1"


def test_candidates_are_looked_up_only_during_a_rollout(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), stable("unknown.invalid:8080") as running:
        assert report(running).ready_candidates == 0
        assert "candidates_unknown" not in caplog.text
        send_plan(running, candidate="bbbb")
        running.until(lambda: "candidates_unknown" in caplog.text)
