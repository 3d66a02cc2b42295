from pathlib import Path
from typing import Any

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.formats.model_config import MAX_BYTES, ModelConfig, parse_config, read_config
from shoal_schema.resource.model import ModelFormat


def test_a_directory_without_model_toml_has_no_effect(tmp_path: Path) -> None:
    assert read_config(tmp_path) == ModelConfig()


def test_every_key_is_read(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_text(
        """
        name = "adder"
        format = "Handler"
        handler = "handler.py:Adder"
        file = "model.pt2"
        [parameters]
        baseMicroseconds = 5
        [[inputs]]
        name = "x"
        datatype = "FP32"
        shape = [-1, 16]
        pad_axis = 1
        pad_buckets = [8, 16]
        [[outputs]]
        name = "y"
        datatype = "FP32"
        shape = [-1]
        """
    )

    config = read_config(tmp_path)

    assert (config.name, config.format, config.file) == ("adder", ModelFormat.HANDLER, "model.pt2")
    assert config.handler == "handler.py:Adder"
    assert config.parameters == {"baseMicroseconds": 5}
    assert config.inputs[0].pad_buckets == (8, 16)
    assert config.outputs[0].shape == (-1,)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"handlr": "x"}, "handlr is not a key. The keys are name, format"),
        ({"name": 5}, "name must be a string"),
        ({"name": "../../x"}, "name must be letters, digits, .*, not '../../x'"),
        ({"name": ""}, "name must be letters, digits"),
        ({"file": "../x.pt2"}, "file must be a file in the model's directory, not '../x.pt2'"),
        ({"handler": "/x.py:A"}, "handler must be a file in the model's directory, not '/x.py'"),
        ({"format": "TensorFlow"}, "format 'TensorFlow' is not one of Auto"),
        ({"parameters": 5}, "parameters must be a table"),
        ({"inputs": 5}, r"must be \[\[inputs\]\] tables"),
        ({"inputs": [{"name": "x"}]}, r"\[\[inputs\]\]: .*missing"),
        ({"outputs": [{"name": "x", "datatype": "F", "shape": [-1]}]}, "'F' is not one of"),
        ({"outputs": [{"name": "x", "datatype": "FP32", "shape": 5}]}, r"\[\[outputs\]\]"),
    ],
)
def test_a_mistake_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        parse_config(document)


def test_a_model_toml_without_an_end_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.toml").write_bytes(b"#" * (MAX_BYTES + 1))

    with pytest.raises(LoadError, match=r"model\.toml is over 1048576 bytes"):
        read_config(tmp_path)


@pytest.mark.parametrize("content", [b"name = ", b"\xff\xfe", b"x = " + b"[" * 100_000, b"x = " + b"9" * 5000])
def test_invalid_toml_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "model.toml").write_bytes(content)

    with pytest.raises(LoadError, match=r"model\.toml cannot be read"):
        read_config(tmp_path)


def test_a_model_toml_that_is_no_regular_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "model.toml").symlink_to("/dev/zero")

    with pytest.raises(LoadError, match="not a regular file"):
        read_config(tmp_path)
