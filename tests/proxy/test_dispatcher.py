"""What only the loop itself can get wrong."""

import time

from shoal_proxy.batching.pending import Outcome
from shoal_proxy.errors import Draining
from tests.fakes import RunningProxy
from tests.proxy.signatures import request


def test_a_batch_that_is_abandoned_before_its_task_began_gets_a_response(running: RunningProxy) -> None:
    outcomes: list[Outcome] = []
    error = Draining("stop")

    def form_and_stop() -> None:
        now_s = time.monotonic()
        dispatcher = running.proxy.dispatcher
        dispatcher.submit(request(1, deliver=outcomes.append, arrived_s=now_s, deadline_s=now_s + 60))
        dispatcher._send_due()
        dispatcher.reject_waiting(error)

    running.call(form_and_stop)

    assert outcomes == [error]
    running.until(lambda: running.proxy.dispatcher.settled)


def test_a_delivery_that_breaks_leaves_the_others_theirs(running: RunningProxy) -> None:
    outcomes: list[Outcome] = []

    def broken(outcome: Outcome) -> None:
        raise RuntimeError

    def submit() -> None:
        now_s = time.monotonic()
        for deliver in (broken, outcomes.append):
            running.proxy.dispatcher.submit(request(1, deliver=deliver, arrived_s=now_s, deadline_s=now_s + 60))

    running.call(submit)

    running.until(lambda: len(outcomes) == 1)
    assert [seen.rows for seen in running.runtime.seen] == [2]
