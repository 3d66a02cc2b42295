"""The classification extension: which elements, in what order and words, in JSON, binary and gRPC."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from shoal_proxy.codecs.classification import classified
from shoal_proxy.errors import ModelFailed
from shoal_proxy.model.signature import OutputSpec
from shoal_schema.wire.datatypes import Array, float32_to_bfloat16
from tests import plain
from tests.calls import row, v2_body
from tests.fakes import FakeRuntime, RunningProxy, running_proxy, tensor
from tests.proxy.test_grpc import Stub, request

SPEC = OutputSpec("y", "FP32", (-1,))


def texts(array: Array, count: int, spec: OutputSpec | None = SPEC, *, batches: bool = True) -> Any:
    result = classified(spec, array, count, batches=batches)
    return np.vectorize(bytes.decode, otypes=[object])(result).tolist() if result.size else result.tolist()


@pytest.mark.parametrize(
    ("values", "count", "expected"),
    [
        ([1, 5, 10, 4], 2, ["10.0:2", "5.0:1"]),
        ([1, 5], 9, ["5.0:1", "1.0:0"]),
        ([3, 7, 7, 3], 4, ["7.0:1", "7.0:2", "3.0:0", "3.0:3"]),
        ([float("nan"), -1, float("-inf"), float("inf")], 2, ["inf:3", "-1.0:1"]),
        ([float("nan"), float("-inf"), 1, float("nan")], 4, ["1.0:2", "-inf:1", "nan:0", "nan:3"]),
        ([0.1, 1e-9], 2, ["0.1:0", "1e-09:1"]),
    ],
)
def test_the_largest_come_first_of_equal_ones_the_first(values: list[float], count: int, expected: list[str]) -> None:
    assert texts(np.array([values], np.float32), count) == [expected]


def test_datatypes_keep_their_numbers() -> None:
    assert texts(np.array([[0, 255, 1]], np.uint8), 3) == [["255:1", "1:2", "0:0"]]
    assert texts(np.array([[-(2**63), 2**63 - 1]], np.int64), 1) == [[f"{2**63 - 1}:1"]]
    assert texts(np.array([[False, True]]), 2) == [["1:1", "0:0"]]
    halves = float32_to_bfloat16(np.array([[0.5, -1, 2]], np.float32))
    assert texts(halves, 2, OutputSpec("y", "BF16", (-1,))) == [["2.0:2", "0.5:0"]]
    with pytest.raises(ModelFailed):
        classified(None, np.array([[b"a"]], dtype=object), 1, batches=True)


def test_rows_of_more_dimensions_are_flat_and_a_model_without_rows_has_one() -> None:
    array = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
    assert texts(array, 1) == [["3.0:3"], ["7.0:3"]]
    assert texts(array, 2, batches=False) == ["7.0:7", "6.0:6"]
    assert classified(SPEC, array[:0], 2, batches=True).shape[0] == 0


def asked(count: Any, **parameters: Any) -> dict[str, Any]:
    outputs = [{"name": "y", "parameters": {"classification": count, **parameters}}]
    return v2_body([row(1), row(2)], outputs=outputs)


def infer(running: RunningProxy, document: Mapping[str, Any]) -> Any:
    return plain.post(f"{running.url}/v2/models/double/infer", json=document)


def test_clients_get_classes_as_texts_in_json_binary_and_grpc() -> None:
    expected = ["3.5:3", "3.0:2", "5.5:3", "5.0:2"]
    with running_proxy(grpc_port=0) as running:
        [output] = infer(running, asked(2)).json()["outputs"]
        assert output == {"name": "y", "datatype": "BYTES", "shape": [2, 2], "data": expected}
        binary = infer(running, asked(2, binary_data=True))
        tail = binary.content[int(binary.headers["inference-header-content-length"]) :]
        assert tail == b"".join(len(each).to_bytes(4, "little") + each.encode() for each in expected)

        stub, made = Stub(running), request(row(1), row(2))
        made.outputs.add(name="y").parameters["classification"].int64_param = 2
        received = stub.infer(made)
        assert list(received.outputs[0].contents.bytes_contents) == [each.encode() for each in expected]
        stub.channel.close()
        assert "outputs" not in running.runtime.seen[-1].document, "the model has nothing to do with it"


@pytest.mark.parametrize("count", [0, -1, 1.5, "2", True, None, []])
def test_counts_that_are_none_are_rejected(count: Any) -> None:
    with running_proxy() as running:
        answer = infer(running, asked(count))
        assert (answer.status_code, "classification" in answer.json()["error"]) == (400, True)


def test_texts_have_no_classes_and_too_many_are_not_written() -> None:
    runtime = lambda: FakeRuntime(outputs=[tensor("y", "BYTES", [-1, 1])])  # noqa: E731
    with running_proxy(runtime) as running:
        assert infer(running, asked(1)).status_code == 400
    with running_proxy() as running:
        assert infer(running, asked(1 << 20)).status_code == 413


def test_the_extension_is_named() -> None:
    with running_proxy() as running:
        assert "classification" in plain.get(f"{running.url}/v2").json()["extensions"]
