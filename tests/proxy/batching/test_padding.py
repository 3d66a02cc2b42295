from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

from shoal_proxy.batching.batch import (
    SMALL_ELEMENTS,
    Batch,
    BatchResult,
    MergedInputs,
    bucket_for,
    check_lengths,
    make_batch,
    merge,
    pad_group,
    shape_key,
    split,
)
from shoal_proxy.batching.pending import Outcome, PendingRequest, RequestResult, RequestSlice
from shoal_proxy.errors import InvalidRequest, ModelFailed
from shoal_proxy.model.signature import ModelSignature
from shoal_schema.wire.datatypes import Array
from shoal_schema.wire.elements import bytes_array
from tests.fakes import tensor
from tests.proxy.signatures import deliver_outcome, padded_request, signature

Rows = list[list[int]]


def token_model(*, mask: bool = True, buckets: str = "", **output: Any) -> ModelSignature:
    rules: dict[str, Any] = {"pad_axis": 1, "pad_value": -7}
    if mask:
        rules["pad_mask"] = "mask"
    if buckets:
        rules["pad_buckets"] = buckets
    masks = [tensor("mask", "INT64", [-1, -1])] if mask else []
    return signature(
        [tensor("ids", "INT64", [-1, -1], **rules), *masks],
        [tensor("y", "INT64", [-1, -1], **{"unpad_axis": 1, "unpad_input": "ids", **output})],
    )


def ids(rows: Rows, model: ModelSignature, **more: Array) -> PendingRequest:
    """Return a request of ragged rows, stacked among themselves as V1 does."""
    lengths = [len(row) for row in rows]
    stacked = np.full((len(rows), max(lengths)), -7, np.int64)
    for row, values in zip(stacked, rows, strict=True):
        row[: len(values)] = values
    return padded_request({"ids": stacked, **more}, model, ids=lengths)


def batch_of(*pendings: PendingRequest) -> Batch:
    return make_batch([RequestSlice(pending, 0, pending.rows, pending.inputs) for pending in pendings])


def merged(model: ModelSignature, *requests: Rows) -> MergedInputs:
    return merge(batch_of(*[ids(rows, model) for rows in requests]), model)


@pytest.mark.parametrize(("length", "bucket"), [(1, 4), (4, 4), (5, 8), (8, 8)])
def test_a_row_goes_to_the_smallest_bucket_that_holds_it(length: int, bucket: int) -> None:
    assert bucket_for(length, token_model(buckets="8, 4").inputs["ids"]) == bucket


def test_a_row_longer_than_the_last_bucket_is_rejected_with_both_numbers() -> None:
    with pytest.raises(InvalidRequest, match="length 9 along axis 1"):
        bucket_for(9, token_model(buckets="4,8").inputs["ids"])


def test_requests_of_one_bucket_share_a_key_and_others_do_not() -> None:
    model = token_model(buckets="4,8")
    keys = [shape_key({"ids": np.zeros((2, length), np.int64)}, model) for length in (1, 4, 5)]

    assert keys[0] == keys[1] != keys[2]


def test_without_buckets_all_lengths_share_a_batch_padded_to_the_longest() -> None:
    result = merged(token_model(), [[1, 2, 3]], [[4], [5, 6]])

    assert np.asarray(result.inputs["ids"]).tolist() == [[1, 2, 3], [4, -7, -7], [5, 6, -7]]
    assert np.asarray(result.inputs["mask"]).tolist() == [[1, 1, 1], [1, 0, 0], [1, 1, 0]]


def test_with_buckets_rows_are_padded_to_the_bucket() -> None:
    result = merged(token_model(buckets="4,8"), [[1, 2, 3]])

    assert np.asarray(result.inputs["ids"]).tolist() == [[1, 2, 3, -7]]
    assert np.asarray(result.inputs["mask"]).tolist() == [[1, 1, 1, 0]]


def test_waste_counts_every_padded_element_by_client_or_proxy() -> None:
    model = token_model()
    made = merged(model, [[1, 2, 3]], [[4], [5, 6]])
    given_mask = np.ones((1, 3), np.int64)
    short = padded_request(
        {"ids": np.array([[4, -7], [5, 6]]), "mask": np.array([[1, 0], [1, 1]])}, model, ids=[1, 2], mask=[1, 2]
    )
    sent = merge(batch_of(ids([[1, 2, 3]], model, mask=given_mask), short), model)

    assert (made.elements, made.padded_elements) == (18, 6)
    assert (sent.elements, sent.padded_elements) == (18, 6)
    assert merged(token_model(mask=False), [[1, 2, 3]], [[4], [5, 6]]).padded_elements == 3


def test_a_mask_of_the_client_is_padded_with_zeros() -> None:
    model = token_model()
    holes = ids([[1, 2]], model, mask=np.array([[1, 0]]))
    long = ids([[1, 2, 3]], model, mask=np.array([[0, 1, 1]]))

    assert np.asarray(merge(batch_of(holes, long), model).inputs["mask"]).tolist() == [[1, 0, 0], [0, 1, 1]]


def test_inputs_of_one_group_must_have_the_same_lengths() -> None:
    model = token_model()
    assert pad_group(model.inputs["ids"]) == pad_group(model.inputs["mask"]) == "mask"

    with pytest.raises(InvalidRequest, match=r"'ids' and 'mask'.*\[2\] and \[3\]"):
        check_lengths({"ids": [2], "mask": [3]}, model)


