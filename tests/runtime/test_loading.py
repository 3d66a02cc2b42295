import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from shoal_runtime.errors import LoadError
from shoal_runtime.execution.torch_placement import choose_device
from shoal_runtime.importing import HandlerFailed
from shoal_schema.resource.model import ModelFormat
from tests.runtime.fakes import Bench, collate

if TYPE_CHECKING:
    from shoal_runtime.loading import Model

HANDLER = """
from shoal_runtime import TensorSpec
class Scale:
    inputs = [TensorSpec("x", "FP32", [-1])]
    outputs = [TensorSpec("y", "FP32", [-1])]
    def load(self, context):
        self.factor = context.parameters.get("factor", 1)
        self.seen = (context.model_dir.name, str(context.device), str(context.dtype))
        self.seen += (context.max_batch_size,)
    def forward(self, batch):
        return batch["x"] * self.factor
"""


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    made = tmp_path / "scale"
    made.mkdir()
    (made / "handler.py").write_text(HANDLER)
    return made


def test_a_directory_with_a_handler_needs_nothing_else(model_dir: Path, load: Callable[..., "Model"]) -> None:
    model = load(model_dir, dtype="float16", max_batch_size=4)

    assert model.name == "scale"
    assert model.signature.max_batch_size == 4
    assert model.handler.seen == ("scale", "cpu", "torch.float16", 4)  # type: ignore[attr-defined]


def test_the_handler_s_file_may_be_the_model(model_dir: Path, load: Callable[..., "Model"]) -> None:
    assert load(model_dir / "handler.py").name == "handler"


def test_the_environment_wins_over_model_toml(model_dir: Path, load: Callable[..., "Model"]) -> None:
    (model_dir / "model.toml").write_text('name = "toml"\n[parameters]\nfactor = 2\nother = 1\n')

    assert load(model_dir).name == "toml"
    model = load(model_dir, name="env", parameters={"factor": 3})

    assert model.name == "env"
    with Bench.around(model) as bench:
        assert bench.run({"x": np.ones(1, dtype=np.float32)}).outputs["y"].tolist() == [3]


def test_a_signature_in_model_toml_wins_over_the_class(model_dir: Path, load: Callable[..., "Model"]) -> None:
    (model_dir / "model.toml").write_text('[[outputs]]\nname = "y"\ndatatype = "FP64"\nshape = [-1]\n')

    assert load(model_dir).signature.outputs[0].datatype == "FP64"


def test_a_handler_without_a_signature_is_reported_with_a_remedy(model_dir: Path, load: Callable[..., "Model"]) -> None:
    (model_dir / "handler.py").write_text("class A:\n    def forward(self, batch): return batch\n")

    with pytest.raises(LoadError, match=r"`inputs`.*model\.toml"):
        load(model_dir)


def test_a_handler_that_fails_to_load_keeps_its_cause(model_dir: Path, load: Callable[..., "Model"]) -> None:
    (model_dir / "handler.py").write_text(HANDLER.replace("self.factor =", "1 / 0 #"))

    with pytest.raises(HandlerFailed, match="Scale failed to load: ZeroDivisionError") as caught:
        load(model_dir)

    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_padding_rules_are_checked_when_the_model_loads(model_dir: Path, load: Callable[..., "Model"]) -> None:
    text = HANDLER.replace("    def load", "    preprocess_padding = [{'name': 'x'}]\n    def load")
    (model_dir / "handler.py").write_text(text)

    with pytest.raises(LoadError, match="preprocess_padding"):
        load(model_dir)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile imports what it deprecates
@pytest.mark.parametrize(("compiled", "length"), [(False, 5), (True, 8)])
def test_buckets_of_preprocess_count_where_forwards_are_compiled(
    model_dir: Path, load: Callable[..., "Model"], *, compiled: bool, length: int
) -> None:
    rules = '    preprocess_padding = [PaddingRule("x", pad_axis=1, pad_buckets=[4, 8])]\n'
    text = HANDLER.replace("import TensorSpec", "import PaddingRule, TensorSpec")
    (model_dir / "handler.py").write_text(text.replace("    def load", rules + "    def load"))
    stages = load(model_dir, compile=compiled).stages

    batch = collate([{"x": np.zeros(3)}, {"x": np.zeros(5)}], stages.preprocess_padding)

    assert batch["x"].shape == (2, length)


def test_a_module_class_without_weights_is_a_handler(model_dir: Path, load: Callable[..., "Model"]) -> None:
    (model_dir / "handler.py").write_text(
        "import torch\n" + HANDLER.replace("class Scale:", "class Scale(torch.nn.Module):")
    )

    assert load(model_dir).platform == "shoal_handler"


