import numpy as np
import orjson
import pytest

from shoal_runtime.codecs.request import InferRequest
from shoal_runtime.errors import (
    BadRequest,
    BatchError,
    FailedRow,
    ForwardFailed,
    NotReady,
    TimedOut,
    WrongRows,
    WrongShape,
)
from shoal_runtime.item_log import LINES_PER_WINDOW, ItemLog, one_line, request_id, request_ids

ERROR = FailedRow(0, 500, "oh")


@pytest.mark.parametrize(
    ("requests", "row", "expected"),
    [
        ('[{"rows": 2, "x-request-id": "a"}, {"rows": 1, "x-request-id": "b"}]', 1, "a"),
        ('[{"rows": 2, "x-request-id": "a"}, {"rows": 1, "x-request-id": "b"}]', 2, "b"),
        ('[{"rows": 1, "x-request-id": "a b event=fake level=ERROR"}]', 0, '"a b event=fake level=ERROR"'),
        ('[{"rows": 1, "x-request-id": "a,b=c"}]', 0, '"a,b=c"'),
        ('[{"rows": 1, "x-request-id": "\\u001b[31m\\u2028\\"q"}]', 0, r'"\u001b[31m\u2028\"q"'),
        ('[{"rows": 1, "x-request-id": ""}]', 0, '""'),
        ('[{"rows": 1}]', 0, "-"),
        ('[{"rows": 1}]', 5, "-"),
        ('[{"x-request-id": "a"}]', 0, "-"),
        ("[1]", 0, "-"),
        ("{", 0, "-"),
        (None, 0, "-"),
        (7, 0, "-"),
    ],
)
def test_a_row_is_traced_to_its_request(requests: object, row: int, expected: str) -> None:
    assert request_id(requests, row) == expected


def test_the_log_is_never_flooded(caplog: pytest.LogCaptureFixture) -> None:
    log = ItemLog()

    log.add([ERROR] * 50, {}, 100.0)
    log.add([ERROR], {}, 130.0)
    log.add([ERROR], {}, 161.0)

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_PER_WINDOW + 2
    assert lines[LINES_PER_WINDOW] == "event=failures_unlogged lines=41"


def test_the_client_s_own_faults_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    ItemLog().add([FailedRow(0, 400, "bad")], {}, 100.0)

    assert caplog.records == []


def test_the_line_states_where_the_handler_raised(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise RuntimeError("oh")
    except RuntimeError as error:
        failed = FailedRow(0, 500, "oh", error)

    ItemLog().add([failed], {}, 100.0)

    assert "test_item_log.py:" in caplog.text
    assert 'raise RuntimeError("oh")' in caplog.text


def request(**parameters: str) -> InferRequest:
    return InferRequest(None, parameters, {"x": np.zeros((3, 2), np.float32)}, 3, ())


def raised(text: str = "oh") -> ForwardFailed:
    failed = ForwardFailed(f"forward raised RuntimeError: {text}")
    try:
        raise RuntimeError(text)
    except RuntimeError as error:
        failed.__cause__ = error
    return failed


def test_a_batch_that_failed_is_reported_with_its_clients_and_shapes_and_where_it_was_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    whose = '[{"rows": 2, "x-request-id": "a"}, {"rows": 1}]'

    ItemLog().add_batch(raised(), request(requests=whose), 100.0)

    (record,) = caplog.records
    first, *trace = record.getMessage().splitlines()
    assert "rows=3 x-request-ids=a,- inputs=x:float32[3x2] message=forward raised RuntimeError: oh" in first
    assert any("raise RuntimeError(text)" in line for line in trace)


def test_the_same_traceback_is_reported_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    log = ItemLog()

    for now_s in (100.0, 101.0, 102.0, 161.0):
        log.add_batch(raised(), request(), now_s)
    log.add_batch(raised("another"), request(), 162.0)

    assert [record.getMessage().count("Traceback") for record in caplog.records] == [1, 0, 0, 1, 1]


def test_failed_batches_never_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    log = ItemLog()

    for _ in range(50):
        log.add_batch(raised(), request(), 100.0)

    assert len(caplog.records) == LINES_PER_WINDOW


@pytest.mark.parametrize("error", [WrongRows("2 rows of y for a batch of 3"), WrongShape("y has shape [3]")])
def test_a_result_that_breaks_the_signature_is_reported_though_nothing_was_raised(
    error: BatchError, caplog: pytest.LogCaptureFixture
) -> None:
    ItemLog().add_batch(error, request(), 100.0)

    assert f"code={error.code} rows=3" in caplog.text


@pytest.mark.parametrize("error", [BadRequest("no"), TimedOut("late"), NotReady("256 batches waiting already")])
def test_what_is_not_the_model_s_fault_is_not_reported(error: BatchError, caplog: pytest.LogCaptureFixture) -> None:
    ItemLog().add_batch(error, request(), 161.0)

    assert caplog.records == []


def test_of_many_clients_the_first_are_named() -> None:
    many = orjson.dumps([{"rows": 1, "x-request-id": str(number)} for number in range(20)])

    assert request_ids(many) == "0,1,2,3,4,5,6,7,...(12 more)"
    assert request_ids("{") == "-"


def test_a_message_with_line_ends_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    requests = '[{"rows": 1, "x-request-id": "a\\nb"}]'

    ItemLog().add([FailedRow(0, 500, "oh\nERROR all is lost")], {"requests": requests}, 100.0)

    assert len(caplog.records[0].getMessage().splitlines()) == 1


def test_a_message_moves_no_terminals_cursor() -> None:
    assert one_line("\x1b[2Jé\0\nforged") == r"\x1b[2Jé\x00\nforged"
