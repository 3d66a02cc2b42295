import io
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from shoal_runtime.errors import LoadError
from tests.runtime.fakes import Bench

if TYPE_CHECKING:
    from shoal_runtime.loading import Model


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(4.0))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x * self.weight * scale, "sum": x.sum(1)}


class One(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.bfloat16()


def export(path: Path, module: torch.nn.Module, *args: Any, dynamic: Any = None, **kwargs: Any) -> Path:
    program = torch.export.export(module, args, kwargs, dynamic_shapes=dynamic)
    torch.export.save(program, path)
    return path


@pytest.fixture
def two(tmp_path: Path) -> Path:
    rows = torch.export.Dim("rows", max=16)
    return export(
        tmp_path / "two.pt2",
        Two(),
        torch.ones(2, 4),
        scale=torch.ones(2, 1),
        dynamic={"x": {0: rows}, "scale": {0: rows}},
    )


def test_the_signature_is_in_the_program(two: Path, load: Callable[..., "Model"]) -> None:
    model = load(two, max_batch_size=64)

    assert (model.name, model.platform) == ("two", "pytorch_export")
    assert [(s.name, s.datatype, s.shape) for s in model.signature.inputs] == [
        ("x", "FP32", (-1, 4)),
        ("scale", "FP32", (-1, 1)),
    ]
    assert [(s.name, s.datatype, s.shape) for s in model.signature.outputs] == [
        ("scaled", "FP32", (-1, 4)),
        ("sum", "FP32", (-1,)),
    ]
    assert model.signature.max_batch_size == 16


def test_a_program_runs_on_any_number_of_rows(two: Path, load: Callable[..., "Model"]) -> None:
    model = load(two)

    with Bench.around(model) as bench:
        for rows in (1, 3, 16):
            x = np.ones((rows, 4), dtype=np.float32)
            result = bench.run({"x": x, "scale": 2 * np.ones((rows, 1), dtype=np.float32)})
            assert result.outputs["scaled"].tolist() == [[0, 2, 4, 6]] * rows
            assert result.outputs["sum"].tolist() == [4] * rows


def test_a_program_for_a_fixed_number_of_rows_is_padded_to_it(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    model = load(export(tmp_path / "one.pt2", One(), torch.ones(4, 2)))

    assert model.signature.allowed_batch_sizes == (4,)
    assert model.signature.outputs[0].name == "output"
    assert model.signature.outputs[0].datatype == "BF16"
    with Bench.around(model) as bench:
        assert bench.run({"x": np.ones((3, 2), dtype=np.float32)}).outputs["output"].shape == (3, 2)


def test_a_fixed_number_of_rows_is_logged_with_a_remedy(
    tmp_path: Path, load: Callable[..., "Model"], caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.ones(1, 4)
    path = export(tmp_path / "one.pt2", Two(), x, scale=torch.ones(1, 1))

    model = load(path)

    [message] = [record.getMessage() for record in caplog.records if "static_batch" in record.getMessage()]
    assert "one.pt2 has a fixed batch of 1" in message
    remedy = message.partition("dynamic batch: ")[2].replace("args_of_two_rows", "args, kwargs")
    names: dict[str, Any] = {
        "torch": torch,
        "model": Two(),
        "args": (torch.ones(2, 4),),
        "kwargs": {"scale": torch.ones(2, 1)},
    }
    exec(remedy.replace("torch.export.export", "program = torch.export.export"), names)
    torch.export.save(names["program"], path)
    assert load(path).signature.max_batch_size > model.signature.max_batch_size == 1


def test_model_toml_may_rename_the_tensors(two: Path, load: Callable[..., "Model"]) -> None:
    table = '[[{}]]\nname = "{}"\ndatatype = "FP32"\nshape = {}\n'
    (two.parent / "model.toml").write_text(
        table.format("inputs", "a", [-1, 4])
        + table.format("inputs", "b", [-1, 1])
        + table.format("outputs", "c", [-1, 4])
        + table.format("outputs", "d", [-1])
    )

    with Bench.around(load(two.parent)) as bench:
        ones = np.ones((1, 4), dtype=np.float32)
        assert sorted(bench.run({"a": ones, "b": ones[:, :1]}).outputs) == ["c", "d"]


def test_model_toml_must_list_as_many_tensors(two: Path, load: Callable[..., "Model"]) -> None:
    (two.parent / "model.toml").write_text('[[inputs]]\nname = "a"\ndatatype = "FP32"\nshape = [-1, 4]\n')

    with pytest.raises(LoadError, match="1 inputs; the program has 2"):
        load(two.parent)


def test_a_program_keeps_its_dtype(two: Path, load: Callable[..., "Model"]) -> None:
    with pytest.raises(LoadError, match="SHOAL_RUNTIME_DTYPE"):
        load(two, dtype="bfloat16")


@pytest.mark.parametrize("content", [b"", b"no zip", b"PK\3\4" + bytes(100)])
def test_a_corrupt_program_is_rejected(tmp_path: Path, load: Callable[..., "Model"], content: bytes) -> None:
    (tmp_path / "m.pt2").write_bytes(content)

    with pytest.raises(
        LoadError,
        match=r"m\.pt2 is not a readable torch\.export program",
    ):
        load(tmp_path / "m.pt2")


def test_a_truncated_program_is_rejected(two: Path, load: Callable[..., "Model"]) -> None:
    two.write_bytes(two.read_bytes()[:-400])

    with pytest.raises(LoadError, match="not a readable"):
        load(two)


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_hidden_in_a_program_is_not_run(two: Path, load: Callable[..., "Model"]) -> None:
    """A .pt2 may declare a weight as pickled, which torch then unpickles."""
    exploded = two.parent / "exploded"
    buffer = io.BytesIO()
    torch.save(Bomb(exploded), buffer)
    evil = two.parent / "evil.pt2"
    with zipfile.ZipFile(two) as source, zipfile.ZipFile(evil, "w") as target:
        for name in source.namelist():
            content = source.read(name)
            if name.endswith("weights/weight_0"):
                content = buffer.getvalue()
            if name.endswith("model_weights_config.json"):
                config = json.loads(content)
                for entry in config["config"].values():
                    entry["use_pickle"] = True
                content = json.dumps(config).encode()
            target.writestr(name, content)

    with pytest.raises(LoadError, match=r"holds a pickle.*model\.allowPickle"):
        load(evil)

    assert not exploded.exists()


def test_an_output_without_rows_is_rejected(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    class Mean(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.mean(0)

    path = export(tmp_path / "mean.pt2", Mean(), torch.ones(2, 4), dynamic=({0: torch.export.Dim("rows")},))

    with pytest.raises(LoadError, match=r"x \[-1, 4\], output \[4\]"):
        load(path)
