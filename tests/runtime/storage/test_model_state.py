"""State of a model's files, by which instances recognize a changed model."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from shoal_runtime.errors import LoadError
from shoal_runtime.storage.fetching import ModelFiles
from shoal_runtime.storage.model_state import READ_BYTES, check_same, check_unchanged, model_state, state_digest


@pytest.fixture
def model(tmp_path: Path) -> ModelFiles:
    directory = tmp_path / "model"
    (directory / "parts").mkdir(parents=True)
    (directory / "handler.py").write_text("x = 1")
    (directory / "parts" / "weights.bin").write_bytes(b"w")
    with (directory / "large.bin").open("wb") as large:
        large.truncate(READ_BYTES + 1)
    return ModelFiles(directory, "model")


def digest(files: ModelFiles) -> str:
    return state_digest(model_state(files, files.directory.parent / "cache"))


def rewrite(directory: Path) -> None:
    """Change content without a change of size and time."""
    path = directory / "handler.py"
    times = path.stat()
    path.write_text("x = 2")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(rewrite, id="content"),
        pytest.param(lambda directory: (directory / "parts" / "weights.bin").write_bytes(b"v"), id="below"),
        pytest.param(lambda directory: os.utime(directory / "large.bin", (1, 1)), id="time of a large file"),
        pytest.param(lambda directory: os.truncate(directory / "large.bin", READ_BYTES + 2), id="size"),
        pytest.param(lambda directory: (directory / "model.toml").touch(), id="a new file"),
        pytest.param(lambda directory: (directory / "handler.py").unlink(), id="removed"),
    ],
)
def test_a_changed_model_has_another_digest(model: ModelFiles, change: Callable[[Path], object]) -> None:
    before = digest(model)

    change(model.directory)

    assert digest(model) != before


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda directory: (directory / "__pycache__").mkdir(), id="nothing"),
        pytest.param(lambda directory: (directory / ".lock").touch(), id="hidden"),
        pytest.param(lambda directory: os.utime(directory / "handler.py", (1, 1)), id="time of a small file"),
        pytest.param(lambda directory: (directory / "gone").symlink_to("nowhere"), id="a broken link"),
    ],
)
def test_an_unchanged_model_has_the_same_digest(model: ModelFiles, change: Callable[[Path], object]) -> None:
    before = digest(model)

    change(model.directory)

    assert digest(model) == before


def test_of_a_named_file_its_own_parts_and_the_modules_beside_it_count(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"graph")
    files = ModelFiles(tmp_path, "net", "net.onnx")
    seen = [digest(files)]
    for name in ("net.onnx.data", "handler.py", "model.toml"):
        (tmp_path / name).write_text("x")
        seen.append(digest(files))
    (tmp_path / "other.onnx").write_bytes(b"another model")

    assert len(set(seen)) == 4
    assert digest(files) == seen[-1]


def test_a_model_of_the_cache_is_known_by_its_content(tmp_path: Path) -> None:
    cached = tmp_path / "0abc" / "model"
    cached.mkdir(parents=True)
    (cached / "weights.bin").write_bytes(b"w")
    before = model_state(ModelFiles(cached, "m"), tmp_path)
    os.utime(cached / "weights.bin", (1, 1))

    assert model_state(ModelFiles(cached, "m"), tmp_path) == before
    assert model_state(ModelFiles(tmp_path / "1abc", "m"), tmp_path) != before


def test_a_model_is_the_same_if_its_digest_is_the_expected_one() -> None:
    state = {"handler.py": "1"}

    check_same(state, None)
    check_same(state, state_digest(state))
    with pytest.raises(LoadError, match="have changed"):
        check_same({"handler.py": "2"}, state_digest(state))


def test_a_file_that_changed_while_the_model_was_loaded_is_named() -> None:
    check_unchanged({"a": "1"}, {"a": "1", "written by the model": "2"})
    for after in ({"a": "2"}, {}):
        with pytest.raises(LoadError, match=r"^a changed"):
            check_unchanged({"a": "1"}, after)
