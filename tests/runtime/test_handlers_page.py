"""The examples of docs/how-to/handlers.md and docs/reference/model-directory.md, as a reader would run them."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from shoal_runtime.execution.torch_placement import CpuPlacement
from shoal_runtime.readiness import Readiness
from shoal_runtime.startup.starting import warm
from tests.runtime.fakes import Bench, texts

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

DOCS = Path(__file__).parents[2] / "docs"


def code(page: str, language: str) -> str:
    found = re.search(rf"```{language}[^\n]*\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return found[1]


def test_the_complete_example_works(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    (tmp_path / "sentiment").mkdir()
    (tmp_path / "sentiment" / "handler.py").write_text(code("how-to/handlers.md", "python"))
    model = load(tmp_path / "sentiment", parameters={"sharpness": 2.0})

    warm(model, CpuPlacement(), Readiness())
    with Bench.around(model) as bench:
        result = bench.run({"text": texts(b"a great day", b" ", b"awful")})

    assert result.outputs["label"].tolist() == [b"positive", b"negative"]
    assert np.allclose(result.outputs["probability"], [0.982, 0.018], atol=1e-3)
    assert [(e.row, e.status, e.message) for e in result.errors] == [(1, 400, "the text is empty")]


def test_the_model_toml_example_names_every_key(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    made = tmp_path / "m"
    made.mkdir()
    toml = code("reference/model-directory.md", "toml")
    (made / "model.toml").write_text(toml.replace('file = "model.pt2"', ""))
    (made / "handler.py").write_text("class Adder:\n    def forward(self, batch): return batch\n")

    model = load(made)

    assert model.name == "adder"
    assert [spec.name for spec in model.signature.inputs] == ["x"]
