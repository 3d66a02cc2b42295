import asyncio
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest

from shoal_runtime import TensorSpec
from shoal_runtime.execution.torch_placement import CpuPlacement
from shoal_runtime.http.server import App, ServedModel
from shoal_runtime.readiness import Readiness
from tests.runtime.fakes import Adder, Bench, ask, chunks, infer_body

if TYPE_CHECKING:
    import torch

INFER = "/v2/models/adder/infer"
X = np.array([[1, 2], [3, 4]], dtype=np.float32)
JSON_BODY = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]})


class Picky(Adder):
    """Fails rows that hold a negative number; and everything that holds 1000."""

    def forward(self, batch: Mapping[str, "torch.Tensor"]) -> Any:
        if (batch["x"] == 1000).any():
            raise RuntimeError("a thousand")
        return [RuntimeError("negative") if (row < 0).any() else row + 1 for row in batch["x"]]


class Served:
    def __init__(self, bench: Bench) -> None:
        self.readiness = Readiness()
        self.app = App(self.readiness, max_body_bytes=4096)
        self.bench = bench

    def load(self) -> "Served":
        self.app.serve(ServedModel("adder", "1", "shoal_handler", self.bench.pipeline))
        self.readiness.ready()
        return self

    def ask(self, path: str, **how: Any) -> tuple[int, dict[str, str], Any]:
        status, headers, body = asyncio.run(ask(self.app, path, **how))
        if headers["content-type"] == "application/json":
            return status, headers, orjson.loads(body)
        return status, headers, body


@pytest.fixture
def served() -> Iterator[Served]:
    with Bench(Picky()) as bench:
        yield Served(bench)


@pytest.mark.parametrize(("memory", "extra"), [((60, 80, 50), {"device_memory": [60, 80, 50]}), (None, {})])
def test_a_ready_runtime_reports_how_much_of_its_device_is_in_use_where_it_has_one(
    served: Served, memory: tuple[int, int, int] | None, extra: dict[str, Any]
) -> None:
    served.app.serve(ServedModel("adder", "1", "test", served.bench.pipeline, memory=lambda: memory))
    served.readiness.ready()

    assert served.ask("/v2/health/ready")[2] == {"ready": True, **extra}


def test_a_ready_runtime_reports_the_peak_memory_of_its_process(served: Served) -> None:
    served.app.serve(ServedModel("adder", "1", "test", served.bench.pipeline, peak_memory=lambda: 70))
    served.readiness.ready()

    assert served.ask("/v2/health/ready")[2] == {"ready": True, "peak_memory_bytes": 70}


def test_a_ready_runtime_reports_a_chosen_precision(served: Served) -> None:
    served.app.serve(ServedModel("adder", "1", "test", served.bench.pipeline, precision="TF32"))
    served.readiness.ready()

    assert served.ask("/v2/health/ready")[2]["precision"] == "TF32"


def test_health_reports_why_it_is_not_ready(served: Served) -> None:
    served.readiness.progress("downloading 40 %")

    assert served.ask("/v2/health/live")[0] == 200
    for path in ("/v2/health/ready", "/v2/models/any/ready", "/v2/models/any/versions/1/ready"):
        status, _, answer = served.ask(path)
        assert status == 503
        assert answer == {"ready": False, "reason": "downloading 40 %"}


def test_a_loaded_model_is_ready(served: Served) -> None:
    served.load()

    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/adder/ready",
        "/v2/models/adder/versions/1/ready",
        "/v2",
        "/v2/models/adder",
        "/v2/models/adder/versions/1",
    ):
        assert served.ask(path)[0] == 200


def test_a_lost_device_is_neither_live_nor_ready(served: Served) -> None:
    served.load().readiness.lost("the device failed")

    assert served.ask("/v2/health/live")[0] == 503
    assert served.ask("/v2/health/ready")[2] == {"ready": False, "reason": "the device failed"}
    status, _, answer = served.ask(INFER, method="POST", body=[JSON_BODY])
    assert (status, answer["code"]) == (503, "DEVICE_LOST")


