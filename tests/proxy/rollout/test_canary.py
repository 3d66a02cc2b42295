"""A share of the requests goes to a candidate; each client gets one response, and no row runs twice."""

from tests import plain
from tests.calls import V2_PATH, answer_to, row, v2_body
from tests.proxy.rollout.replicas import CANDIDATE, STABLE, both, report, settle


def test_the_share_is_exact_and_each_response_names_its_revision() -> None:
    with both(plan={"weight": 0.25}) as (running, other):
        names = []
        for value in range(100):
            response = plain.post(running.url + V2_PATH, json=v2_body([row(value)]))
            assert answer_to(response) == [2 * each for each in row(value)]
            names.append(response.headers["x-shoal-revision"])
        assert abs(names.count(CANDIDATE) - 25) <= 1
        assert set(names) == {STABLE, CANDIDATE}
        seen = report(running)
        assert (seen.candidate_requests, seen.candidate_rows) == (names.count(CANDIDATE),) * 2
        assert seen.served_rows == names.count(STABLE)
        assert seen.candidate_failed_rows == seen.returned_requests == 0
        assert sum(each.rows for each in other.runtime.seen) == seen.candidate_rows


def test_shadow_compares() -> None:
    with both(plan={"shadow": 1.0}) as (running, other):
        for value in range(20):
            assert answer_to(plain.post(running.url + V2_PATH, json=v2_body([row(value)])))
            settle(running)
        seen = report(running)
        assert seen.shadowed_rows == 20
        assert seen.outputs["y"].rows == 20
        assert seen.outputs["y"].disagreements == 0