def test_an_empty_directory_is_reported_with_what_is_missing(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    with pytest.raises(LoadError, match=r"is empty: expected a \.pt2,.* or handler\.py"):
        load(tmp_path)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(LoadError, match=r"holds no \.pt2, \.safetensors, \.pt, .* or handler\.py.*`file`"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("saved_model.pb", "export it as ONNX with tf2onnx"),
        ("digits.H5", "NAME.keras"),
        ("tiny.gguf", "token by token"),
        ("cat.cbm", "CatBoost: .*save_model"),
    ],
)
def test_a_file_of_a_format_that_is_not_served_is_reported_with_a_remedy(
    name: str, words: str, tmp_path: Path, load: Callable[..., "Model"]
) -> None:
    (tmp_path / name).touch()

    with pytest.raises(LoadError, match=f"{name} is .*{words}"):
        load(tmp_path)


def test_a_named_file_of_an_unknown_kind_needs_a_format(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    (tmp_path / "weights.bin").touch()
    (tmp_path / "model.toml").write_text('file = "weights.bin"')

    with pytest.raises(LoadError, match=r"^weights\.bin is not a .*SHOAL_MODEL_FORMAT"):
        load(tmp_path)


def test_two_kinds_of_files_need_a_choice(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    (tmp_path / "a.pt2").write_bytes(b"")
    (tmp_path / "a.pt").write_bytes(b"")

    with pytest.raises(LoadError, match=r"TorchExport and TorchScript\. Set SHOAL_MODEL_FORMAT"):
        load(tmp_path)


def test_two_files_of_a_kind_need_a_name(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    (tmp_path / "a.pt2").write_bytes(b"")
    (tmp_path / "b.pt2").write_bytes(b"")

    with pytest.raises(LoadError, match=r"found: a\.pt2, b\.pt2.*`file` in model\.toml"):
        load(tmp_path)


def test_a_named_file_must_be_there(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    (tmp_path / "model.toml").write_text('file = "c.pt2"')

    with pytest.raises(LoadError, match=r"there is no file .*c\.pt2"):
        load(tmp_path)


def test_a_directory_s_name_may_be_no_model_name(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    made = tmp_path / "my model"
    made.mkdir()
    (made / "handler.py").write_text(HANDLER)

    with pytest.raises(LoadError, match=r"'my model' cannot be a model's name.*SHOAL_MODEL_NAME"):
        load(made)


def exported(path: Path) -> Path:
    torch.export.save(torch.export.export(torch.nn.Linear(2, 1), (torch.ones(2, 2),)), path)
    return path


def booby_trap(directory: Path) -> Path:
    """Write a handler.py that leaves a trace when it is imported; return the trace."""
    (directory / "handler.py").write_text(f"import os\nos.mkdir({str(directory / 'imported')!r})\n" + HANDLER)
    return directory / "imported"


@pytest.mark.parametrize("toml", ["", 'handler = "handler.py:Scale"\n'])
def test_code_beside_a_program_is_not_imported_where_the_format_is_named(
    tmp_path: Path, load: Callable[..., "Model"], toml: str
) -> None:
    exported(tmp_path / "model.pt2")
    (tmp_path / "model.toml").write_text(toml)
    imported = booby_trap(tmp_path)

    assert load(tmp_path, format=ModelFormat.TORCH_EXPORT).platform == "pytorch_export"
    assert load(tmp_path / "model.pt2").platform == "pytorch_export"

    assert not imported.exists()


def test_code_beside_a_program_is_not_imported_where_model_toml_names_the_format(
    tmp_path: Path, load: Callable[..., "Model"]
) -> None:
    exported(tmp_path / "model.pt2")
    (tmp_path / "model.toml").write_text('format = "TorchExport"\n')
    imported = booby_trap(tmp_path)

    assert load(tmp_path).platform == "pytorch_export"

    assert not imported.exists()


@pytest.mark.parametrize("model_format", [ModelFormat.TORCH_SCRIPT, ModelFormat.SAFETENSORS])
def test_code_beside_weights_is_not_imported_before_a_user_names_it(
    tmp_path: Path, load: Callable[..., "Model"], model_format: ModelFormat
) -> None:
    save_file({"weight": torch.ones(1)}, tmp_path / "model.safetensors")
    torch.save({"weight": torch.ones(1)}, tmp_path / "model.pt")
    imported = booby_trap(tmp_path)

    with pytest.raises(LoadError, match=r"SHOAL_MODEL_(HANDLER|ALLOW_PICKLE)"):
        load(tmp_path, format=model_format)

    assert not imported.exists()


def test_code_that_the_user_names_is_imported_whatever_the_format(tmp_path: Path, load: Callable[..., "Model"]) -> None:
    exported(tmp_path / "model.pt2")
    imported = booby_trap(tmp_path)

    load(tmp_path, format=ModelFormat.TORCH_EXPORT, handler="handler.py:Scale")

    assert imported.exists()


@pytest.mark.parametrize("file", ["../model.pt2", "/etc/model.pt2", "a/../../model.pt2"])
def test_model_toml_names_files_of_its_own_directory_only(
    tmp_path: Path, load: Callable[..., "Model"], file: str
) -> None:
    (tmp_path / "model").mkdir()
    exported(tmp_path / "model.pt2")
    (tmp_path / "model" / "model.toml").write_text(f'file = "{file}"')

    with pytest.raises(LoadError, match="must be a file in the model's directory"):
        load(tmp_path / "model")


@pytest.mark.parametrize("where", ["../evil.py:Scale", "/tmp/evil.py", "code/../../evil.py"])
def test_model_toml_names_handlers_of_its_own_directory_only(
    tmp_path: Path, model_dir: Path, load: Callable[..., "Model"], where: str
) -> None:
    (tmp_path / "evil.py").write_text(HANDLER)
    (model_dir / "model.toml").write_text(f'handler = "{where}"')

    with pytest.raises(LoadError, match="handler must be a file in the model's directory, not"):
        load(model_dir)


@pytest.mark.parametrize(
    ("datatype", "shape", "size"), [("FP32", [-1, 10**12], 4 * 10**12), ("BYTES", [-1, -1, 10**9], 4 * 10**9)]
)
def test_a_shape_that_no_request_can_have_is_reported_as_such_and_not_as_missing_memory(
    model_dir: Path, load: Callable[..., "Model"], datatype: str, shape: list[int], size: int
) -> None:
    (model_dir / "model.toml").write_text(f'[[inputs]]\nname = "x"\ndatatype = "{datatype}"\nshape = {shape}\n')

    with pytest.raises(LoadError, match=rf"input x: a row of shape .* has {size} bytes, more than a request may"):
        load(model_dir)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forward_may_be_compiled(tmp_path: Path, model_dir: Path, load: Callable[..., "Model"]) -> None:
    model = load(model_dir, compile=True)

    # Running it would compile for half a minute.
    assert model.stages.forward is not model.handler.forward
    assert callable(model.stages.forward)
    # Torch finds the code of an earlier process for the same model there.
    [directory] = (tmp_path / "cache" / "compiled").iterdir()
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(directory)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_directory_of_compiled_code_that_the_user_set_is_used(
    tmp_path: Path, model_dir: Path, load: Callable[..., "Model"], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "own"))

    load(model_dir, compile=True)

    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "own")
    assert not (tmp_path / "cache" / "compiled").exists()


def test_a_handler_cannot_unpickle_indirectly(model_dir: Path, load: Callable[..., "Model"]) -> None:
    torch.save({"not": model_dir}, model_dir / "weights.pth")
    (model_dir / "handler.py").write_text(
        "import torch\n"
        + HANDLER.replace(
            "        self.factor =",
            "        torch.load(context.model_dir / 'weights.pth', weights_only=False)\n        self.factor =",
        )
    )

    with pytest.raises(HandlerFailed, match="SHOAL_MODEL_ALLOW_PICKLE"):
        load(model_dir)
    assert load(model_dir, allow_pickle=True).name == "scale"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_rejected() -> None:
    assert choose_device("auto").type == "cpu"
    with pytest.raises(LoadError, match="torch finds no CUDA device"):
        choose_device("cuda")


@pytest.mark.parametrize("name", ["model.skops", "m.ubj", "model-00001-of-00002.safetensors", "handler.py", "MLmodel"])
def test_a_link_that_leads_nowhere_is_named_with_its_target(
    name: str, tmp_path: Path, load: Callable[..., "Model"]
) -> None:
    (tmp_path / "served" / "data").mkdir(parents=True)
    (tmp_path / "served" / name).symlink_to("../blobs/AAA")

    for path in (tmp_path / "served", tmp_path / "served" / name):
        with pytest.raises(LoadError, match=r"is a link to \.\./blobs/AAA, .*cp -rL"):
            load(path)


@pytest.mark.parametrize(("shape", "warned"), [("[4]", True), ("[-1, 4]", False), ("[1, 4]", False)])
def test_a_first_dimension_that_probably_counts_no_rows_is_a_warning(
    model_dir: Path, load: Callable[..., "Model"], caplog: pytest.LogCaptureFixture, shape: str, warned: bool
) -> None:
    (model_dir / "handler.py").write_text(HANDLER.replace("[-1]", shape))

    load(model_dir)

    assert ("Did you mean [-1, 4]?" in caplog.text) == warned
