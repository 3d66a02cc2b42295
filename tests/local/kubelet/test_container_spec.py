"""Packages of the machine in containers, and volumes that would hide them."""

from pathlib import Path

from shoal_local.kubelet.container_spec import hidden_paths


def test_a_volume_over_a_clone_hides_nothing_that_its_interpreter_imports(tmp_path: Path) -> None:
    clone = tmp_path / "shoal"
    needed = [str(clone / ".venv"), "/usr", str(clone / ".venv/lib/site-packages"), str(clone / "runtime")]
    assert hidden_paths(needed, [str(tmp_path)]) == [str(clone / ".venv"), str(clone / "runtime")]


def test_a_volume_beside_the_packages_shows_nothing_more(tmp_path: Path) -> None:
    assert hidden_paths([str(tmp_path / "shoal")], [str(tmp_path / "sho"), "/models"]) == []


def test_packages_behind_a_link_are_shown_where_they_are(tmp_path: Path) -> None:
    (tmp_path / "disk/shoal").mkdir(parents=True)
    (tmp_path / "home").symlink_to(tmp_path / "disk")
    assert hidden_paths([str(tmp_path / "home/shoal")], [str(tmp_path / "disk")]) == [str(tmp_path / "disk/shoal")]
