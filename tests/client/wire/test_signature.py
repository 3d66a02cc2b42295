from typing import Any

import pytest

from shoal.wire.signature import Tensor, parse_signature


def metadata(**changes: Any) -> dict[str, Any]:
    return {
        "name": "cat",
        "versions": ["1"],
        "platform": "shoal",
        "inputs": [
            {
                "name": "image",
                "datatype": "BYTES",
                "shape": [-1],
                "parameters": {"content_type": "image/jpeg, image/png"},
            }
        ],
        "outputs": [{"name": "label", "datatype": "BYTES", "shape": [-1, 5]}],
        "parameters": {"max_batch_size": 32, "allowed_batch_sizes": "1,2,4"},
    } | changes


def test_metadata_become_a_signature() -> None:
    signature = parse_signature(metadata())

    assert signature.inputs[0] == Tensor("image", "BYTES", (-1,), content_types=("image/jpeg", "image/png"))
    assert signature.max_batch_size == 32
    assert signature.allowed_batch_sizes == (1, 2, 4)
    assert signature.batches
    assert signature.row_shape(signature.outputs[0]) == (5,)


def test_a_foreign_server_says_no_more_than_the_protocol_asks() -> None:
    bare = metadata()
    del bare["parameters"], bare["versions"], bare["inputs"][0]["parameters"]

    signature = parse_signature(bare)

    assert signature.batches
    assert signature.max_batch_size is None
    assert signature.versions == ()


def test_a_model_with_a_fixed_first_dimension_does_not_batch() -> None:
    fixed = [{"name": "y", "datatype": "FP32", "shape": [5]}]

    signature = parse_signature(metadata(outputs=fixed))

    assert not signature.batches
    assert signature.row_shape(signature.outputs[0]) == (5,)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param([], id="a list"),
        pytest.param(None, id="nothing"),
        pytest.param({}, id="an empty object"),
        pytest.param(metadata(inputs=None), id="no inputs"),
        pytest.param(metadata(inputs=[{"name": "x"}]), id="an input without a type"),
        pytest.param(metadata(inputs=[{"name": "x", "datatype": "FP99", "shape": []}]), id="a type"),
        pytest.param(metadata(outputs=[{"name": "y", "datatype": "FP32", "shape": "x"}]), id="shape"),
        pytest.param(metadata(parameters=[1]), id="parameters in a list"),
    ],
)
def test_metadata_that_break_the_protocol_are_refused(broken: Any) -> None:
    with pytest.raises(ValueError, match="violates the V2 protocol"):
        parse_signature(broken)
