from typing import Any

import pytest

from shoal_runtime import PaddingRule, TensorSpec
from shoal_runtime.errors import LoadError
from shoal_runtime.signature.spec import every_length
from shoal_runtime.signature.tensors import make_signature


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        pytest.param({"name": ""}, "needs a name", id="name"),
        pytest.param({"name": "a\udc00"}, "needs a name", id="lone surrogate"),
        pytest.param({"datatype": "FLOAT"}, "FLOAT", id="datatype"),
        pytest.param({"shape": []}, "batch_dim 0", id="no dimensions"),
        pytest.param({"shape": [-1, 0]}, r"shape \[-1, 0\]", id="zero"),
        pytest.param({"shape": [-1, "a"]}, "shape", id="text"),
        pytest.param({"batch_dim": 2}, "batch_dim 2", id="batch_dim"),
        pytest.param({"pad_axis": 0}, "pad_axis 0", id="pad_axis is batch_dim"),
        pytest.param({"pad_axis": 2}, "pad_axis 2", id="pad_axis"),
        pytest.param({"pad_buckets": [8]}, "pad_axis", id="buckets without axis"),
        pytest.param({"pad_axis": 1, "pad_buckets": [8, 4]}, "increasing", id="buckets"),
        pytest.param({"pad_mask": "m"}, "pad_axis", id="mask without axis"),
        pytest.param({"unpad_axis": 1}, "unpad_input", id="unpad"),
        pytest.param({"content_type": "text/plain"}, "content_type", id="content type"),
    ],
)
def test_a_specification_out_of_range_is_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TensorSpec(**{"name": "x", "datatype": "FP32", "shape": [-1, 4], **fields})


def test_a_row_has_no_batch_dimension() -> None:
    assert TensorSpec("x", "FP32", [3, -1, 4], batch_dim=1).row_shape == (3, 4)


def test_media_types_are_split() -> None:
    spec = TensorSpec("x", "BYTES", [-1], content_type="image/JPEG, image/png")

    assert spec.media_types == ("image/jpeg", "image/png")


def test_a_padding_rule_is_checked_too() -> None:
    with pytest.raises(ValueError, match="increasing"):
        PaddingRule("ids", pad_axis=1, pad_buckets=[4, 4])


def test_every_length_up_to_the_last_bucket_is_a_bucket() -> None:
    rule = PaddingRule("ids", pad_axis=1, pad_value=9, pad_buckets=[2, 4], pad_mask="mask")

    assert every_length(rule) == PaddingRule("ids", pad_axis=1, pad_value=9, pad_buckets=[1, 2, 3, 4], pad_mask="mask")
    assert every_length(PaddingRule("ids", pad_axis=1)).pad_buckets == ()


X = TensorSpec("x", "FP32", [-1, 4])
Y = TensorSpec("y", "FP32", [-1])


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        pytest.param([], [Y], "no inputs", id="no inputs"),
        pytest.param([X], [], "no outputs", id="no outputs"),
        pytest.param([X, X], [Y], "two inputs", id="twice"),
        pytest.param(
            [TensorSpec("x", "FP32", [-1, -1], pad_axis=1, pad_mask="m")],
            [Y],
            "pad_mask names 'm'",
            id="mask",
        ),
        pytest.param(
            [X],
            [TensorSpec("y", "FP32", [-1, -1], unpad_axis=1, unpad_input="q")],
            "unpad_input names 'q'",
            id="unpad",
        ),
        pytest.param(
            [TensorSpec("x", "FP32", [4, 4])], [TensorSpec("y", "FP32", [2])], r"x \[4, 4\], y \[2\]", id="rows"
        ),
    ],
)
def test_a_contradictory_signature_is_rejected(
    inputs: list[TensorSpec], outputs: list[TensorSpec], message: str
) -> None:
    with pytest.raises(LoadError, match=message):
        make_signature(inputs, outputs, max_batch_size=4, allowed_batch_sizes=())


def test_a_fixed_batch_dimension_is_the_only_allowed_size() -> None:
    fixed = TensorSpec("x", "FP32", [8, 4])

    signature = make_signature([fixed], [Y], max_batch_size=32, allowed_batch_sizes=(16, 32))

    assert signature.max_batch_size == 8
    assert signature.allowed_batch_sizes == (8,)
    assert signature.inputs[0].shape == (-1, 4)
