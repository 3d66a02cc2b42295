from itertools import islice

import numpy as np
import orjson
import pytest
import torch

from benchmarks.gpu.cases import BUCKETS, CASES, batches_by_bucket, closed_name, find_case, infer_requests, rows_of
from benchmarks.gpu.networks import build


@pytest.mark.parametrize("name", CASES)
def test_a_network_returns_the_declared_output_for_each_row(name: str) -> None:
    case = find_case(name, quick=True)
    rows = [row[case.input_name] for row in rows_of(case, 2, seed=1)]
    width = min(map(len, rows)) if case.ragged else None
    batch = torch.from_numpy(np.stack([row[:width] for row in rows]))

    with torch.inference_mode():
        output = build(case, torch.device("cpu"))(**{case.input_name: batch})

    assert tuple(output.shape) == (2, *case.outputs)
    assert output.dtype == torch.float32
    assert bool(output.isfinite().all())


def test_padding_changes_no_embedding() -> None:
    case = find_case("sentences", quick=True)
    tokens = torch.arange(1, 6).reshape(1, 5)
    padded, mask = torch.zeros(1, 16, dtype=torch.int64), torch.zeros(1, 16, dtype=torch.int64)
    padded[:, :5], mask[:, :5] = tokens, 1

    with torch.inference_mode():
        network = build(case, torch.device("cpu"))
        alone = network(input_ids=tokens, attention_mask=torch.ones_like(tokens))
        together = network(input_ids=padded, attention_mask=mask)

    torch.testing.assert_close(alone, together)


def test_requests_are_binary_and_hold_as_many_bytes_as_their_header_states() -> None:
    case = find_case("mlp", quick=True)

    [(body, header_bytes), *_] = infer_requests(case, 2, request_rows=3, seed=1)

    [tensor] = orjson.loads(body[:header_bytes])["inputs"]
    assert tensor["shape"] == [3, 64]
    assert tensor["parameters"]["binary_data_size"] == len(body) - header_bytes == 3 * 64 * 4


def test_rows_depend_on_the_seed_alone() -> None:
    case = find_case("sentences", quick=True)
    first, again, other = (rows_of(case, 50, seed)[7]["input_ids"] for seed in (1, 1, 2))

    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_batches_by_bucket_hold_rows_of_one_bucket() -> None:
    case = find_case("sentences", quick=True)

    batches = list(islice(batches_by_bucket(rows_of(case, 500, seed=1), 8, "input_ids"), 20))

    for batch in batches:
        assert len(batch) == 8
        assert len({np.searchsorted(BUCKETS, len(row["input_ids"])) for row in batch}) == 1


def test_a_closed_loop_is_named_by_its_clients() -> None:
    assert closed_name("mlp", 1) == "mlp, 1 client"
    assert closed_name("mlp", 8, 32) == "mlp, 8 clients with 32 rows each"
