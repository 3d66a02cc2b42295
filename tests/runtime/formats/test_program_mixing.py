"""Programs that are proven to mix rows are rejected; any other program is left to the trials."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional

from shoal_runtime.errors import LoadError
from tests.runtime.formats.test_dynamic_programs import CASES
from tests.runtime.formats.test_dynamic_programs import saved as saved_case

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
Function = Callable[[Any, Any], Any]
WEIGHT = torch.ones(8, 8)
NORM = torch.nn.BatchNorm1d(8)
LAYER = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
TABLE = torch.ones(20, 8)


class Module(torch.nn.Module):
    """Calls a function of `x`, rows of 6 by 8 numbers, and `k`, one integer per row."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.function = function
        self.layer = LAYER
        self.norm = NORM
        self.register_buffer("weight", WEIGHT)
        self.register_buffer("table", TABLE)

    def forward(self, x: torch.Tensor, k: torch.Tensor) -> Any:
        return self.function(x, k)


def saved(path: Path, function: Function) -> Path:
    rows = torch.export.Dim("rows", min=2, max=64)
    example = torch.ones(5, 6, 8), torch.ones(5, dtype=torch.int64)
    program = torch.export.export(Module(function), example, dynamic_shapes=({0: rows}, {0: rows}))
    torch.export.save(program, path)
    return path


def wide(k: torch.Tensor) -> torch.Tensor:
    return k[:, None, None].expand(-1, 6, 8)


def statistics(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return functional.batch_norm(x[:, 0], None, None, training=True)


MIXED: dict[str, tuple[str, Function]] = {
    "rows by a client's numbers": ("index", lambda x, k: x[k] + 1),
    "rows by two lists of them": ("index", lambda x, k: x[k, k]),
    "rows by computed numbers": ("index_select", lambda x, k: x.index_select(0, x[:, 0, 0].long().clamp(0, 1))),
    "rows where a number is large": ("index", lambda x, k: x[(x[:, 0, 0] > 1e5).long()]),
    "elements": ("gather", lambda x, k: torch.gather(x, 0, wide(k))),
    "scattered elements": ("scatter", lambda x, k: x.scatter(0, wide(k), x * 2)),
    "a sum": ("sum", lambda x, k: x / x.sum(0)),
    "a mean behind a layer": (
        "mean",
        lambda x, k: (x @ TABLE[:8]).relu() - (x @ TABLE[:8]).relu().mean(0, keepdim=True),
    ),
    "the largest": ("amax", lambda x, k: x - x.amax(0)),
    "softmax": ("softmax", lambda x, k: x.softmax(0)),
    "softmax of what was turned": ("softmax", lambda x, k: x.transpose(0, 1).softmax(1).transpose(0, 1)),
    "sorted": ("sort", lambda x, k: x.sort(0).values),
    "the best": ("topk", lambda x, k: x - x.topk(2, dim=0).values[:1]),
    "a running sum": ("cumsum", lambda x, k: x.cumsum(0)),
    "backwards": ("flip", lambda x, k: x.flip(0)),
    "the row before": ("roll", lambda x, k: x.roll(1, 0)),
    "statistics of the batch": ("batch_norm", statistics),
    "attention among rows": ("matmul", lambda x, k: (x[:, 0] @ x[:, 0].T).softmax(1) @ x[:, 0]),
    "attention of rows": (
        "scaled_dot_product_attention",
        lambda x, k: functional.scaled_dot_product_attention(*[x.transpose(0, 1)] * 3).transpose(0, 1),
    ),
    "Einstein's sum": ("einsum", lambda x, k: x + torch.einsum("nti,nti->ti", x, x)),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MIXED)
def test_programs_that_mix_rows_are_rejected_with_the_call(tmp_path: Path, load: Load, name: str) -> None:
    operator, function = MIXED[name]
    path = saved(tmp_path / "m.pt2", function)

    with pytest.raises(LoadError, match=rf"node .* \({operator}\)") as refused:
        load(path)

    assert "maxBatchSize: 1" in str(refused.value)
    load(path, max_batch_size=1)


def sorted_and_back(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    order = k.argsort()
    return (x[order] @ TABLE[:8])[order.argsort()]


def set_in_place(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    kept = torch.zeros_like(x)
    kept[:, 1] = x[:, 0]
    return kept - kept.mean(1, keepdim=True)


APART: dict[str, Function] = {
    "a layer": lambda x, k: functional.linear(x, TABLE[:8]).relu(),
    "a transformer": lambda x, k: LAYER(x),
    "the last step of each row": lambda x, k: x[torch.arange(x.shape[0]), k],
    "one element of each row": lambda x, k: torch.gather(x[:, :, 0], 1, k[:, None]),
    "embeddings": lambda x, k: x + functional.embedding(k, TABLE)[:, None],
    "rows of a table": lambda x, k: x + TABLE[k][:, None],
    "softmax of a row": lambda x, k: x.softmax(-1),
    "a sum of a row": lambda x, k: x / x.sum((1, 2), keepdim=True),
    "a sum of what was turned": lambda x, k: x.transpose(0, 1).sum(0),
    "the best of a row": lambda x, k: x.topk(2, dim=1).values,
    "sorted within rows": lambda x, k: x.sort(1).values.flip(1).roll(1, 2).cumsum(1),
    "sorted by length, and back": sorted_and_back,
    "attention within rows": lambda x, k: (x @ x.transpose(1, 2)).softmax(-1) @ x,
    "flat, and back": lambda x, k: (x.reshape(-1, 8) @ TABLE[:8]).reshape(x.shape[0], 6, 8).mean(1),
    "a mask as long as the longest": lambda x, k: x * (torch.arange(6) < k[:, None]).unsqueeze(2) + k.max(),
    "quantized by the largest": lambda x, k: (x / x.abs().max()).round() * x.abs().max(),
    "rows by their own places": lambda x, k: x[torch.arange(x.shape[0])],
    "set in place": set_in_place,
    "twice, and a half": lambda x, k: torch.cat([x, x])[: x.shape[0]],
    "products within rows": lambda x, k: torch.einsum("nti,nui->ntu", x, x),
    "all rows": lambda x, k: x[:, 1:][0:],
    "stacked": lambda x, k: torch.stack([x, x * 2]).mean(0),
    "convolved": lambda x, k: functional.conv1d(x, torch.ones(6, 6, 3), padding=1),
    "normed": lambda x, k: functional.layer_norm(x, [6, 8]),
    "one of each": lambda x, k: functional.one_hot(k.clamp(0, 3), 4).float(),
    "a row's mask": lambda x, k: torch.where(x > x.mean(1, keepdim=True), x, -x),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", APART)
def test_models_without_proof_of_mixing_are_loaded(tmp_path: Path, load: Load, name: str) -> None:
    path = saved(tmp_path / "m.pt2", APART[name])

    assert load(path).signature.max_batch_size > 1


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["equal", "a condition", "bits", "no gradient", "a fraction", "a root"])
def test_other_programs_are_not_reported_to_mix(tmp_path: Path, load: Load, name: str) -> None:
    assert name in CASES

    assert load(saved_case(tmp_path / "m.pt2", name)).signature.max_batch_size > 1
