from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from shoal_runtime.formats.onnx_rows import ROWS, UNKNOWN, trace_rows
from tests.runtime.graphs import (
    BOOL,
    FIVE,
    FLOAT,
    HIT_CONSTANTS,
    HIT_ROWS,
    INT64,
    ZERO,
    detector,
    each_row,
    hidden_hits,
    hits,
    ints,
    node,
    save,
    value,
    weights,
)

WEIGHT = weights("w", np.ones((3, 3), np.float32))
HUGE = weights("w", np.ones((3, 3000), np.float32))
COUNT = [
    node("Shape", ["x"], ["sizes"]),
    node("Gather", ["sizes", "zero"], ["n"], axis=0),
    node("Unsqueeze", ["n", "k"], ["n1"]),
    node("Concat", ["n1", "one"], ["form"], axis=0),
]
ONES = [
    node("Shape", ["x"], ["sizes"]),
    node("Slice", ["sizes", "from", "to"], ["n"]),
    node("ConstantOfShape", ["n"], ["ones"], value=helper.make_tensor("one", FLOAT, [1], [1.0])),
    node("NonZero", ["ones"], ["where"]),
    node("Squeeze", ["where", "from"], ["row"]),
    node("Gather", ["x", "row"], ["y"], axis=0),
]


def rows_of(path: Path) -> str:
    return next(iter(trace_rows(path, {}).dims["y"]), UNKNOWN)


@pytest.mark.parametrize("claim", ["N", "K"])
def test_declared_shapes_of_outputs_prove_nothing(tmp_path: Path, claim: str) -> None:
    assert rows_of(hits(tmp_path / "m.onnx", claim=claim)) == "NonZero"
    assert trace_rows(detector(tmp_path / "d.onnx", claim=claim), {}).dims["selected"] == ["NonMaxSuppression", "3"]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        pytest.param([node("MatMul", ["x", "w"], ["y"])], [WEIGHT], id="product"),
        pytest.param([node("MatMul", ["x", "w"], ["y"])], [HUGE], id="large weights"),
        pytest.param(
            [node("Greater", ["x", "five"], ["c"]), node("Where", ["c", "x", "five"], ["y"])], [FIVE], id="where"
        ),
        pytest.param([node("TopK", ["x", "k"], ["y", "i"], axis=1)], [ints("k", 2)], id="best of each row"),
        pytest.param([node("Gather", ["x", "k"], ["y"], axis=1)], [ints("k", 2, 0)], id="columns"),
        pytest.param([node("Transpose", ["x"], ["t"]), node("Transpose", ["t"], ["y"])], [], id="there and back"),
        pytest.param(
            [*COUNT, node("Reshape", ["x", "form"], ["y"])],
            [ZERO, ints("k", 0), ints("one", -1)],
            id="a shape made of the batch's",
        ),
    ],
)
def test_rows_of_the_batch_are_traced(tmp_path: Path, nodes: Sequence[Any], constants: Sequence[Any]) -> None:
    assert rows_of(save(tmp_path / "m.onnx", nodes, *constants)) == ROWS


@pytest.mark.parametrize(
    ("nodes", "constants", "operator"),
    [
        pytest.param(HIT_ROWS, HIT_CONSTANTS, "NonZero", id="NonZero"),
        pytest.param(
            [
                node("Greater", ["x", "five"], ["c"]),
                node("Gather", ["c", "zero"], ["b"], axis=1),
                node("Compress", ["x", "b"], ["y"], axis=0),
            ],
            [FIVE, ZERO],
            "Compress",
            id="Compress",
        ),
        pytest.param([node("Unique", ["x"], ["y"], axis=0)], [], "Unique", id="Unique"),
    ],
)
def test_selected_rows_are_reported_with_the_operator(
    tmp_path: Path, nodes: Sequence[Any], constants: Sequence[Any], operator: str
) -> None:
    assert rows_of(save(tmp_path / "m.onnx", nodes, *constants)) == operator


def test_selection_by_shapes_alone_is_unknown(tmp_path: Path) -> None:
    assert rows_of(save(tmp_path / "ones.onnx", ONES, ints("from", 0), ints("to", 1))) == UNKNOWN
    chosen = helper.make_tensor("c", BOOL, [3], [1, 0, 1])
    path = save(tmp_path / "compress.onnx", [node("Compress", ["x", "c"], ["y"], axis=0)], chosen)
    assert rows_of(path) == UNKNOWN


def test_untraceable_rows_are_unknown(tmp_path: Path) -> None:
    assert rows_of(hidden_hits(tmp_path / "hidden.onnx")) == UNKNOWN
    assert rows_of(each_row(tmp_path / "loop.onnx", [node("Identity", ["r"], ["kept"])])) == UNKNOWN
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x09broken")
    assert trace_rows(tmp_path / "broken.onnx", {}).dims == {}


def test_declared_shapes_in_branches_prove_nothing(tmp_path: Path) -> None:
    def branch(name: str) -> Any:
        made = [node("NonZero", ["x"], ["w"]), node("Gather", ["w", "zero"], [name], axis=0)]
        return helper.make_graph(made, name, [], [value(name, INT64, ["N"])])

    nodes = [
        node("ReduceMax", ["x"], ["m"], keepdims=0),
        node("Greater", ["m", "five"], ["c"]),
        node("If", ["c"], ["y"], then_branch=branch("p"), else_branch=branch("q")),
    ]
    assert rows_of(save(tmp_path / "m.onnx", nodes, FIVE, ZERO, outputs=[value("y", INT64, ["N"])])) == UNKNOWN


def test_another_dimension_can_count_the_rows(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [node("Relu", ["x"], ["y"])],
        inputs=[value("x", TensorProto.FLOAT, ["T", "N"])],
        outputs=[value("y", TensorProto.FLOAT, ["T", "N"])],
    )
    assert trace_rows(path, {"x": 1}).dims["y"][1] == ROWS
    assert trace_rows(path, {}).dims["y"][1] != ROWS


def test_a_dimension_with_the_reserved_name_does_not_count(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        [node("Transpose", ["x"], ["y"])],
        inputs=[value("x", FLOAT, ["N", ROWS])],
        outputs=[value("y", FLOAT, [ROWS, "N"])],
    )
    assert trace_rows(path, {}).dims["y"] == [UNKNOWN, ROWS]