def test_metadata_names_the_tensors(served: Served) -> None:
    _, _, answer = served.load().ask("/v2/models/adder")

    assert answer["name"] == "adder"
    assert answer["inputs"][0]["shape"] == [-1, 2]
    assert answer["parameters"]["max_batch_size"] == 8


def test_a_json_batch_gets_a_response_in_json(served: Served) -> None:
    status, _, answer = served.load().ask(INFER, method="POST", body=[JSON_BODY])

    assert status == 200
    assert answer["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [2, 3]}]
    assert set(answer["parameters"]) == {
        "queue_us",
        "preprocess_us",
        "forward_us",
        "postprocess_us",
        "padded_rows",
    }


@pytest.mark.parametrize("piece", [1, 7, 10_000])
def test_a_binary_batch_gets_a_response_in_binary(served: Served, piece: int) -> None:
    body, headers = infer_body("x", X, "FP32")

    status, names, answer = served.load().ask(INFER, method="POST", body=list(chunks(body, piece)), headers=headers)

    length = int(names["inference-header-content-length"])
    assert status == 200
    assert names["content-length"] == str(len(answer))
    assert np.frombuffer(answer[length:], np.float32).tolist() == (X + 1).reshape(-1).tolist()


def test_failed_rows_are_named_and_the_others_completed(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"rows": 1, "x-request-id": "a"}, {"rows": 2, "x-request-id": "b"}]
    document = {
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [3, 2], "data": [1, 1, 2, 2, -3, 3]}],
        "parameters": {"requests": orjson.dumps(rows).decode()},
    }

    with caplog.at_level(logging.ERROR):
        _, _, answer = served.load().ask(INFER, method="POST", body=[orjson.dumps(document)])

    assert answer["outputs"][0]["shape"] == [2, 2]
    assert orjson.loads(answer["parameters"]["errors"]) == [
        {"row": 2, "status": 500, "message": "RuntimeError: negative"}
    ]
    assert "row=2 status=500 x-request-id=b" in caplog.text


@pytest.mark.parametrize(
    ("path", "how", "status", "code"),
    [
        pytest.param("/", {}, 404, "NOT_FOUND", id="root"),
        pytest.param("/v2/models/other", {}, 404, "NOT_FOUND", id="model"),
        pytest.param("/v2/models/adder/versions/9", {}, 404, "NOT_FOUND", id="version"),
        pytest.param("/v2/models/adder/x/y/z", {}, 404, "NOT_FOUND", id="path"),
        pytest.param("/v2/models/other/infer", {"method": "POST"}, 404, "NOT_FOUND", id="infer"),
        pytest.param("/v2/infer", {"method": "POST"}, 404, "NOT_FOUND", id="no model"),
        pytest.param(INFER, {}, 405, "BAD_REQUEST", id="get infer"),
        pytest.param("/v2/health/ready", {"method": "POST"}, 405, "BAD_REQUEST", id="post health"),
        pytest.param(INFER, {"method": "POST", "body": [b"{"]}, 400, "BAD_REQUEST", id="json"),
        pytest.param(INFER, {"method": "POST", "body": []}, 400, "BAD_REQUEST", id="gone"),
    ],
)
def test_wrong_questions_get_an_error_and_a_code(
    served: Served, path: str, how: dict[str, Any], status: int, code: str
) -> None:
    got, headers, answer = served.load().ask(path, **how)

    assert (got, answer["code"]) == (status, code)
    assert answer["error"]
    assert headers["x-shoal-executed"] == "no"


@pytest.mark.parametrize("body", [[b"x" * 5000], [b"x" * 3000, b"x" * 3000]], ids=["one", "two"])
def test_a_body_over_the_limit_is_rejected(served: Served, body: list[bytes]) -> None:
    status, headers, answer = served.load().ask(INFER, method="POST", body=body)

    assert (status, answer["code"]) == (413, "BODY_TOO_LARGE")
    assert headers["connection"] == "close"


