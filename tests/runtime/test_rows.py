"""A response never contains another client's row: a model that keeps none or several is refused, or served grouped."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import orjson
import pytest
import torch
from onnx import helper

from shoal_runtime import TensorSpec
from shoal_runtime.errors import LoadError, WrongRows
from shoal_runtime.readiness import Readiness
from shoal_runtime.signature.tensors import make_signature
from shoal_runtime.startup.starting import warm
from tests.runtime.fakes import Bench, texts
from tests.runtime.graphs import (
    FIVE,
    FLOAT,
    HIT_CONSTANTS,
    HITS,
    INT64,
    detector,
    each_row,
    hidden_hits,
    hits,
    ints,
    node,
    save,
    value,
)

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

Load = Callable[..., "Model"]
HIT = """
[[outputs]]
name = "y"
datatype = "FP32"
shape = [-1, 3]
rows = "ragged"
row_index = "row"
[[outputs]]
name = "row"
datatype = "INT64"
shape = [-1]
"""
BATCH = np.array([[9, 0, 1], [0, 9, 2], [0, 0, 3], [9, 9, 4]], np.float32)
"""Rows that are hit never, twice, once and once."""
GROUPED = [[], [[0, 9, 2], [0, 9, 2]], [[0, 0, 3]], [[9, 9, 4]]]


def started(load: Load, path: Path, **settings: Any) -> "Model":
    model = load(path, **settings)
    warm(model, model.machine.place(False), Readiness())
    return model


def folder(path: Path, toml: str) -> Path:
    """Put the model's file into a folder with this model.toml."""
    made = path.parent / "model"
    made.mkdir()
    path.rename(made / path.name)
    (made / "model.toml").write_text(toml)
    return made


def refused(load: Load, path: Path, word: str, **settings: Any) -> None:
    with pytest.raises(LoadError, match=word) as error:
        started(load, path, **settings)
    assert "MAX_BATCH_SIZE=1" in str(error.value) or "ragged" in str(error.value)


# ONNX


@pytest.mark.parametrize("claim", ["N", "K"])
def test_a_filter_is_rejected_whatever_it_claims(tmp_path: Path, load: Load, claim: str) -> None:
    refused(load, hits(tmp_path / "m.onnx", claim=claim), "NonZero")


@pytest.mark.parametrize("sizes", [{}, {"allowed_batch_sizes": (4,)}, {"allowed_batch_sizes": (1, 8)}])
def test_what_cannot_be_followed_is_found_by_trial(tmp_path: Path, load: Load, sizes: Any) -> None:
    refused(load, hidden_hits(tmp_path / "m.onnx"), "returned . rows of y for a batch of", **sizes)


def test_non_maximum_suppression_is_rejected(tmp_path: Path, load: Load) -> None:
    refused(load, detector(tmp_path / "m.onnx", claim="N"), "NonMaxSuppression")


def test_rows_in_another_order_are_rejected(tmp_path: Path, load: Load) -> None:
    nodes = [
        node("Shape", ["x"], ["sizes"]),
        node("Slice", ["sizes", "from", "to"], ["n"]),
        node("TopK", ["x", "n"], ["y", "i"], axis=0),
    ]
    refused(load, save(tmp_path / "m.onnx", nodes, ints("from", 0), ints("to", 1)), "affect each other's")


def test_the_best_of_the_batch_are_rejected(tmp_path: Path, load: Load) -> None:
    refused(load, save(tmp_path / "m.onnx", [node("TopK", ["x", "k"], ["y", "i"], axis=0)], ints("k", 2)), "TopK")


def test_a_loop_that_ends_where_the_numbers_state_so_is_rejected(tmp_path: Path, load: Load) -> None:
    body = [
        node("ReduceMax", ["r"], ["top"], keepdims=0),
        node("Less", ["top", "five"], ["on"]),
        node("Identity", ["r"], ["kept"]),
    ]
    refused(load, each_row(tmp_path / "m.onnx", body, condition="on"), "returned . rows of y")


