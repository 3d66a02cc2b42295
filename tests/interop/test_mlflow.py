"""MLflow's scoring client against the proxy."""

import pytest

from tests.calls import row
from tests.fakes import RunningProxy
from tests.interop.conftest import ForeignClient, ForeignError

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

ROWS = [row(1), row(2)]
DOUBLED = [[2 * value for value in one] for one in ROWS]


def test_a_server_that_is_ready_is_waited_for_no_longer(mlflow: ForeignClient, running: RunningProxy) -> None:
    mlflow.call("wait", running.url)


@pytest.mark.parametrize("form", ["frame", "array", "list", "records"])
def test_rows_are_predicted_in_every_form(mlflow: ForeignClient, running: RunningProxy, form: str) -> None:
    assert mlflow.call("invoke", running.url, form, ROWS) == DOUBLED


def test_params_reach_the_model(mlflow: ForeignClient, running: RunningProxy) -> None:
    mlflow.call("invoke", running.url, "frame", ROWS, params={"temperature": 0.5})
    assert running.runtime.seen[-1].document["parameters"]["temperature"] == 0.5


def test_our_words_reach_the_caller(mlflow: ForeignClient, running: RunningProxy) -> None:
    with pytest.raises(ForeignError, match=r"error code 400.*BAD_REQUEST.*has shape \[2, 3\]"):
        mlflow.call("invoke", running.url, "frame", [[1, 2, 3], [4, 5, 6]])
