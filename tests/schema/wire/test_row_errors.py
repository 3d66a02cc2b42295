import pickle
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal_schema.wire.row_errors import RowError, decode_row_errors, encode_row_errors

TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
ERRORS = st.builds(RowError, st.integers(0, 2**53), st.integers(400, 599), TEXTS)


@given(errors=st.lists(ERRORS))
def test_errors_of_rows_go_there_and_back_as_json(errors: list[RowError]) -> None:
    assert decode_row_errors(orjson.loads(orjson.dumps(encode_row_errors(errors)))) == tuple(errors)


@pytest.mark.parametrize("status", [400, 599])
def test_the_first_row_may_fail_with_any_status_of_an_error(status: int) -> None:
    assert decode_row_errors([{"row": 0, "status": status, "message": "no"}]) == (RowError(0, status, "no"),)


def test_an_error_goes_from_one_process_to_another() -> None:
    assert pickle.loads(pickle.dumps(RowError(3, 400, "no"))) == RowError(3, 400, "no")


@pytest.mark.parametrize(
    "entries",
    [
        None,
        {"row": 0, "status": 400, "message": "no"},
        ["row 0"],
        [{"status": 400, "message": "no"}],
        [{"row": -1, "status": 400, "message": "no"}],
        [{"row": True, "status": 400, "message": "no"}],
        [{"row": 0, "status": 200, "message": "yes"}],
        [{"row": 0, "status": 399, "message": "no"}],
        [{"row": 0, "status": 600, "message": "no"}],
        [{"row": 0, "status": "400", "message": "no"}],
        [{"row": 0, "status": 10**400, "message": "no"}],
    ],
)
def test_what_is_no_rows_error_is_rejected_with_a_short_message(entries: Any) -> None:
    with pytest.raises(ValueError, match="row") as caught:
        decode_row_errors(entries)

    assert len(str(caught.value)) < 200
