"""``shoal.ray.Model`` as Ray, Daft and Spark call it, without any of them: real runtimes, batches of each kind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow
import pytest

from shoal import InvalidInput
from shoal.ray import Model
from shoal.serving.errors import FieldError, LocalError

pytestmark = pytest.mark.integration

HANDLER = """
import os, signal, time
import numpy as np
from shoal_runtime import ItemError, TensorSpec

class Double:
    tensors = "numpy"
    inputs = (TensorSpec("x", "FP32", [-1, 2]),)
    outputs = (
        TensorSpec("y", "FP32", [-1, 2]),
        TensorSpec("label", "INT64", [-1]),
        TensorSpec("word", "BYTES", [-1]),
        TensorSpec("extra", "BYTES", [-1], content_type="application/json"),
    )

    def preprocess(self, x):
        if x[0] == -1:
            raise ItemError("fish cannot be negative")
        return x

    def forward(self, batch):
        if (batch[:, 0] == 13).any():
            raise ValueError("unlucky")
        if (batch[:, 0] == 666).any():
            os.kill(os.getpid(), signal.SIGKILL)
        if (batch[:, 0] == 99).any():
            time.sleep(600)
        return batch * 2

    def postprocess(self, y):
        return {"y": y, "label": np.int64(y[0]), "word": f"w{int(y[0])}", "extra": {"seen": [float(y[1])]}}
"""

ECHO = """
import numpy as np
from shoal_runtime import TensorSpec

class Lengths:
    tensors = "numpy"
    inputs = (
        TensorSpec("text", "BYTES", [-1], content_type="text/plain"),
        TensorSpec("ids", "INT64", [-1, -1]),
        TensorSpec("weight", "FP32", [-1, 1], optional=True),
    )
    outputs = (TensorSpec("ids_back", "INT64", [-1, -1]), TensorSpec("length", "INT64", [-1]))

    def preprocess(self, row):
        return {"ids": row["ids"], "length": np.int64(len(row["text"]))}

    def forward(self, batch):
        return {"ids_back": batch["ids"], "length": batch["length"]}
