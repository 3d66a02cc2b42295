"""What pods said of their objective: a no at once, a yes after a while, and nothing that is stale."""

from collections.abc import Iterable

from shoal_operator.scaling.objective import FRESH_S, HOLD_S, ObjectiveReports, attainable, record_reports

POD, OTHER = "10.0.0.1", "10.0.0.2"
INTERVAL_S = 2.0


def heard(*scrapes: dict[str, bool | None]) -> tuple[ObjectiveReports, float]:
    """Return what is remembered of scrapes, and the time of the last."""
    reports, now_s = ObjectiveReports(first_read_s=0.0), 0.0
    for index, said in enumerate(scrapes):
        now_s = index * INTERVAL_S
        reports = record_reports(reports, said, now_s)
    return reports, now_s


def known(*scrapes: dict[str, bool | None]) -> dict[str, bool] | None:
    return attainable(*heard(*scrapes))


def distinct(answers: Iterable[bool]) -> list[dict[str, bool] | None]:
    """Return what is known after each of a pod's answers, without repetitions."""
    reports, found = ObjectiveReports(first_read_s=0.0), list[dict[str, bool] | None]()
    for index, answer in enumerate(answers):
        reports = record_reports(reports, {POD: answer}, index * INTERVAL_S)
        now = attainable(reports, index * INTERVAL_S)
        found += [] if found and found[-1] == now else [now]
    return found


def test_each_pods_report_counts() -> None:
    assert known({POD: True, OTHER: False}) == {POD: True, OTHER: False}


def test_negative_report_counts_at_once_and_positive_one_after_a_hold() -> None:
    reports, _ = heard({POD: True}, {POD: False}, {POD: True})
    refused_s = INTERVAL_S

    assert attainable(reports, refused_s + HOLD_S - 1) == {POD: False}
    assert attainable(reports, refused_s + HOLD_S) == {POD: True}


def test_alternating_reports_change_the_result_once() -> None:
    assert distinct(index % 2 == 0 for index in range(200)) == [{POD: True}, {POD: False}]


def test_unreachable_pod_keeps_its_report_until_it_is_stale() -> None:
    nothing: dict[str, bool | None] = {POD: None}
    scrapes = int(FRESH_S / INTERVAL_S)

    assert known({POD: True}, *[nothing] * (scrapes - 1)) == {POD: True}
    assert known({POD: True}, *[nothing] * scrapes) == {}


def test_deleted_pod_has_no_report() -> None:
    assert known({POD: False, OTHER: True}, {OTHER: True}) == {OTHER: True}


def test_missing_reports_are_reported_only_after_a_while() -> None:
    reports, _ = heard({POD: None})

    assert attainable(reports, FRESH_S - 1) is None
    assert attainable(reports, FRESH_S) == {}