def test_a_body_that_announces_too_much_is_not_read(served: Served) -> None:
    status, _, _ = served.load().ask(INFER, method="POST", body=[], headers={"Content-Length": "1000000"})

    assert status == 413


@pytest.mark.parametrize(
    "headers",
    [
        {"Inference-Header-Content-Length": "-1"},
        {"Inference-Header-Content-Length": "9" * 30},
        {"x-request-timeout-ms": "soon"},
        {"x-request-timeout-ms": "-1"},
        {"Content-Encoding": "gzip"},
    ],
)
def test_headers_that_make_no_sense_are_rejected(served: Served, headers: dict[str, str]) -> None:
    status, _, answer = served.load().ask(INFER, method="POST", body=[JSON_BODY], headers=headers)

    assert (status, answer["code"]) == (400, "BAD_REQUEST")


def test_a_batch_without_a_waiting_client_is_not_executed(served: Served) -> None:
    status, _, answer = served.load().ask(INFER, method="POST", body=[JSON_BODY], headers={"x-request-timeout-ms": "0"})

    assert (status, answer["code"]) == (504, "TIMEOUT")


@pytest.mark.parametrize("timeout_ms", ["9223372036854775807", "9" * 5000, "0" * 40 + "1"])
def test_a_timeout_beyond_any_range_is_a_long_one(served: Served, timeout_ms: str) -> None:
    headers = {"x-request-timeout-ms": timeout_ms}

    assert served.load().ask(INFER, method="POST", body=[JSON_BODY], headers=headers)[0] == 200


@pytest.mark.parametrize(
    "parameters",
    [
        {"timeout": 2**63 - 1, "priority": -1e300, "sequence_id": "x" * 999},
        {"requests": "[", "errors": None},
        {"requests": '[{"rows": "a", "x-request-id": {}}]'},
        {"requests": {"a": 1}, "binary_data_output": "perhaps"},
        {"a" * 999: {"b": [[[1]]]}},
    ],
)
def test_no_parameter_fails_a_batch(served: Served, parameters: dict[str, Any]) -> None:
    body = {**orjson.loads(JSON_BODY), "parameters": parameters}

    assert served.load().ask(INFER, method="POST", body=[orjson.dumps(body)])[0] == 200


def test_too_many_rows_have_a_status_of_their_own(served: Served) -> None:
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [9, 2], "data": [0] * 18}]}

    status, _, answer = served.load().ask(INFER, method="POST", body=[orjson.dumps(document)])

    assert (status, answer["code"]) == (413, "TOO_MANY_ROWS")


def test_a_forward_that_raises_fails_its_batch_and_no_other(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    document = orjson.loads(JSON_BODY.replace(b"[1,2]}]", b"[1000,2]}]"))
    document["parameters"] = {"requests": '[{"rows": 1, "x-request-id": "who"}]'}
    served.load()

    status, _, answer = served.ask(INFER, method="POST", body=[orjson.dumps(document)])

    assert "rows=1 x-request-ids=who inputs=x:float32[1x2] message=forward raised RuntimeError: a thous" in caplog.text
    assert caplog.text.count('raise RuntimeError("a thousand")') == 1

    assert (status, answer["code"]) == (500, "FORWARD_FAILED")
    assert answer["error"] == "forward raised RuntimeError: a thousand"
    assert served.ask(INFER, method="POST", body=[JSON_BODY])[0] == 200


class Odd(Adder):
    outputs = (TensorSpec("y", "BYTES", [-1]),)

    def forward(self, batch: Mapping[str, "torch.Tensor"]) -> Any:
        kind = float(batch["x"][0, 0])
        if kind == 1:
            raise KeyboardInterrupt
        if kind == 2:
            raise MemoryError
        return [] if kind == 3 else [b"\xff"]


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [(1, 500, "FORWARD_FAILED"), (2, 500, "OUT_OF_MEMORY"), (3, 500, "WRONG_ROWS"), (4, 400, "BAD_REQUEST")],
)
def test_an_error_after_forward_began_states_that_rows_may_have_been_executed(
    kind: int, status: int, code: str
) -> None:
    with Bench(Odd()) as bench:
        body = JSON_BODY.replace(b"[1,2]}]", b"[%d,2]}]" % kind)
        got, headers, answer = Served(bench).load().ask(INFER, method="POST", body=[body])

    assert (got, answer["code"], headers["x-shoal-executed"]) == (status, code, "maybe")


