"""What is undone each time is written a few times a minute, and then once a pause; who undoes it is named."""

from itertools import pairwise
from typing import Any

import pytest

from shoal_operator.manifests.labels import FIELD_MANAGER
from shoal_operator.ownership.conflicts import KNOWN_WRITER, WriteLimits, writer_of


def written(conflicts: WriteLimits, until_s: int, *, text: str = "a", begin_s: int = 0) -> list[int]:
    """Try each second, and return when it was written."""
    times = []
    for now_s in range(begin_s, until_s):
        if conflicts.may_write("Deployment", text, now_s):
            conflicts.record_write("Deployment", text, now_s)
            times.append(now_s)
    return times


def test_after_five_writes_in_a_minute_there_is_one_a_pause_and_pauses_grow_to_five_minutes() -> None:
    times = written(WriteLimits(), 2000)

    assert times[:5] == [0, 1, 2, 3, 4]
    assert [later - earlier for earlier, later in pairwise(times[4:])] == [61, 121, 241, *[301] * 5]


def test_five_writes_in_more_than_a_minute_are_no_conflict() -> None:
    conflicts, times = WriteLimits(), range(0, 3000, 15)
    for now_s in times:
        assert conflicts.may_write("Deployment", "a", now_s)
        conflicts.record_write("Deployment", "a", now_s)


def test_another_text_and_another_object_are_written_at_once() -> None:
    conflicts = WriteLimits()
    written(conflicts, 30)
    assert not conflicts.may_write("Deployment", "a", 30)

    assert conflicts.may_write("Service", "a", 30)
    assert conflicts.may_write("Deployment", "b", 30)
    conflicts.record_write("Deployment", "b", 30)
    assert conflicts.may_write("Deployment", "a", 31), "it was something else meanwhile"


@pytest.mark.parametrize("period_s", [1, 15, 180, 900])
def test_what_another_manager_changes_back_is_written_twice_and_then_once_an_hour(period_s: int) -> None:
    conflicts, times = WriteLimits(), []
    for now_s in range(0, 5 * 3600, period_s):
        if conflicts.may_write("Service", "a", now_s, KNOWN_WRITER):
            conflicts.record_write("Service", "a", now_s)
            times.append(now_s)

    assert times[:2] == [0, period_s]
    assert all(3600 <= later - earlier <= 3600 + 2 * period_s for earlier, later in pairwise(times[1:]))
    assert len(times) >= 5


@pytest.mark.parametrize(("quiet_s", "writes"), [(599, 1), (600, 5)])
def test_conflict_ends_without_reversals_for_twice_the_longest_pause(quiet_s: int, writes: int) -> None:
    conflicts = WriteLimits()
    *_, last_s = written(conflicts, 66)

    begin_s = last_s + quiet_s
    assert len(written(conflicts, begin_s + 10, begin_s=begin_s)) == writes


def entry(manager: str, time: str = "", **more: Any) -> dict[str, Any]:
    return {"manager": manager, **({"time": time} if time else {}), **more}


@pytest.mark.parametrize(
    ("entries", "writer"),
    [
        pytest.param([], "", id="no other writer"),
        pytest.param([entry(FIELD_MANAGER, "2026-01-03T00:00:00Z")], "", id="we alone"),
        pytest.param([entry(FIELD_MANAGER), entry("helm", "2026-01-01T00:00:00Z")], "helm", id="another"),
        pytest.param(
            [entry("old", "2026-01-01T00:00:00Z"), entry("new", "2026-01-02T00:00:00Z"), entry("early", "2025-12-31")],
            "new",
            id="the last of several",
        ),
        pytest.param([entry("timeless"), entry("helm", "2026-01-01T00:00:00Z")], "helm", id="entry without a time"),
        pytest.param(
            [entry("kubectl", "2026-01-01"), entry("controller", "2026-01-02", subresource="status")],
            "kubectl",
            id="controllers write the status",
        ),
    ],
)
def test_conflicting_writer_is_the_last_other_field_manager(entries: list[dict[str, Any]], writer: str) -> None:
    assert writer_of({"metadata": {"managedFields": entries}}) == writer


def test_writer_of_a_field_is_found_by_subresource() -> None:
    def entry(manager: str, time: str, *fields: str) -> Any:
        owned: Any = {f"f:{field}": {} for field in fields}
        return {"manager": manager, "time": time, "subresource": "scale", "fieldsV1": {"f:spec": owned}}

    fields = [entry(FIELD_MANAGER, "3", "replicas"), entry("kubectl", "2", "model"), entry("hpa", "1", "replicas")]
    live = {"metadata": {"managedFields": [*fields, {"manager": "odd"}]}}

    assert writer_of(live, "f:spec", "f:replicas") == "hpa"
    assert writer_of(live, "f:spec", "f:scaling") == ""
    assert writer_of({}, "f:spec", "f:replicas") == ""