def test_two_groups_are_padded_each_to_its_own_longest() -> None:
    model = signature(
        [
            tensor("question", "INT64", [-1, -1], pad_axis=1),
            tensor("image", "FP32", [-1, 2, -1], pad_axis=2, pad_value=0.5),
        ],
        [tensor("y", "FP32", [-1])],
    )
    first = padded_request({"question": np.ones((1, 1), np.int64), "image": np.ones((1, 2, 3), np.float32)}, model)
    second = padded_request({"question": np.ones((1, 4), np.int64), "image": np.ones((1, 2, 1), np.float32)}, model)

    result = merge(batch_of(first, second), model)

    assert np.asarray(result.inputs["question"]).tolist() == [[1, 0, 0, 0], [1, 1, 1, 1]]
    assert np.asarray(result.inputs["image"]).tolist() == [[[1, 1, 1]] * 2, [[1, 0.5, 0.5]] * 2]
    assert result.padded_elements == 3 + 4


def test_bytes_are_padded_with_empty_elements() -> None:
    model = signature([tensor("words", "BYTES", [-1, -1], pad_axis=1)], [tensor("y", "FP32", [-1])])
    one = padded_request({"words": bytes_array([b"a"], (1, 1))}, model)
    two = padded_request({"words": bytes_array([b"b", b"c"], (1, 2))}, model)

    assert np.asarray(merge(batch_of(one, two), model).inputs["words"]).tolist() == [[b"a", b""], [b"b", b"c"]]


def test_an_axis_before_the_batch_dimension_is_padded_too() -> None:
    model = signature(
        [tensor("x", "FP32", [-1, -1, 2], batch_dim=1, pad_axis=0)],
        [tensor("y", "FP32", [-1, -1], batch_dim=1, unpad_axis=0, unpad_input="x")],
    )
    assert (model.inputs["x"].shape, model.inputs["x"].pad_axis) == ((-1, -1, 2), 1)
    short = padded_request({"x": np.ones((1, 1, 2), np.float32)}, model)
    long = padded_request({"x": np.ones((2, 3, 2), np.float32)}, model)

    result = merge(batch_of(short, long), model)

    assert np.asarray(result.inputs["x"]).shape == (3, 3, 2)
    assert result.inputs["x"][0].tolist() == [[1, 1], [0, 0], [0, 0]]


ragged = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=4)


@given(st.lists(ragged, min_size=1, max_size=4), st.sampled_from(["", "8"]), st.booleans())
@settings(deadline=None)
def test_padding_and_cutting_give_each_client_its_own_values(requests: list[Rows], buckets: str, mask: bool) -> None:
    model = token_model(mask=mask, buckets=buckets)
    pendings = [ids(rows, model) for rows in requests]
    delivered: list[list[Outcome]] = [[] for _ in requests]
    for pending, outcomes in zip(pendings, delivered, strict=True):
        pending.deliver = outcomes.append
    batch = batch_of(*pendings)

    sent = merge(batch, model)
    deliver_outcome(split(batch, BatchResult({"y": np.asarray(sent.inputs["ids"]) + 1}), model))

    if mask:
        values = sum(sum(map(len, rows)) for rows in requests)
        assert int(np.asarray(sent.inputs["mask"]).sum()) == values
        assert sent.elements - sent.padded_elements == 2 * values
    for rows, (outcome,) in zip(requests, delivered, strict=True):
        assert isinstance(outcome, RequestResult)
        assert outcome.outputs["y"].shape == (len(rows), max(map(len, rows)))
        for row, length, answer in zip(rows, outcome.lengths["ids"], outcome.outputs["y"].tolist(), strict=True):
            assert answer[:length] == [value + 1 for value in row]


def test_an_output_without_the_axis_to_cut_fails_before_anyone_gets_a_response() -> None:
    model = token_model()
    pending = ids([[1, 2]], model)

    with pytest.raises(ModelFailed, match="1 dimensions"):
        deliver_outcome(split(batch_of(pending), BatchResult({"y": np.zeros(1)}), model))

    assert not pending.resolved


lengths = st.lists(st.integers(1, 100_000), min_size=1, max_size=30)


@given(lengths, st.sampled_from([1.25, 2.0, 4.0, 1e6]))
@settings(deadline=None)
def test_no_client_is_padded_far_beyond_its_own_size_for_anothers_sake(own: list[int], factor: float) -> None:
    model = token_model()
    batches: dict[object, list[int]] = {}
    for length in own:
        batches.setdefault(shape_key({"ids": np.broadcast_to(0, (1, length))}, model, factor), []).append(length)

    for batch in batches.values():
        assert max(batch) <= max(SMALL_ELEMENTS, factor * min(batch))
    assert len(batches) <= 60, "lengths without end are classes with an end"


def test_rows_of_one_axis_are_measured_by_all_that_they_hold() -> None:
    model = signature([tensor("x", "FP32", [-1, -1, 1024], pad_axis=1)], [tensor("y", "FP32", [-1])])
    keys = [shape_key({"x": np.zeros((2, length, 1024), np.float32)}, model) for length in (1, 2, 64)]

    assert keys[0] != keys[2], "64 positions of 1,024 numbers are no small row"
    assert [number for key in keys for number in key[0][1]] == [-3, 1024, -3, 1024, -6, 1024]
