from typing import Any

import pytest

from shoal_proxy.model.signature import SignatureError, parse_metadata
from shoal_proxy.routes.app import describe
from shoal_proxy.settings import Settings
from tests.fakes import tensor
from tests.proxy.signatures import signature

Y = tensor("y", "FP32", [-1])


@pytest.mark.parametrize(
    ("inputs", "outputs", "batches"),
    [
        pytest.param([[-1, 4]], [[-1]], True, id="-1 in front everywhere"),
        pytest.param([[-1, 4], [3]], [[-1]], False, id="an input without"),
        pytest.param([[-1, 4]], [[10]], False, id="an output without"),
        pytest.param([[]], [[-1]], False, id="a scalar"),
    ],
)
def test_a_foreign_model_batches_when_every_first_dimension_is_open(
    inputs: list[list[int]], outputs: list[list[int]], *, batches: bool
) -> None:
    model = signature(
        [tensor(f"x{number}", "FP32", shape) for number, shape in enumerate(inputs)],
        [tensor(f"y{number}", "FP32", shape) for number, shape in enumerate(outputs)],
    )

    assert model.batches is batches
    assert not (model.fixed and not batches)


def test_a_named_batch_dimension_comes_first_in_canonical_shapes() -> None:
    model = signature([tensor("x", "FP32", [3, -1, 5], batch_dim=1, pad_axis=2)], [Y])

    spec = model.inputs["x"]
    assert (spec.shape, spec.batch_dim, spec.pad_axis) == ((-1, 3, 5), 1, 2)
    assert model.batches


@pytest.mark.parametrize(
    ("x", "fixed"),
    [
        pytest.param(tensor("x", "FP32", [-1, 4]), True, id="one shape"),
        pytest.param(tensor("x", "FP32", [-1, -1]), False, id="an open dimension"),
        pytest.param(tensor("x", "FP32", [-1, 4], optional=True), False, id="may be missing"),
        pytest.param(tensor("x", "FP32", [-1, 4], pad_axis=1), False, id="padded"),
        pytest.param(tensor("x", "FP32", [4]), False, id="does not batch"),
    ],
)
def test_requests_may_all_share_a_batch_when_rows_have_one_shape(x: dict[str, Any], *, fixed: bool) -> None:
    assert signature([x], [Y]).fixed is fixed


def test_a_mask_is_padded_with_its_inputs_and_may_be_left_out() -> None:
    model = signature(
        [
            tensor("ids", "INT64", [-1, -1], pad_axis=1, pad_value=7, pad_mask="mask", pad_buckets="8, 4,8"),
            tensor("mask", "INT64", [-1, -1]),
        ],
        [Y],
    )

    mask = model.inputs["mask"]
    assert (mask.optional, mask.pad_axis, mask.pad_value, mask.pad_buckets) == (True, 1, 0, (4, 8))
    assert model.pads


def test_content_types_are_lists() -> None:
    spec = signature([tensor("x", "BYTES", [-1], content_type="image/jpeg, image/png")], [Y]).inputs["x"]

    assert spec.content_types == ("image/jpeg", "image/png")
    assert not spec.holds_json


