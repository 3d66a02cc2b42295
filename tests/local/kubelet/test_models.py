from pathlib import Path

from shoal_local.kubelet.machine import RUNTIME_IMAGE, Images
from shoal_local.kubelet.records import Models


def files(images: Images) -> dict[str, str]:
    return dict(images.table()[RUNTIME_IMAGE].files)


def test_a_kubelet_that_runs_learns_of_a_model_that_is_added(tmp_path: Path) -> None:
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

    assert Models(tmp_path).folders() == {"here": str(tmp_path)}