"""


def written(folder: Path, source: str) -> str:
    folder.mkdir()
    (folder / "handler.py").write_text(source)
    return str(folder)


@pytest.fixture(scope="module")
def double(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    uri = written(tmp_path_factory.mktemp("models") / "double", HANDLER)
    with Model(uri, {"x": "features"}, set={"batching.maxBatchSize": 4}) as model:
        yield model


@pytest.fixture(scope="module")
def lengths(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with Model(written(tmp_path_factory.mktemp("models") / "lengths", ECHO)) as model:
        yield model


def features(*firsts: float) -> Any:
    return np.asarray([[first, 1.0] for first in firsts]).reshape(-1, 2)


KINDS = {
    "numpy": lambda columns: columns,
    "pandas": lambda columns: pandas.DataFrame({name: list(each) for name, each in columns.items()}),
    "pyarrow": lambda columns: pyarrow.table({name: list(each) for name, each in columns.items()}),
}


def as_rows(batch: Any) -> list[dict[str, Any]]:
    if isinstance(batch, pandas.DataFrame):
        records: list[dict[str, Any]] = batch.astype(object).where(batch.notna(), None).to_dict("records")
        return records
    if isinstance(batch, pyarrow.Table):
        rows: list[dict[str, Any]] = batch.to_pylist()
        return rows
    lists = {name: each.to_pylist() if isinstance(each, pyarrow.Array) else list(each) for name, each in batch.items()}
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_fail_fail_alone_in_a_batch_of_any_kind(double: Model, kind: str) -> None:
    firsts = [float(n) for n in range(20, 40)]
    firsts[3], firsts[9], firsts[17] = -1.0, 13.0, -1.0
    batch = KINDS[kind]({"id": np.arange(20), "features": features(*firsts)})
    answer = double(batch)
    assert type(answer) is type(batch)
    rows = as_rows(answer)
    assert [row["id"] for row in rows] == list(range(20))
    errors = {row["id"]: row["shoal_error"] for row in rows if row["shoal_error"] is not None}
    assert errors == {
        3: "fish cannot be negative",
        9: "forward raised ValueError: unlucky",
        17: "fish cannot be negative",
    }
    for row, first in zip(rows, firsts, strict=True):
        if row["id"] in errors:
            assert (row["label"], row["word"], row["extra"]) == (None, None, None)
            assert row["y"] is None or np.isnan(row["y"]).all()
        else:
            assert list(row["y"]) == [2 * first, 2.0]
            assert (row["label"], row["word"]) == (2 * first, f"w{int(2 * first)}")
            assert row["extra"] == '{"seen":[2.0]}'


def schema(batch: Any) -> Any:
    """Return the columns that Arrow, and so Ray, makes of a batch."""
    if isinstance(batch, pyarrow.Table):
        return batch.schema
    if isinstance(batch, pandas.DataFrame):
        return pyarrow.Table.from_pandas(batch, preserve_index=False).schema.remove_metadata()
    return {
        name: (each.dtype, each.shape[1:]) if isinstance(each, np.ndarray) else each.type
        for name, each in batch.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_batches_have_one_schema_whether_all_some_or_no_rows_failed(double: Model, kind: str) -> None:
    batches = [features(1, 2, 3), features(1, -1, 3), features(-1, 13, -1), features()]
    schemas = [schema(double(KINDS[kind]({"features": each}))) for each in batches[: 4 if kind == "numpy" else 3]]
    assert all(each == schemas[0] for each in schemas)


def test_a_row_that_ends_the_runtime_is_that_rows_error_and_the_others_are_answered(double: Model) -> None:
    firsts = [float(n) for n in range(20, 32)]
    firsts[6] = 666.0
    answer = double({"features": features(*firsts)})
    errors = answer["shoal_error"].to_pylist()
    assert errors[6].endswith("the runtime was killed by SIGKILL")
    assert [each for each in errors if each is not None] == [errors[6]]
    assert np.array_equal(np.delete(answer["y"], 6, axis=0), np.delete(2 * features(*firsts), 6, axis=0))
    alone = double({"features": features(666.0)})
    assert alone["shoal_error"].to_pylist() == [errors[6]]
    assert double({"features": features(5.0)})["label"].to_pylist() == [10]


def test_a_row_without_an_end_is_that_rows_error(tmp_path: Path) -> None:
    with Model(written(tmp_path / "double", HANDLER), {"x": "features"}, timeout_s=2.0) as model:
        answer = model({"features": features(1.0, 99.0, 3.0)})
    why = "no response from http://runtime/v2/models/double/infer within 2 s; the runtime was killed"
    assert answer["shoal_error"].to_pylist() == [None, f"this row ended the runtime: {why}", None]
    assert answer["label"].to_pylist() == [2, None, 6]


def test_rows_of_other_shapes_and_nulls_are_those_rows_errors(double: Model) -> None:
    rows = [[1.0, 2.0], None, [1.0], [3.0, 4.0], "text"]
    table = pandas.DataFrame({"features": pandas.Series(rows, dtype=object)})
    assert [row["shoal_error"] for row in as_rows(double(table))] == [
        None,
        "input 'x' does not accept null",
        "input x takes rows of shape [2], not [1]",
        None,
        "input x: takes FP32, not text",
    ]


def test_columns_together_are_one_input(tmp_path: Path) -> None:
    with Model(written(tmp_path / "double", HANDLER), {"x": ["a", "b"]}, outputs={"y": "twice"}) as model:
        table = pyarrow.table({"a": pyarrow.array([1, None, 3]), "b": [1.5, 2.5, 3.5], "y": ["kept"] * 3})
        rows = as_rows(model(table))
    assert [row["twice"] for row in rows] == [[2.0, 3.0], None, [6.0, 7.0]]
    assert [row["y"] for row in rows] == ["kept"] * 3
    assert rows[1]["shoal_error"] == "input 'x' does not accept null"


def test_rows_of_different_lengths_travel_with_their_like(lengths: Model) -> None:
    ids = [[1, 2, 3], [4], [5, 6, 7], [], [8]]
    batches = [
        {"text": np.array(["a", "bb", "ccc", "d", "e"], object), "ids": ids},
        pandas.DataFrame({"text": ["a", "bb", "ccc", "d", "e"], "ids": ids}),
        pyarrow.table({"text": ["a", "bb", "ccc", "d", "e"], "ids": ids}),
    ]
    for batch in batches:
        rows = as_rows(lengths(batch))
        assert [list(row["ids_back"]) for row in rows] == ids
        assert [row["length"] for row in rows] == [1, 2, 3, 1, 1]


def test_whole_numbers_among_which_is_a_null_stay_whole_numbers(tmp_path: Path) -> None:
    source = ECHO.replace('TensorSpec("ids", "INT64", [-1, -1])', 'TensorSpec("ids", "INT64", [-1])')
    source = source.replace('"ids_back", "INT64", [-1, -1]', '"ids_back", "INT64", [-1]')
    with Model(written(tmp_path / "ids", source)) as model:
        for ids in (np.array([1.0, np.nan, 3.0]), pyarrow.array([1, None, 3])):
            rows = as_rows(model({"text": np.array(["a", "b", "c"], object), "ids": ids}))
            assert [row["ids_back"] for row in rows] == [1, None, 3]
            assert rows[1]["shoal_error"] == "input 'ids' does not accept null"
        [row] = as_rows(model({"text": np.array([b"abc"], object), "ids": np.array([1.5])}))
        assert row["shoal_error"] == "input ids: takes INT64, not float64"


def test_pictures_as_arrays_are_sent_as_files(tmp_path: Path) -> None:
    source = """