@pytest.mark.parametrize(
    ("nodes", "constants", "proven"),
    [
        ([node("Reshape", ["x", "form"], ["y"])], [ints("form", -1, 3)], False),
        ([node("Greater", ["x", "five"], ["c"]), node("Where", ["c", "x", "five"], ["y"])], [FIVE], True),
        ([node("Softmax", ["x"], ["y"], axis=1)], [], True),
    ],
)
def test_what_keeps_its_rows_is_served(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture, nodes: Any, constants: Any, proven: bool
) -> None:
    model = started(load, save(tmp_path / "m.onnx", nodes, *constants))

    assert model.rows_proven is proven
    assert "rows_not" not in caplog.text


def test_a_loop_over_the_rows_is_served(tmp_path: Path, load: Load) -> None:
    assert not started(load, each_row(tmp_path / "m.onnx", [node("Relu", ["r"], ["kept"])])).rows_proven


def test_one_row_at_a_time_is_served_and_fails_alone(tmp_path: Path, load: Load) -> None:
    with Bench.around(started(load, hits(tmp_path / "m.onnx"), max_batch_size=1)) as bench:
        assert bench.run({"x": BATCH[2:3]}).outputs["y"].tolist() == [[0, 0, 3]]
        for odd in (BATCH[:1], BATCH[1:2]):
            with pytest.raises(WrongRows, match="for a batch of 1"):
                bench.run({"x": odd})


