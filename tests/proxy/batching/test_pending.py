import gc
import weakref

import numpy as np
import pytest

from shoal_proxy.batching.pending import Outcome, RequestResult
from shoal_proxy.errors import ModelFailed, RowsFailed
from shoal_schema.wire.row_errors import RowError
from tests.proxy.signatures import deliver_outcome, request


class Body:
    """Stands for whatever a client's delivery holds on to."""

    def take(self, outcome: Outcome) -> None:
        """Receive the outcome."""


def test_an_outcome_is_delivered_once() -> None:
    outcomes: list[Outcome] = []
    pending = request(1, deliver=outcomes.append)

    deliver_outcome([pending.resolve(ModelFailed("first")), (pending, ModelFailed("second"))])

    assert [str(outcome) for outcome in outcomes] == ["first"]


def test_nothing_is_delivered_to_a_client_that_has_gone() -> None:
    outcomes: list[Outcome] = []
    pending = request(1, deliver=outcomes.append)

    delivery = pending.resolve(ModelFailed("late"))
    pending.abandon()
    deliver_outcome([delivery])

    assert outcomes == []
    assert pending.finish(1) is None


@pytest.mark.parametrize("leaves", [True, False], ids=["abandoned", "answered"])
def test_a_resolved_request_releases_body_and_response(*, leaves: bool) -> None:
    body = Body()
    alive = weakref.ref(body)
    pending = request(1, deliver=body.take)
    pending.parts.append((0, {"y": np.zeros(1)}))
    del body

    if leaves:
        pending.abandon()
    else:
        outcome = pending.finish(1)
        assert outcome is not None
        deliver_outcome([pending.resolve(outcome)])
        del outcome

    gc.collect()
    assert alive() is None
    assert (pending.parts, pending.inputs) == ([], {})


def test_failed_rows_are_reported_in_order_when_the_last_row_is_done() -> None:
    pending = request(3)

    pending.errors.append(RowError(2, 400, "c"))
    assert pending.finish(2) is None
    pending.errors.append(RowError(0, 422, "a"))
    outcome = pending.finish(1)

    assert isinstance(outcome, RowsFailed)
    assert [error.row for error in outcome.errors] == [0, 2]
    assert outcome.status == 422


def test_a_resolved_request_keeps_its_response_for_the_client() -> None:
    pending = request(1)
    pending.parts.append((0, {"y": np.ones(1)}))

    outcome = pending.finish(1)

    assert isinstance(outcome, RequestResult)
    pending.resolve(outcome)
    assert outcome.outputs["y"].tolist() == [1.0]
