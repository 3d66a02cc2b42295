from __future__ import annotations

import logging

import pytest

from shoal_runtime.errors import BadRequest, ForwardFailed
from shoal_runtime.handlers.calling import RowError
from shoal_runtime.item_log import LINES_PER_WINDOW, ItemLog, request_id

ERROR = RowError(0, 500, "oh")


@pytest.mark.parametrize(
    ("requests", "row", "expected"),
    [
        ('[{"rows": 2, "x-request-id": "a"}, {"rows": 1, "x-request-id": "b"}]', 1, "a"),
        ('[{"rows": 2, "x-request-id": "a"}, {"rows": 1, "x-request-id": "b"}]', 2, "b"),
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
    log = ItemLog(logging.getLogger("test"))

    log.add([ERROR] * 50, {}, 100.0)
    log.add([ERROR], {}, 130.0)
    log.add([ERROR], {}, 161.0)

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == LINES_PER_WINDOW + 2
    assert lines[LINES_PER_WINDOW] == "more failed suppressed_lines=41"


def test_the_caller_s_own_faults_are_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    ItemLog(logging.getLogger("test")).add([RowError(0, 400, "bad")], {}, 100.0)

    assert caplog.records == []


def test_the_line_says_where_the_handler_raised(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise RuntimeError("oh")
    except RuntimeError as error:
        failed = RowError(0, 500, "oh", error)

    ItemLog(logging.getLogger("test")).add([failed], {}, 100.0)

    assert "test_item_log.py:" in caplog.text


def test_a_batch_that_failed_is_told_with_the_traceback_of_the_model_s_code(caplog: pytest.LogCaptureFixture) -> None:
    failed = ForwardFailed("forward raised RuntimeError: oh")
    try:
        raise RuntimeError("oh")
    except RuntimeError as error:
        failed.__cause__ = error
    log = ItemLog(logging.getLogger("test"))

    for _ in range(50):
        log.add_batch(failed, 100.0)
    log.add_batch(BadRequest("no"), 161.0)

    assert len(caplog.records) == LINES_PER_WINDOW
    assert 'raise RuntimeError("oh")' in caplog.text


def test_a_message_with_line_ends_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    requests = '[{"rows": 1, "x-request-id": "a\\nb"}]'

    ItemLog(logging.getLogger("test")).add([RowError(0, 500, "oh\nERROR all is lost")], {"requests": requests}, 100.0)

    assert len(caplog.records[0].getMessage().splitlines()) == 1