@pytest.mark.parametrize(
    ("fault", "code"), [(RuntimeError("no pinned memory"), "FORWARD_FAILED"), (MemoryError(), "OUT_OF_MEMORY")]
)
def test_an_error_before_forward_states_that_no_row_was_executed(fault: Exception, code: str) -> None:
    class Full(CpuPlacement):
        def stage(self, batch: Any) -> Any:
            raise fault

    with Bench(Adder(), placement=Full()) as bench:
        status, headers, answer = Served(bench).load().ask(INFER, method="POST", body=[JSON_BODY])

    assert (status, answer["code"], headers["x-shoal-executed"]) == (500, code, "no")


@pytest.mark.parametrize("phase", ["lost", "stopping", "starting"])
def test_a_runtime_that_accepts_no_batches_states_that_none_was_executed(served: Served, phase: str) -> None:
    if phase == "lost":
        served.load().readiness.lost("gone")
    if phase == "stopping":
        served.load().readiness.stopping()

    status, headers, _ = served.ask(INFER, method="POST", body=[JSON_BODY])

    assert (status, headers["x-shoal-executed"]) == (503, "no")


def test_a_batch_that_is_too_late_or_too_large_was_not_executed(served: Served) -> None:
    late = served.load().ask(INFER, method="POST", body=[JSON_BODY], headers={"x-request-timeout-ms": "0"})
    large = served.ask(INFER, method="POST", body=[b"x" * 5000])

    assert [(status, headers["x-shoal-executed"]) for status, headers, _ in (late, large)] == [(504, "no"), (413, "no")]


def test_a_fault_of_the_runtime_itself_states_that_rows_may_have_been_executed() -> None:
    class Pooled(Picky):
        preprocess = staticmethod(lambda row: row)

    with Bench(Pooled()) as bench:
        bench.pool.shutdown()
        status, headers, answer = Served(bench).load().ask(INFER, method="POST", body=[JSON_BODY])

    assert (status, headers["x-shoal-executed"]) == (500, "maybe")
    assert answer["error"] == "the runtime failed; its log has the reason"


def test_a_response_does_not_state_it(served: Served) -> None:
    assert "x-shoal-executed" not in served.load().ask(INFER, method="POST", body=[JSON_BODY])[1]


def test_infer_before_the_model_is_loaded_is_not_ready(served: Served) -> None:
    status, _, answer = served.ask(INFER, method="POST", body=[JSON_BODY])

    assert (status, answer["code"]) == (503, "NOT_READY")


def test_infer_after_the_end_is_stopping(served: Served) -> None:
    served.load().readiness.stopping()

    assert served.ask(INFER, method="POST", body=[JSON_BODY])[2]["code"] == "STOPPING"


def test_other_protocols_are_ignored(served: Served) -> None:
    asyncio.run(served.app({"type": "lifespan"}, None, None))  # type: ignore[arg-type]


def test_optional_inputs_may_be_left_out() -> None:
    class Masked:
        inputs = (
            TensorSpec("x", "FP32", [-1, 2]),
            TensorSpec("scale", "FP32", [-1], optional=True),
        )
        outputs = (TensorSpec("y", "FP32", [-1, 2]),)

        def forward(self, batch: Mapping[str, Any]) -> Any:
            assert sorted(batch) == ["x"]
            return batch["x"]

    with Bench(Masked()) as bench:
        assert Served(bench).load().ask(INFER, method="POST", body=[JSON_BODY])[0] == 200
