from pathlib import Path

import pytest

from shoal_local.kubelet.images import BadTableError
from shoal_local.kubelet.machine import Images
from shoal_local.kubelet.records import Models


def files(images: Images) -> dict[str, str]:
    return dict(images.table()["shoal/runtime"].files or {})


def test_running_kubelet_loads_an_added_model(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    running = Images(tmp_path / "images.yaml", Models(tmp_path))
    assert files(running) == {}

    Models(tmp_path).add({"a": str(first)})
    Models(tmp_path).add({"b": str(second)})
    assert files(running) == {"/models/a": str(first), "/models/b": str(second)}

    Models(tmp_path).add({"a": str(second)})
    assert files(running)["/models/a"] == str(second)


def test_a_folder_that_has_gone_takes_no_other_model_along(tmp_path: Path) -> None:
    Models(tmp_path).add({"gone": str(tmp_path / "gone"), "here": str(tmp_path)})

    assert Models(tmp_path).directories() == {"here": str(tmp_path)}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("web:\n  command: [a\nother: {}\n", "images.yaml, line 3: ", id="no YAML"),
        pytest.param("web: {command: [a]}\ncat: program\n", "images.yaml, line 2: image 'cat'", id="a broken entry"),
        pytest.param("web: {env: [a]}\n", "line 1: image 'web': Expected `object | null`", id="a list for a mapping"),
        pytest.param("- web\n", "images.yaml, line 1: expected a mapping", id="a list of images"),
        pytest.param('a: "\x01"\n', "images.yaml: ", id="no text"),
    ],
)
def test_a_broken_table_is_told_with_file_and_line(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "images.yaml"
    file.write_text(text)

    with pytest.raises(BadTableError) as raised:
        Images(file, Models(tmp_path)).table()

    assert words in str(raised.value)
    assert "Traceback" not in str(raised.value)
    file.write_text("# nothing\n")
    assert "shoal/proxy" in Images(file, Models(tmp_path)).table()
