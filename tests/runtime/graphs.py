"""Small ONNX graphs whose outputs have a row for each of the batch's, or something else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
node, value = helper.make_node, helper.make_tensor_value_info


def ints(name: str, *numbers: int, scalar: bool = False) -> Any:
    """Return a constant of whole numbers."""
    return helper.make_tensor(name, INT64, [] if scalar else [len(numbers)], numbers)


def save(
    path: Path,
    nodes: Sequence[Any],
    *constants: Any,
    inputs: Sequence[Any] = (),
    outputs: Sequence[Any] = (),
) -> Path:
    """Save a graph; by default of `x`, rows of three numbers, and `y`, as many."""
    taken = list(inputs) or [value("x", FLOAT, ["N", 3])]
    given = list(outputs) or [value("y", FLOAT, ["N", 3])]
    graph = helper.make_graph(list(nodes), "g", taken, given, list(constants))
    onnx.save(helper.make_model(graph, opset_imports=OPSETS, ir_version=9), path)
    return path


FIVE = helper.make_tensor("five", FLOAT, [], [5.0])
ZERO = ints("zero", 0, scalar=True)
HITS = [
    node("Gather", ["x", "first"], ["a"], axis=1),
    node("Gather", ["x", "second"], ["b"], axis=1),
    node("Less", ["a", "five"], ["low"]),
    node("Greater", ["b", "five"], ["high"]),
    node("Concat", ["low", "high"], ["hit"], axis=1),
    node("NonZero", ["hit"], ["where"]),
    node("Gather", ["where", "zero"], ["row"], axis=0),
]
"""`row`: a row is hit once where it is zeros, and else never, once or twice."""
HIT_CONSTANTS = (FIVE, ZERO, ints("first", 0), ints("second", 1))
HIT_ROWS = [*HITS, node("Gather", ["x", "row"], ["y"], axis=0)]


def hits(path: Path, *, claim: str = "N") -> Path:
    """Save a graph that returns a row as often as it is hit, and claims to return `claim` rows."""
    return save(path, HIT_ROWS, *HIT_CONSTANTS, outputs=[value("y", FLOAT, [claim, 3])])


def hidden_hits(path: Path) -> Path:
    """Save the same graph with a reshape behind it, through which no dimension is followed."""
    nodes = [*HITS, node("Gather", ["x", "row"], ["z"], axis=0), node("Reshape", ["z", "form"], ["y"])]
    return save(path, nodes, *HIT_CONSTANTS, ints("form", -1, 3))


def detector(path: Path, *, claim: str = "K", items: bool = True) -> Path:
    """Save a detector: of six boxes with a score each, those that score best and do not overlap.

    ``selected`` has for each the batch's row, 0 and the box's number; ``found`` its corners, ``score`` its score.
    """
    nodes = [
        node("Gather", ["x", "corners"], ["boxes"], axis=2),
        node("Gather", ["x", "last"], ["column"], axis=2),
        node("Transpose", ["column"], ["scores"], perm=[0, 2, 1]),
        node("NonMaxSuppression", ["boxes", "scores", "most", "overlap", "least"], ["selected"]),
        node("Gather", ["selected", "row_and_box"], ["places"], axis=1),
        node("GatherND", ["boxes", "places"], ["found"]),
        node("GatherND", ["column", "places"], ["score2"]),
        node("Squeeze", ["score2", "one"], ["score"]),
    ]
    constants = [
        ints("corners", 0, 1, 2, 3),
        ints("last", 4),
        ints("most", 10),
        helper.make_tensor("overlap", FLOAT, [1], [0.5]),
        helper.make_tensor("least", FLOAT, [1], [0.5]),
        ints("row_and_box", 0, 2),
        ints("one", 1),
    ]
    given = [value("selected", INT64, [claim, 3])]
    if items:
        given += [value("found", FLOAT, [claim, 4]), value("score", FLOAT, [claim])]
    return save(path, nodes, *constants, inputs=[value("x", FLOAT, ["N", 6, 5])], outputs=given)


def each_row(path: Path, body: Sequence[Any], *, condition: str = "go") -> Path:
    """Save a graph that loops over the rows of the batch, each as `r`, and collects each step's `kept`."""
    inner = helper.make_graph(
        [node("Identity", ["going"], ["go"]), node("Gather", ["x", "i"], ["r"], axis=0), *body],
        "body",
        [value("i", INT64, []), value("going", BOOL, [])],
        [value(condition, BOOL, []), value("kept", FLOAT, [3])],
    )
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Gather", ["sizes", "zero"], ["count"], axis=0),
        node("Loop", ["count", ""], ["y"], body=inner),
    ]
    return save(path, nodes, ZERO, FIVE)


def weights(name: str, array: Any) -> Any:
    """Return a constant."""
    return numpy_helper.from_array(array, name)