def test_one_row_at_a_time_is_served_where_zeros_are_no_row(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    nodes = [
        node("ReduceMax", ["x"], ["top"], axes=[1], keepdims=0),
        node("Greater", ["top", "none"], ["c"]),
        node("Compress", ["x", "c"], ["y"], axis=0),
    ]
    path = save(tmp_path / "m.onnx", nodes, helper.make_tensor("none", FLOAT, [], [0.0]))

    started(load, path, max_batch_size=1)

    assert "event=warmup_outputs_doubtful rows=1" in caplog.text


# ragged outputs


def test_ragged_items_are_grouped_by_row(tmp_path: Path, load: Load) -> None:
    nodes = [*HITS, node("Gather", ["x", "row"], ["y"], axis=0)]
    given = [value("y", FLOAT, ["K", 3]), value("row", INT64, ["K"])]
    path = save(tmp_path / "m.onnx", nodes, *HIT_CONSTANTS, outputs=given)

    model = started(load, folder(path, HIT))

    [published] = model.signature.outputs
    assert (published.name, published.datatype, published.shape) == ("y", "BYTES", (-1,))
    with Bench.around(model) as bench:
        assert [orjson.loads(each) for each in bench.run({"x": BATCH}).outputs["y"]] == GROUPED


def test_a_detector_s_boxes_are_each_image_s_own(tmp_path: Path, load: Load) -> None:
    toml = """
[[outputs]]
name = "selected"
datatype = "INT64"
shape = [-1, 3]
rows = "ragged"
row_column = 0
[[outputs]]
name = "score"
datatype = "FP32"
shape = [-1]
rows = "ragged"
row_index = "selected"
row_column = 0
"""
    model = started(load, folder(detector(tmp_path / "m.onnx"), toml), allowed_batch_sizes=(8,))
    images = np.zeros((3, 6, 5), np.float32)
    images[1, 2], images[1, 4], images[2, 0] = [0, 0, 1, 1, 0.75], [2, 2, 3, 3, 0.875], [1, 1, 2, 2, 1]

    with Bench.around(model) as bench:
        result = bench.run({"x": images})

    assert result.padded_rows == 5
    assert [orjson.loads(each) for each in result.outputs["selected"]] == [[], [[0, 4], [0, 2]], [[0, 0]]]
    assert [orjson.loads(each) for each in result.outputs["score"]] == [[], [0.875, 0.75], [1.0]]


# torch.export and TorchScript


class Keeps(torch.nn.Module):
    """Returns rows as often as they are hit, in a way of its own."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.way = way

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hit = torch.stack((x[:, 0] < 5, x[:, 1] > 5), 1)
        if self.way == "nonzero":
            return x[torch.nonzero(hit)[:, 0]]
        if self.way == "masked_select":
            return torch.masked_select(x, hit[:, :1]).reshape(-1, 3)
        if self.way == "mask":
            return x[hit[:, 0]]
        return torch.where(hit[:, :1], x, -x)


def exported(path: Path, module: torch.nn.Module) -> Path:
    rows = torch.export.Dim("rows")
    program = torch.export.export(module, (torch.rand(3, 3),), dynamic_shapes=({0: rows},))
    torch.export.save(program, path)
    return path


@pytest.mark.parametrize("way", ["nonzero", "masked_select", "mask"])
def test_a_program_that_selects_rows_is_rejected(tmp_path: Path, load: Load, way: str) -> None:
    refused(load, exported(tmp_path / "m.pt2", Keeps(way)), "selects")


def test_a_program_that_keeps_its_rows_is_proven(tmp_path: Path, load: Load) -> None:
    assert started(load, exported(tmp_path / "m.pt2", Keeps("where"))).rows_proven


def test_a_program_s_items_are_grouped(tmp_path: Path, load: Load) -> None:
    class WithRows(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            row = torch.nonzero(torch.stack((x[:, 0] < 5, x[:, 1] > 5), 1))[:, 0]
            return x[row], row

    model = started(load, folder(exported(tmp_path / "m.pt2", WithRows()), HIT))

    with Bench.around(model) as bench:
        assert [orjson.loads(each) for each in bench.run({"x": BATCH}).outputs["y"]] == GROUPED


INPUT = '[[inputs]]\nname = "x"\ndatatype = "FP32"\nshape = [-1, 3]\n'
OUTPUT = '[[outputs]]\nname = "y"\ndatatype = "FP32"\nshape = [-1, 3]\n'


class Scripted(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[torch.nonzero(torch.stack((x[:, 0] < 5, x[:, 1] > 5), 1))[:, 0]]


class ScriptedWithRows(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        row = torch.nonzero(torch.stack((x[:, 0] < 5, x[:, 1] > 5), 1))[:, 0]
        return x[row], row


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_an_archive_that_selects_rows_is_rejected_or_grouped(tmp_path: Path, load: Load) -> None:
    torch.jit.script(Scripted()).save(tmp_path / "m.pt")  # type: ignore[no-untyped-call]
    refused(load, folder(tmp_path / "m.pt", INPUT + OUTPUT), "returned . rows of y")

    (tmp_path / "other").mkdir()
    torch.jit.script(ScriptedWithRows()).save(tmp_path / "other" / "m.pt")  # type: ignore[no-untyped-call]
    model = started(load, folder(tmp_path / "other" / "m.pt", INPUT + HIT))
    with Bench.around(model) as bench:
        assert [orjson.loads(each) for each in bench.run({"x": BATCH}).outputs["y"]] == GROUPED


# handlers

HEAD = """
import {library}
from shoal_runtime import TensorSpec

class Model:
    tensors = "{tensors}"
    inputs = [TensorSpec("x", "FP32", [-1, 3])]
    outputs = [{outputs}]

    def forward(self, batch):
        x = batch["x"]
        hit = {stack}((x[:, 0] < 5, x[:, 1] > 5), 1)
        row = {nonzero}
        return {result}
"""
NUMPY = {"library": "numpy", "tensors": "numpy", "stack": "numpy.stack", "nonzero": "numpy.nonzero(hit)[0]"}
TORCH = {"library": "torch", "tensors": "torch", "stack": "torch.stack", "nonzero": "torch.nonzero(hit)[:, 0]"}
PLAIN = 'TensorSpec("y", "FP32", [-1, 3])'
GROUPING = 'TensorSpec("y", "FP32", [-1, 3], rows="ragged", row_index="row"), TensorSpec("row", "INT64", [-1])'


def handler(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "handler.py").write_text(text)
    return path


@pytest.mark.parametrize("library", [NUMPY, TORCH], ids=["numpy", "torch"])
@pytest.mark.parametrize("result", ['{"y": x[row]}', "list(x[row])"])
def test_a_handler_that_selects_rows_is_rejected(tmp_path: Path, load: Load, library: Any, result: str) -> None:
    refused(load, handler(tmp_path / "m", HEAD.format(**library, outputs=PLAIN, result=result)), "returned . rows")


@pytest.mark.parametrize("library", [NUMPY, TORCH], ids=["numpy", "torch"])
def test_a_handler_s_items_are_grouped(tmp_path: Path, load: Load, library: Any) -> None:
    text = HEAD.format(**library, outputs=GROUPING, result='{"y": x[row], "row": row}')
    with Bench.around(started(load, handler(tmp_path / "m", text))) as bench:
        assert [orjson.loads(each) for each in bench.run({"x": BATCH}).outputs["y"]] == GROUPED


@pytest.mark.parametrize("library", [NUMPY, TORCH], ids=["numpy", "torch"])
@pytest.mark.parametrize("row", ["row + len(x)", "row - 2", "row * 0.5", "row * float('nan')", "row[:-1]"])
def test_an_item_of_no_row_fails_the_batch(tmp_path: Path, load: Load, library: Any, row: str) -> None:
    outputs = GROUPING.replace("INT64", "FP32")
    text = HEAD.format(**library, outputs=outputs, result=f'{{"y": x[row], "row": {row}}}')
    with Bench.around(load(handler(tmp_path / "m", text))) as bench, pytest.raises(WrongRows):
        bench.run({"x": BATCH})


def test_items_need_no_row_where_there_is_one_at_a_time(tmp_path: Path, load: Load) -> None:
    outputs = 'TensorSpec("y", "FP32", [-1, 3], rows="ragged")'
    where = handler(tmp_path / "m", HEAD.format(**NUMPY, outputs=outputs, result='{"y": x[row]}'))
    with pytest.raises(LoadError, match="row_index"):
        load(where)
    with Bench.around(started(load, where, max_batch_size=1)) as bench:
        assert bench.run({"x": BATCH[1:2]}).outputs["y"].tolist() == [b"[[0.0,9.0,2.0],[0.0,9.0,2.0]]"]


def test_items_of_other_rows_are_found(tmp_path: Path, load: Load) -> None:
    result = '{"y": x[row], "row": (row + 1) % len(x)}'
    where = handler(tmp_path / "m", HEAD.format(**NUMPY, outputs=GROUPING, result=result))
    refused(load, where, "affect each other's")


def test_numbers_of_no_row_are_rejected(tmp_path: Path, load: Load) -> None:
    where = handler(tmp_path / "m", HEAD.format(**NUMPY, outputs=GROUPING, result='{"y": x[row], "row": row - 1}'))
    refused(load, where, "an item of row -1")


def test_ragged_rows_that_change_each_other_are_rejected(tmp_path: Path, load: Load) -> None:
    result = '{"y": (x - x.mean(0))[row], "row": row}'
    where = handler(tmp_path / "m", HEAD.format(**NUMPY, outputs=GROUPING, result=result))
    refused(load, where, "affect each other's")


WORDS = """
import numpy
from shoal_runtime import TensorSpec

class Words:
    tensors = "{tensors}"
    inputs = [TensorSpec("text", "BYTES", [-1], content_type="text/plain")]
    outputs = [TensorSpec("n", "INT64", [-1])]

    def forward(self, batch):
        texts = batch["text"].tolist() if isinstance(batch, dict) else batch
        return numpy.array([len(word) for text in texts for word in ({words})], dtype=numpy.int64)
"""


@pytest.mark.parametrize("tensors", ["numpy", "torch"])
def test_texts_are_tried_too(tmp_path: Path, load: Load, tensors: str) -> None:
    refused(load, handler(tmp_path / "a", WORDS.format(tensors=tensors, words="text.split()")), "returned . rows of n")
    started(load, handler(tmp_path / "b", WORDS.format(tensors=tensors, words="[text]")))


SAMPLED = """
import numpy
from shoal_runtime import TensorSpec

class Sampled:
    tensors = "numpy"
    inputs = [TensorSpec("picture", "BYTES", [-1], content_type="image/png")]
    outputs = [TensorSpec("n", "INT64", [-1])]

    def preprocess(self, item):
        return numpy.array([len(item)])

    def forward(self, batch):
        return batch[batch < 5] if len(batch) == 1 else batch[:, 0]

    def warmup_items(self):
        return [b"1234", b"12345678"]
"""


def test_samples_are_tried_each_by_itself(tmp_path: Path, load: Load) -> None:
    refused(load, handler(tmp_path / "m", SAMPLED), "returned 0 rows of n for a batch of 1")


NOISY = """
import numpy
from shoal_runtime import TensorSpec

class Noisy:
    tensors = "numpy"
    inputs = [TensorSpec("x", "FP32", [-1, 3])]
    outputs = [TensorSpec("y", "FP32", [-1, 3])]

    def forward(self, batch):
        x = batch["x"]
        return ({result}).astype(numpy.float32)
"""


@pytest.mark.parametrize(
    "result",
    [
        "x + numpy.random.default_rng().standard_normal(x.shape)",
        "x + numpy.random.default_rng(1).standard_normal(x.shape)",
        "numpy.log(x + 1)",
    ],
    ids=["random", "noise by place", "not finite"],
)
def test_handlers_that_are_random_or_odd_are_served(tmp_path: Path, load: Load, result: str) -> None:
    started(load, handler(tmp_path / "m", NOISY.format(result=result)))


def test_a_handler_that_rejects_generated_rows_is_served_with_a_warning(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    text = NOISY.format(result="x if not x.any() else 1 / len(x[0:0])")
    started(load, handler(tmp_path / "m", text))

    assert "event=rows_not_tried" in caplog.text
    caplog.clear()
    started(load, tmp_path / "m", max_batch_size=1)
    assert "rows_not_tried" not in caplog.text


WORDY = """
import numpy
from shoal_runtime import ItemError, TensorSpec

class Model:
    inputs = [TensorSpec("text", "BYTES", [-1], content_type="text/plain")]
    outputs = [TensorSpec("length", "FP32", [-1])]

    def preprocess(self, text):
        if not text:
            raise ItemError("the text is empty")
        return numpy.float32(len(text))

    def forward(self, lengths):
        return lengths
"""


def test_a_handler_that_rejects_empty_texts_is_tried_with_others(
    tmp_path: Path, load: Load, caplog: pytest.LogCaptureFixture
) -> None:
    started(load, handler(tmp_path / "m", WORDY))

    assert "rows_not_tried" not in caplog.text


STRICT = """
import numpy
from shoal_runtime import TensorSpec

class Strict:
    tensors = "numpy"
    inputs = [TensorSpec("x", "{datatype}", [-1, 3])]
    outputs = [TensorSpec("y", "FP32", [-1, 3])]

    def forward(self, batch):
        x = batch["x"]
        if not ({accepts}).all():
            raise ValueError("not such a number")
        return {{"y": (x - x.mean(0)).astype(numpy.float32)}}
"""


@pytest.mark.parametrize(
    ("datatype", "accepts"),
    [("FP32", "(x >= 0) & (x < 1)"), ("FP32", "(x == 0) | (x == 1)"), ("FP64", "x >= 0"), ("UINT8", "x < 2")],
)
def test_what_takes_few_numbers_is_tried_with_these(tmp_path: Path, load: Load, datatype: str, accepts: str) -> None:
    text = STRICT.format(datatype=datatype, accepts=accepts)

    refused(load, handler(tmp_path / "m", text), "affect each other's")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("trigger", ["x > 1e5", "x > 1e15", "x < -1e5"])
def test_numbers_that_are_large_are_tried(tmp_path: Path, load: Load, trigger: str) -> None:
    class Triggered(torch.nn.Module):
        def __init__(self, large: bool, limit: float) -> None:
            super().__init__()
            self.large, self.limit = large, limit

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            chosen = x > self.limit if self.large else x < self.limit
            return torch.where(chosen, x.mean(0), x)

    made = Triggered(large=">" in trigger, limit=float(trigger.rsplit(maxsplit=1)[-1]))
    torch.jit.script(made).save(tmp_path / "m.pt")  # type: ignore[no-untyped-call]

    refused(load, folder(tmp_path / "m.pt", INPUT + OUTPUT), "affect each other's")


def test_what_turns_on_the_last_digits_of_large_numbers_is_served(tmp_path: Path, load: Load) -> None:
    # As kernels do that add up a row's numbers in another order at another place.
    result = "numpy.sin(x * (1 + 1e-7 * numpy.arange(len(x), dtype=numpy.float32)[:, None]))"
    text = NOISY.format(result=result)
    model = load(handler(tmp_path / "m", text))
    warm(replace(model, apart=False), model.machine.place(False), Readiness())


NULLABLE = """
import numpy
from shoal_runtime import TensorSpec

class Filled:
    tensors = "numpy"
    inputs = [TensorSpec("x", "FP32", [-1, 3], nullable=True)]
    outputs = [TensorSpec("y", "FP32", [-1, 3])]

    def forward(self, batch):
        x = batch["x"]
        return {"y": numpy.where(numpy.isnan(x), numpy.nanmean(x), x).astype(numpy.float32)}
"""


def test_nulls_are_tried_where_they_are_accepted(tmp_path: Path, load: Load) -> None:
    refused(load, handler(tmp_path / "m", NULLABLE), "affect each other's")
    started(load, handler(tmp_path / "n", NULLABLE.replace(", nullable=True", "")))


def test_rows_that_a_handler_mixes_are_found(tmp_path: Path, load: Load) -> None:
    refused(load, handler(tmp_path / "m", NOISY.format(result="x - x.mean(0)")), "affect each other's")


def test_texts_can_be_items(tmp_path: Path, load: Load) -> None:
    text = """
import numpy
from shoal_runtime import TensorSpec

class Split:
    tensors = "numpy"
    inputs = [TensorSpec("text", "BYTES", [-1], content_type="text/plain")]
    outputs = [TensorSpec("word", "BYTES", [-1], rows="ragged", row_index="row"), TensorSpec("row", "INT32", [-1, 1])]

    def forward(self, batch):
        pairs = [(word, row) for row, text in enumerate(batch["text"].tolist()) for word in text.split()]
        words = numpy.array([word for word, _ in pairs], dtype=object)
        return {"word": words, "row": numpy.array([[row] for _, row in pairs], numpy.int32).reshape(-1, 1)}
"""
    with Bench.around(started(load, handler(tmp_path / "m", text))) as bench:
        assert bench.run({"text": texts(b"a b", b"", b"c")}).outputs["word"].tolist() == [b'["a","b"]', b"[]", b'["c"]']


def test_ragged_outputs_and_postprocess_exclude_each_other(tmp_path: Path, load: Load) -> None:
    text = HEAD.format(**NUMPY, outputs=GROUPING, result='{"y": x[row], "row": row}')
    with pytest.raises(LoadError, match="postprocess"):
        load(handler(tmp_path / "m", text + "\n    def postprocess(self, row):\n        return row\n"))


@pytest.mark.parametrize(
    "specs",
    [
        [TensorSpec("y", "FP32", [-1, 3], rows="ragged", row_index="z")],
        [TensorSpec("y", "FP32", [-1, 3], rows="ragged", row_index="y")],
        [TensorSpec("y", "FP32", [-1, 3], rows="ragged", row_index="z"), TensorSpec("z", "BYTES", [-1])],
        [TensorSpec("y", "FP32", [-1, 3], rows="ragged", row_index="z"), TensorSpec("z", "INT64", [-1, 3])],
        [
            TensorSpec("y", "FP32", [-1, 3], rows="ragged", row_index="z", row_column=3),
            TensorSpec("z", "INT64", [-1, 3]),
        ],
    ],
)
def test_an_invalid_row_index_is_rejected(specs: Sequence[TensorSpec]) -> None:
    with pytest.raises(LoadError, match=r"row_index|row_column"):
        make_signature([TensorSpec("x", "FP32", [-1])], specs, max_batch_size=8, allowed_batch_sizes=())


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": "some"},
        {"row_index": "z"},
        {"row_column": 0},
        {"rows": "ragged", "row_column": 3},
        {"rows": "ragged", "row_column": -1},
        {"rows": "ragged", "batch_dim": 1},
    ],
)
def test_fields_of_ragged_outputs_are_checked(fields: Any) -> None:
    with pytest.raises(ValueError, match="tensor y"):
        TensorSpec("y", "FP32", [-1, 3], **fields)
