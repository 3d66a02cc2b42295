"""Graphs that are proven to mix rows are rejected; any other graph is left to the trials."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from onnx import helper

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.onnx_rows import trace_rows
from tests.runtime.graphs import FIVE, FLOAT, HIT_CONSTANTS, HIT_ROWS, INT64, ZERO, ints, node, save, value, weights

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
W = weights("w", np.ones((3, 3), np.float32))
TABLE = weights("table", np.ones((50, 3), np.float32))
V = weights("v", np.ones(3, np.float32))
BACK = weights("back", np.ones((1, 4, 4), np.float32))
X, IDS, SEQUENCE = value("x", FLOAT, ["N", 3]), value("ids", INT64, ["N"]), value("s", FLOAT, ["N", "T", 4])
FLAT, COLUMN = ints("flat", -1), ints("column", -1, 1)
Y3 = value("y", FLOAT, ["N", "T", 4])
ONE, MINUS = ints("one", 1), ints("minus", -1)
ROW_COUNT = [node("Shape", ["x"], ["sizes"]), node("Gather", ["sizes", "zero"], ["n"], axis=0)]
PLACES = [*ROW_COUNT, node("Range", ["zero", "n", "step"], ["places"])]
STEP = ints("step", 1, scalar=True)
NORM = [weights(name, np.ones(3, np.float32)) for name in ("scale", "bias", "mean", "var")]

Case = tuple[Sequence[Any], Sequence[Any], Sequence[Any]]
"""Nodes, constants and inputs."""

MIXED: dict[str, tuple[str, Case]] = {
    "rows by a client's numbers": ("Gather", ([node("Gather", ["x", "ids"], ["y"], axis=0)], [], [X, IDS])),
    "rows by computed numbers": (
        "Gather",
        ([node("ArgMax", ["x"], ["i"], axis=1, keepdims=0), node("Gather", ["x", "i"], ["y"], axis=0)], [], [X]),
    ),
    "rows where a number is large": (
        "Gather",
        (
            [
                node("Greater", ["x", "five"], ["c"]),
                node("Cast", ["c"], ["i"], to=INT64),
                node("ReduceMax", ["i"], ["row"], axes=[1], keepdims=0),
                node("Gather", ["x", "row"], ["y"], axis=0),
            ],
            [FIVE],
            [X],
        ),
    ),
    "elements": (
        "GatherElements",
        (
            [
                node("Reshape", ["ids", "column"], ["c"]),
                node("Shape", ["x"], ["sizes"]),
                node("Expand", ["c", "sizes"], ["i"]),
                node("GatherElements", ["x", "i"], ["y"], axis=0),
            ],
            [COLUMN],
            [X, IDS],
        ),
    ),
    "lists": (
        "GatherND",
        ([node("Unsqueeze", ["ids", "one"], ["i"]), node("GatherND", ["x", "i"], ["y"])], [ONE], [X, IDS]),
    ),
    "scattered": (
        "ScatterND",
        ([node("Unsqueeze", ["ids", "one"], ["i"]), node("ScatterND", ["x", "i", "x"], ["y"])], [ONE], [X, IDS]),
    ),
    "scattered elements": (
        "ScatterElements",
        (
            [
                node("Cast", ["x"], ["i"], to=INT64),
                node("ScatterElements", ["x", "i", "x"], ["y"], axis=0),
            ],
            [],
            [X],
        ),
    ),
    "a mean": (
        "ReduceMean",
        ([node("ReduceMean", ["x"], ["m"], axes=[0]), node("Sub", ["x", "m"], ["y"])], [], [X]),
    ),
    "a mean behind a layer": (
        "ReduceMean",
        (
            [
                node("MatMul", ["x", "w"], ["h"]),
                node("Relu", ["h"], ["r"]),
                node("ReduceMean", ["r"], ["m"], axes=[0]),
                node("Sub", ["r", "m"], ["y"]),
            ],
            [W],
            [X],
        ),
    ),
    "the largest of each column": (
        "ReduceMax",
        ([node("ReduceMax", ["x"], ["m"], axes=[0]), node("Div", ["x", "m"], ["y"])], [], [X]),
    ),
    "the best row": (
        "ArgMax",
        (
            [
                node("ArgMax", ["x"], ["i"], axis=0),
                node("Cast", ["i"], ["f"], to=FLOAT),
                node("Add", ["x", "f"], ["y"]),
            ],
            [],
            [X],
        ),
    ),
    "softmax": ("Softmax", ([node("Softmax", ["x"], ["y"], axis=0)], [], [X])),
    "log-softmax of what was turned": (
        "LogSoftmax",
        (
            [
                node("Transpose", ["x"], ["t"], perm=[1, 0]),
                node("LogSoftmax", ["t"], ["l"], axis=1),
                node("Transpose", ["l"], ["y"], perm=[1, 0]),
            ],
            [],
            [X],
        ),
    ),
    "a running sum": ("CumSum", ([node("CumSum", ["x", "zero"], ["y"])], [ZERO], [X])),
    "backwards": (
        "Slice",
        (
            [node("Slice", ["x", "minus", "least", "from", "minus"], ["y"])],
            [MINUS, ints("least", -(2**62)), ints("from", 0)],
            [X],
        ),
    ),
    "attention among rows": (
        "MatMul",
        (
            [
                node("Transpose", ["x"], ["t"], perm=[1, 0]),
                node("MatMul", ["x", "t"], ["p"]),
                node("Softmax", ["p"], ["a"], axis=1),
                node("MatMul", ["a", "x"], ["h"]),
                node("Add", ["h", "v"], ["y"]),
            ],
            [V],
            [X],
        ),
    ),
    "a product over rows": (
        "MatMul",
        (
            [
                node("Transpose", ["x"], ["t"], perm=[1, 0]),
                node("MatMul", ["t", "x"], ["c"]),
                node("MatMul", ["x", "c"], ["y"]),
            ],
            [],
            [X],
        ),
    ),
    "Einstein's sum": (
        "Einsum",
        ([node("Einsum", ["x", "x"], ["c"], equation="ni,nj->ij"), node("MatMul", ["x", "c"], ["y"])], [], [X]),
    ),
    "statistics of the batch": (
        "BatchNormalization",
        (
            [node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y", "m", "v2"], training_mode=1)],
            NORM,
            [X],
        ),
    ),
    "a recurrent network over rows": (
        "GRU",
        (
            [
                node("Unsqueeze", ["x", "one"], ["s"]),
                node("GRU", ["s", "gates", "again"], ["", "h"], hidden_size=3),
                node("Squeeze", ["h", "from"], ["last"]),
                node("Add", ["x", "last"], ["y"]),
            ],
            [
                ONE,
                ints("from", 0),
                weights("gates", np.ones((1, 9, 3), np.float32)),
                weights("again", np.ones((1, 9, 3), np.float32)),
            ],
            [X],
        ),
    ),
    "each row less each other": (
        "Sub",
        (
            [
                node("Unsqueeze", ["x", "from"], ["a"]),
                node("Unsqueeze", ["x", "one"], ["b"]),
                node("Sub", ["b", "a"], ["d"]),
                node("ReduceMax", ["d"], ["y"], axes=[1], keepdims=0),
            ],
            [ONE, ints("from", 0)],
            [X],
        ),
    ),
    "features by numbers of rows": (
        "ArrayFeatureExtractor",
        (
            [
                node("Transpose", ["x"], ["t"], perm=[1, 0]),
                node("ArrayFeatureExtractor", ["t", "ids"], ["e"], domain="ai.onnx.ml"),
                node("Transpose", ["e"], ["y"], perm=[1, 0]),
            ],
            [],
            [X, IDS],
        ),
    ),
}


def made(path: Path, case: Case) -> Path:
    nodes, constants, inputs = case
    return save(path, nodes, *constants, inputs=inputs)


@pytest.mark.parametrize("name", MIXED)
def test_graphs_that_mix_rows_are_rejected_with_the_node(tmp_path: Path, load: Load, name: str) -> None:
    operator, case = MIXED[name]
    path = made(tmp_path / "m.onnx", case)

    with pytest.raises(LoadError, match=rf"node .* \({operator}\)") as refused:
        load(path)

    assert "maxBatchSize: 1" in str(refused.value)
    load(path, max_batch_size=1)


def heads(rows: str) -> list[Any]:
    """Return attention of two heads within each row, whose shapes are computed."""
    return [
        node("Shape", [rows], ["sizes"]),
        node("Gather", ["sizes", "zero"], ["n"], axis=0),
        node("Gather", ["sizes", "one0"], ["t"], axis=0),
        node("Unsqueeze", ["n", "from"], ["n1"]),
        node("Unsqueeze", ["t", "from"], ["t1"]),
        node("Concat", ["n1", "t1", "two", "two"], ["split"], axis=0),
        node("Reshape", [rows, "split"], ["a"]),
        node("Transpose", ["a"], ["q"], perm=[0, 2, 1, 3]),
        node("Transpose", ["a"], ["k"], perm=[0, 2, 3, 1]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=-1),
        node("MatMul", ["p", "q"], ["c"]),
        node("Transpose", ["c"], ["d"], perm=[0, 2, 1, 3]),
        node("Concat", ["n1", "t1", "four"], ["whole"], axis=0),
        node("Reshape", ["d", "whole"], ["y"]),
    ]


HEADS = [ZERO, ints("one0", 1, scalar=True), ints("from", 0), ints("two", 2), ints("four", 4)]
SORTED = [
    node("TopK", ["lengths", "n1"], ["longest", "order"], axis=0),
    node("TopK", ["order", "n1"], ["places", "back"], axis=0, largest=0),
]
LENGTHS = value("lengths", INT64, ["N"])

APART: dict[str, Case] = {
    "a layer": ([node("MatMul", ["x", "w"], ["h"]), node("Add", ["h", "v"], ["y"])], [W, V], [X]),
    "Gemm": ([node("Gemm", ["x", "w", "v"], ["y"], transB=1)], [W, V], [X]),
    "softmax of a row": ([node("Softmax", ["x"], ["y"], axis=-1)], [], [X]),
    "softmax of what was turned": (
        [node("Transpose", ["x"], ["t"]), node("Softmax", ["t"], ["s"], axis=0), node("Transpose", ["s"], ["y"])],
        [],
        [X],
    ),
    "the mean of a row": (
        [node("ReduceMean", ["x"], ["m"], axes=[1]), node("Sub", ["x", "m"], ["y"])],
        [],
        [X],
    ),
    "the mean of a row that was turned": (
        [
            node("Transpose", ["x"], ["t"]),
            node("ReduceMean", ["t"], ["m"], axes=[0]),
            node("Sub", ["t", "m"], ["d"]),
            node("Transpose", ["d"], ["y"]),
        ],
        [],
        [X],
    ),
    "a running sum of a row": ([node("CumSum", ["x", "one0"], ["y"])], [ints("one0", 1, scalar=True)], [X]),
    "the best of a row": ([node("TopK", ["x", "k"], ["y", "i"], axis=1)], [ints("k", 3)], [X]),
    "columns by constants": ([node("Gather", ["x", "k"], ["y"], axis=1)], [ints("k", 2, 0, 1)], [X]),
    "embeddings of a client's numbers": ([node("Gather", ["table", "ids"], ["y"], axis=0)], [TABLE], [IDS]),
    "embeddings by computed numbers": (
        [node("ArgMax", ["x"], ["i"], axis=1, keepdims=0), node("Gather", ["table", "i"], ["y"], axis=0)],
        [TABLE],
        [X],
    ),
    "one element of each row": (
        [
            node("Reshape", ["ids", "column"], ["c"]),
            node("GatherElements", ["x", "c"], ["g"], axis=1),
            node("Add", ["x", "g"], ["y"]),
        ],
        [COLUMN],
        [X, IDS],
    ),
    "the last step of each row": (
        [
            *PLACES,
            node("Unsqueeze", ["places", "one"], ["a"]),
            node("Unsqueeze", ["ids", "one"], ["b"]),
            node("Concat", ["a", "b"], ["i"], axis=1),
            node("GatherND", ["x", "i"], ["g"]),
            node("Unsqueeze", ["g", "one"], ["h"]),
            node("Add", ["x", "h"], ["y"]),
        ],
        [ZERO, STEP, ONE],
        [X, IDS],
    ),
    "rows by their own places": ([*PLACES, node("Gather", ["x", "places"], ["y"], axis=0)], [ZERO, STEP], [X]),
    "the last step of rows that are flat": (
        [
            *PLACES,
            node("Mul", ["places", "width"], ["from"]),
            node("Add", ["from", "ids"], ["i"]),
            node("Reshape", ["x", "flat"], ["f"]),
            node("Gather", ["f", "i"], ["g"], axis=0),
            node("Reshape", ["g", "column"], ["h"]),
            node("Add", ["x", "h"], ["y"]),
        ],
        [ZERO, STEP, FLAT, COLUMN, ints("width", 3, scalar=True)],
        [X, IDS],
    ),
    "an item of each row's list": (
        [
            node("Unsqueeze", ["ids", "one"], ["i"]),
            node("GatherND", ["x", "i"], ["g"], batch_dims=1),
            node("Unsqueeze", ["g", "one"], ["h"]),
            node("Add", ["x", "h"], ["y"]),
        ],
        [ONE],
        [X, IDS],
    ),
    "one place of each row is set": (
        [
            node("Reshape", ["ids", "column"], ["c"]),
            node("Cast", ["c"], ["u"], to=FLOAT),
            node("ScatterElements", ["x", "c", "u"], ["y"], axis=1),
        ],
        [COLUMN],
        [X, IDS],
    ),
    "ones where a number says so": (
        [node("OneHot", ["ids", "depth", "values"], ["y"])],
        [ints("depth", 3), weights("values", np.array([0, 1], np.float32))],
        [IDS],
    ),
    "attention within rows": (heads("s"), HEADS, [SEQUENCE]),
    "attention within rows, flat": (
        [
            node("Reshape", ["s", "flat4"], ["f"]),
            node("MatMul", ["f", "w4"], ["g"]),
            node("Shape", ["s"], ["all"]),
            node("Reshape", ["g", "all"], ["r"]),
            *heads("r"),
        ],
        [*HEADS, ints("flat4", -1, 4), weights("w4", np.ones((4, 4), np.float32))],
        [SEQUENCE],
    ),
    "a norm of each row": (
        [node("LayerNormalization", ["x", "scale", "bias"], ["y"], axis=-1)],
        NORM[:2],
        [X],
    ),
    "statistics of training": ([node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y"])], NORM, [X]),
    "convolutions": (
        [
            node("Unsqueeze", ["x", "one"], ["c"]),
            node("Conv", ["c", "kernel"], ["d"], pads=[1, 1]),
            node("Squeeze", ["d", "one"], ["y"]),
        ],
        [ONE, weights("kernel", np.ones((1, 1, 3), np.float32))],
        [X],
    ),
    "a recurrent network within rows": (
        [
            node("Transpose", ["s"], ["t"], perm=[1, 0, 2]),
            node("LSTM", ["t", "gates", "again"], ["o"], hidden_size=4),
            node("Squeeze", ["o", "one"], ["q"]),
            node("Transpose", ["q"], ["y"], perm=[1, 0, 2]),
        ],
        [ONE, *(weights(name, np.ones((1, 16, 4), np.float32)) for name in ("gates", "again"))],
        [SEQUENCE],
    ),
    "rows sorted by length, and back": (
        [
            *ROW_COUNT,
            node("Unsqueeze", ["n", "from"], ["n1"]),
            *SORTED,
            node("Gather", ["x", "order"], ["sorted"], axis=0),
            node("MatMul", ["sorted", "w"], ["h"]),
            node("Gather", ["h", "back"], ["y"], axis=0),
        ],
        [ZERO, ints("from", 0), W],
        [X, LENGTHS],
    ),
    "a mask as long as the longest row": (
        [
            node("ReduceMax", ["lengths"], ["longest"], keepdims=0),
            node("Range", ["zero", "longest", "step"], ["places"]),
            node("Reshape", ["lengths", "column"], ["c"]),
            node("Less", ["places", "c"], ["mask"]),
            node("Cast", ["mask"], ["f"], to=FLOAT),
            node("ReduceSum", ["f", "one"], ["sum"]),
            node("Add", ["x", "sum"], ["y"]),
        ],
        [ZERO, STEP, COLUMN, ONE],
        [X, LENGTHS],
    ),
    "quantized by the largest number": (
        [
            node("Abs", ["x"], ["a"]),
            node("ReduceMax", ["a"], ["top"], keepdims=0),
            node("Div", ["x", "top"], ["q"]),
            node("Mul", ["q", "top"], ["y"]),
        ],
        [],
        [X],
    ),
    "all rows at once, and each": (
        [
            node("Concat", ["x", "x"], ["twice"], axis=0),
            node("Split", ["twice"], ["a", "b"], axis=0),
            node("Add", ["a", "b"], ["y"]),
        ],
        [],
        [X],
    ),
    "experts that take their rows": (
        [
            node("Greater", ["ids", "zero"], ["c"]),
            node("NonZero", ["c"], ["where"]),
            node("Gather", ["where", "zero"], ["mine"], axis=0),
            node("Gather", ["x", "mine"], ["part"], axis=0),
            node("MatMul", ["part", "w"], ["h"]),
            node("Unsqueeze", ["mine", "one"], ["i"]),
            node("ScatterND", ["x", "i", "h"], ["y"]),
        ],
        [ZERO, ONE, W],
        [X, IDS],
    ),
    "a row of the weights": (
        [node("Gather", ["table", "zero"], ["r"], axis=0), node("Add", ["x", "r"], ["y"])],
        [TABLE, ZERO],
        [X],
    ),
    "places within rows": (
        [
            node("Shape", ["s"], ["sizes"]),
            node("Gather", ["sizes", "one0"], ["t"], axis=0),
            node("Range", ["zero", "t", "step"], ["at"]),
            node("Gather", ["table4", "at"], ["e"], axis=0),
            node("Add", ["s", "e"], ["y"]),
        ],
        [ZERO, STEP, ints("one0", 1, scalar=True), weights("table4", np.ones((50, 4), np.float32))],
        [SEQUENCE],
    ),
    "all of the batch": (
        [
            node("Slice", ["x", "from", "last", "from"], ["p"]),
            node("Slice", ["p", "from", "two", "one"], ["q"]),
            node("MatMul", ["q", "w2"], ["y"]),
        ],
        [ints("from", 0), ints("last", 2**62), ints("two", 2), ONE, weights("w2", np.ones((2, 3), np.float32))],
        [X],
    ),
    "clusters": (
        [
            node("Unsqueeze", ["x", "one"], ["a"]),
            node("Sub", ["a", "table"], ["d"]),
            node("ReduceSumSquare", ["d"], ["far"], axes=[2], keepdims=0),
            node("ArgMin", ["far"], ["i"], axis=1, keepdims=0),
            node("Gather", ["table", "i"], ["y"], axis=0),
        ],
        [TABLE, ONE],
        [X],
    ),
    "a scaler of tables": (
        [node("Scaler", ["x"], ["y"], domain="ai.onnx.ml", offset=[0.0] * 3, scale=[1.0] * 3)],
        [],
        [X],
    ),
    "a mean of models": (
        [
            node("Unsqueeze", ["x", "from"], ["a"]),
            node("Concat", ["a", "a"], ["b"], axis=0),
            node("ReduceMean", ["b"], ["y"], axes=[0], keepdims=0),
        ],
        [ints("from", 0)],
        [X],
    ),
    "sums of a row's products": (
        [node("Einsum", ["s", "s"], ["p"], equation="nti,nui->ntu"), node("MatMul", ["p", "s"], ["y"])],
        [],
        [SEQUENCE],
    ),
}


@pytest.mark.parametrize("name", APART)
def test_models_without_proof_of_mixing_are_loaded(tmp_path: Path, load: Load, name: str) -> None:
    nodes, constants, inputs = APART[name]
    outputs = [Y3] if inputs == [SEQUENCE] else []
    path = save(tmp_path / "m.onnx", nodes, *constants, inputs=inputs, outputs=outputs)

    assert trace_rows(path, {}).dims
    assert load(path).signature.max_batch_size > 1


def test_selected_items_are_left_to_the_rule_of_ragged_outputs(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", HIT_ROWS, *HIT_CONSTANTS)

    assert trace_rows(path, {}).mixed == {}


def test_a_batch_of_one_size_is_followed_too(tmp_path: Path, load: Load) -> None:
    nodes = [node("ReduceMean", ["x"], ["m"], axes=[0]), node("Sub", ["x", "m"], ["y"])]
    shape = value("x", FLOAT, [4, 3])
    path = save(tmp_path / "m.onnx", nodes, inputs=[shape], outputs=[value("y", FLOAT, [4, 3])])

    with pytest.raises(LoadError, match="ReduceMean"):
        load(path)


def test_another_dimension_counts_the_rows(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", [node("Softmax", ["x"], ["y"], axis=0)], inputs=[value("x", FLOAT, [3, "N"])])

    assert trace_rows(path, {"x": 1}).mixed == {}
    assert list(trace_rows(path, {}).mixed) == ["y"]


def test_branches_are_not_followed(tmp_path: Path) -> None:
    def branch(name: str) -> Any:
        return helper.make_graph([node("Identity", ["x"], [name])], name, [], [value(name, FLOAT, ["N", 3])])

    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0),
        node("Greater", ["sum", "five"], ["c"]),
        node("If", ["c"], ["y"], then_branch=branch("p"), else_branch=branch("q")),
    ]
    assert trace_rows(save(tmp_path / "m.onnx", nodes, FIVE), {}).mixed == {}


class Encoder(torch.nn.Module):
    """A small transformer over token ids, with a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(30, 8)
        self.layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.head = torch.nn.Linear(8, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(self.words(ids), src_key_padding_mask=ids == 0)
        last = (ids != 0).sum(1) - 1
        scores: torch.Tensor = self.head(hidden[torch.arange(len(ids)), last])
        return scores


@pytest.mark.filterwarnings("ignore")
def test_an_exported_transformer_is_loaded(tmp_path: Path, load: Load) -> None:
    rows = torch.export.Dim("rows")
    example = (torch.ones(2, 6, dtype=torch.int64),)
    path = tmp_path / "m.onnx"
    torch.onnx.export(
        Encoder().eval(), example, path, dynamo=True, dynamic_shapes=({0: rows},), external_data=False, verbose=False
    )

    assert load(path).signature.max_batch_size > 1