import io
import numpy as np
from PIL import Image
from shoal_runtime import TensorSpec

class Size:
    tensors = "numpy"
    inputs = (TensorSpec("image", "BYTES", [-1], content_type="image/png"),)
    outputs = (TensorSpec("width", "INT64", [-1]),)

    def preprocess(self, image):
        return np.int64(Image.open(io.BytesIO(image)).width)

    def forward(self, batch):
        return batch
"""
    with Model(written(tmp_path / "size", source)) as model:
        assert model({"image": np.zeros((3, 4, 5, 3), np.uint8)})["width"].to_pylist() == [5, 5, 5]


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"other": features(1)}, "no column features, only other"),
        (
            {"features": features(1), "y": features(1)},
            "outputs={'y': NAME}",
        ),
        (
            {"features": features(1), "shoal_error": features(1)},
            "error_column=NAME",
        ),
    ],
)
def test_columns_that_do_not_fit_are_refused_with_what_to_do(double: Model, batch: Any, said: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        double(batch)
    assert said in str(refused.value)


def test_outputs_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    with (
        Model(written(tmp_path / "double", HANDLER), {"x": "features"}, outputs={"y": "label"}) as model,
        pytest.raises(InvalidInput, match="column label would be duplicated"),
    ):
        model({"features": features(1.0)})
    with pytest.raises(InvalidInput, match="outputs: the model has no output z, only y, label, word, extra"):
        Model(str(tmp_path / "double"), outputs={"z": "label"})


def test_why_a_model_cannot_be_loaded_is_said(tmp_path: Path) -> None:
    broken = written(tmp_path / "broken", "class Nothing:\n    pass\n")
    with pytest.raises(LocalError, match=r"^the model cannot be loaded: .*handler"):
        Model(broken)
    with pytest.raises(FieldError, match="there is no file or directory /no/such/model"):
        Model("/no/such/model")
    with pytest.raises(FieldError, match=r"there is no field batching.maxBatchSiz; did you mean"):
        Model(broken, set={"batching.maxBatchSiz": 4})


def test_a_process_that_is_killed_leaves_no_runtime(tmp_path: Path) -> None:
    script = f"""
import sys, time
from shoal.ray import Model
model = Model({written(tmp_path / "double", HANDLER)!r}, {{"x": "features"}})
print(model._runtime._process.pid, flush=True)
time.sleep(600)
"""
    actor = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert actor.stdout is not None
    pid = int(actor.stdout.readline())
    os.kill(pid, 0)
    actor.kill()
    actor.wait()
    actor.stdout.close()
    assert ended(pid)


def ended(pid: int) -> bool:
    """Return whether a process that is not a child ends soon."""
    ends_s = time.monotonic() + 20
    while time.monotonic() < ends_s:
        with suppress(FileNotFoundError):
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
                time.sleep(0.02)
                continue
        return True
    os.kill(pid, signal.SIGKILL)
    return False
