import gc
import weakref

import numpy as np
import pytest

from shoal_proxy.batching.batch import join_parts
from shoal_proxy.batching.pending import Answer, Outcome
from shoal_proxy.errors import ModelFailed, RowsFailed
from shoal_schema.wire.row_errors import RowError
from tests.proxy.signatures import request


class Body:
    """Stands for whatever a caller's delivery holds on to."""

    def take(self, outcome: Outcome) -> None:
        """Receive the outcome."""


def test_an_outcome_is_delivered_once() -> None:
    outcomes: list[Outcome] = []
    pending = request(1, deliver=outcomes.append)

    pending.resolve(ModelFailed("first"))
    pending.resolve(ModelFailed("second"))

    assert [str(outcome) for outcome in outcomes] == ["first"]


def test_nothing_is_delivered_to_a_caller_who_has_gone() -> None:
    outcomes: list[Outcome] = []
    pending = request(1, deliver=outcomes.append)

    pending.abandon()
    pending.finish(1, join_parts)
    pending.resolve(ModelFailed("late"))

    assert outcomes == []


@pytest.mark.parametrize("leaves", [True, False], ids=["abandoned", "answered"])
def test_a_resolved_request_lets_go_of_body_and_answer(*, leaves: bool) -> None:
    body = Body()
    alive = weakref.ref(body)
    pending = request(1, deliver=body.take)
    pending.parts.append((0, {"y": np.zeros(1)}))
    del body

    if leaves:
        pending.abandon()
    else:
        pending.finish(1, join_parts)

    gc.collect()
    assert alive() is None
    assert (pending.parts, pending.inputs) == ([], {})


def test_failed_rows_are_reported_in_order_when_the_last_row_is_done() -> None:
    outcomes: list[Outcome] = []
    pending = request(3, deliver=outcomes.append)

    pending.fail_rows([RowError(2, 400, "c")])
    pending.finish(2, join_parts)
    assert outcomes == []
    pending.fail_rows([RowError(0, 422, "a")])
    pending.finish(1, join_parts)

    (outcome,) = outcomes
    assert isinstance(outcome, RowsFailed)
    assert [error.row for error in outcome.errors] == [0, 2]
    assert outcome.status == 422


def test_a_resolved_request_keeps_its_answer_for_the_caller() -> None:
    outcomes: list[Outcome] = []
    pending = request(1, deliver=outcomes.append)
    pending.parts.append((0, {"y": np.ones(1)}))

    pending.finish(1, join_parts)

    (outcome,) = outcomes
    assert isinstance(outcome, Answer)
    assert outcome.outputs["y"].tolist() == [1.0]
