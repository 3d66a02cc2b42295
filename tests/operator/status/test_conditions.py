from shoal_operator.children.conditions import Condition, find, stamped
from shoal_schema.resource.conditions import ConditionType, Reason, Status

READY = Condition(ConditionType.READY, Status.TRUE, Reason.READY, "fine")


def test_the_transition_time_stays_while_the_status_stays() -> None:
    first = stamped(READY, [], 1, "2026-01-01T00:00:00Z")
    second = stamped(READY, [first], 2, "2026-01-02T00:00:00Z")

    assert second["lastTransitionTime"] == "2026-01-01T00:00:00Z"
    assert second["observedGeneration"] == 2


def test_the_transition_time_moves_with_the_status() -> None:
    first = stamped(READY, [], 1, "2026-01-01T00:00:00Z")
    bad = Condition(ConditionType.READY, Status.FALSE, Reason.NAME_TAKEN, "taken")

    assert stamped(bad, [first], 1, "2026-01-02T00:00:00Z")["lastTransitionTime"] == "2026-01-02T00:00:00Z"


def test_a_condition_is_found_by_its_type() -> None:
    stored = stamped(READY, [], 1, "2026-01-01T00:00:00Z")

    assert find([stored], ConditionType.READY) == stored
    assert find([stored], ConditionType.AVAILABLE) is None


def test_what_a_pod_says_is_reported_without_what_a_terminal_obeys() -> None:
    words = "last words: EVIL\x1b[2J\u202e"
    condition = Condition(ConditionType.READY, Status.FALSE, Reason.RUNTIME_CRASHED, words)

    assert stamped(condition, [], 1, "")["message"] == r"last words: EVIL\x1b[2J\u202e"