IDS = {"pad_axis": 1, "pad_mask": "mask"}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        pytest.param([tensor("x", "FP31", [-1])], "unknown datatype 'FP31'", id="an unknown datatype"),
        pytest.param([tensor("x", "FP32", [-2])], "size must be -1", id="a size of -2"),
        pytest.param([tensor("x", "FP32", [-1])] * 2, "not unique", id="a name twice"),
        pytest.param([{**tensor("x", "FP32", [-1]), "name": 5}], "5 is not text", id="a name that is a number"),
        pytest.param([{"name": "x"}], "KeyError", id="a name alone"),
        pytest.param([tensor("x", "FP32", [-1], batch_dim=1)], "has batch_dim 1 but shape", id="batch_dim too large"),
        pytest.param([tensor("x", "FP32", [-1, 2], pad_axis=0)], "other than the batch dimension", id="padded rows"),
        pytest.param([tensor("x", "FP32", [-1, 2], pad_axis=2)], "must be an axis", id="pad_axis too large"),
        pytest.param([tensor("x", "FP32", [-1, 2], pad_axis=-1)], "must be an axis", id="pad_axis negative"),
        pytest.param([tensor("x", "FP32", [3, 2], pad_axis=1)], "needs a batch dimension", id="pads, does not batch"),
        pytest.param([tensor("x", "FP32", [-1, 2], pad_value="a")], "which is not a number", id="pad_value a text"),
        pytest.param([tensor("x", "UINT8", [-1, 2], pad_value=300)], "", id="pad_value out of range"),
        pytest.param([tensor("x", "INT64", [-1, 2], pad_value=0.5)], "INT64 cannot hold", id="pad_value half"),
        pytest.param([tensor("x", "BF16", [-1, 2], pad_value=1)], "BF16 cannot hold", id="pad_value of raw bits"),
        pytest.param([tensor("x", "FP32", [-1, 2], pad_buckets="4")], "need pad_axis", id="buckets without an axis"),
        pytest.param([tensor("x", "FP32", [-1, 2], pad_mask="m"), tensor("m", "BOOL", [-1, 2])], "need pad_axis",
                     id="a mask without an axis"),
        pytest.param([tensor("x", "FP32", [-1, 2], pad_buckets="0,4")], "at least 1", id="a bucket of nothing"),
        pytest.param([tensor("x", "FP32", [-1, 2], pad_buckets="a")], "invalid literal", id="a bucket that is a text"),
        pytest.param([tensor("x", "FP32", [-1, -1], **IDS)], "'mask', which is not an input", id="no mask"),
        pytest.param([tensor("x", "FP32", [-1, -1], **IDS), tensor("mask", "BYTES", [-1, -1])], "rows x length",
                     id="a mask of texts"),
        pytest.param([tensor("x", "FP32", [-1, -1], **IDS), tensor("mask", "BOOL", [-1, 1, -1])], "rows x length",
                     id="a mask of three dimensions"),
    ],
)  # fmt: skip
def test_metadata_that_cannot_be_served_is_rejected(tensors: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(SignatureError, match=f"model metadata is unusable: .*{message}"):
        signature(tensors, [Y])


@pytest.mark.parametrize("source", [None, "z", "x"], ids=["no input", "an unknown input", "an input without padding"])
def test_unpadding_must_follow_a_padded_input(source: str | None) -> None:
    rules = {"unpad_axis": 1, **({"unpad_input": source} if source else {})}

    with pytest.raises(SignatureError, match="unpad_input"):
        signature([tensor("x", "FP32", [-1, 2])], [tensor("y", "FP32", [-1, 2], **rules)])


@pytest.mark.parametrize("given", [0, -1, "many"])
def test_a_batch_holds_at_least_one_row(given: Any) -> None:
    with pytest.raises(SignatureError):
        signature(max_batch_size=given)


@pytest.mark.parametrize("metadata", [[], "m", None, 3, {}, {"name": "m", "inputs": 1, "outputs": []}])
def test_invalid_metadata_is_rejected(metadata: Any) -> None:
    with pytest.raises(SignatureError):
        parse_metadata(metadata)


@pytest.mark.parametrize(
    ("models", "configured", "rows"), [(2, 32, 2), (64, 32, 32), (None, 32, 32)], ids=["model", "configured", "unsaid"]
)
def test_clients_receive_the_batch_that_runs_and_not_what_was_configured(
    models: int | None, configured: int, rows: int
) -> None:
    settings = Settings.from_env({"SHOAL_MODEL_NAME": "cat", "SHOAL_BATCHING_MAX_BATCH_SIZE": str(configured)})
    given: dict[str, Any] = {} if models is None else {"max_batch_size": models}

    assert describe(signature(**given), settings)["parameters"]["max_batch_size"] == rows
