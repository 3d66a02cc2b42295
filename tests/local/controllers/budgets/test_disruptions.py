from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from shoal_local.controllers.budgets.disruptions import budget_status

Object = dict[str, Any]


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        ({"maxUnavailable": 1}, 0),
        ({"maxUnavailable": 2}, 1),
        ({"minAvailable": 1}, 1),
        ({"minAvailable": "50%"}, 0),
    ],
)
def test_a_budget_counts_healthy_pods(spec: Object, allowed: int, make_pod: Callable[..., Object]) -> None:
    budget = {"metadata": {"generation": 1}, "spec": spec}
    pods = [make_pod("a"), make_pod("b"), make_pod("c", ready=False)]
    status = budget_status(budget, pods, 3, datetime(2026, 1, 1, tzinfo=UTC))
    assert (status["currentHealthy"], status["disruptionsAllowed"]) == (2, allowed)
