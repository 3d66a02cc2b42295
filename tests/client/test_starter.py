from pathlib import Path

import pytest

from shoal import starter
from shoal.__main__ import main
from shoal.arguments import TEMPLATES

FOLDERS = {path.name for path in starter.TEMPLATES.iterdir() if path.name != "__pycache__"}


def test_every_template_that_can_be_named_is_there() -> None:
    assert set(TEMPLATES) == FOLDERS == set(starter.NEEDS) == set(starter.EXTRAS)


def test_a_template_is_written_as_it_lies_in_the_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "words"

    assert main(["init", str(folder), "--from", "handler"]) == 0

    assert sorted(file.name for file in folder.iterdir()) == ["handler.py", "words.py"]
    for file in folder.iterdir():
        assert file.read_text() == (starter.TEMPLATES / "handler" / file.name).read_text()
    printed = capsys.readouterr().out
    assert f"wrote {folder / 'handler.py'}\n" in printed
    assert printed.endswith(f"serve it:\n  shoal serve {folder}\n")


@pytest.mark.parametrize(
    ("name", "words"),
    [("there", "already exists"), ("a fish", "a model's name must be letters, digits")],
)
def test_a_folder_that_cannot_be_made_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    (tmp_path / "there").mkdir()

    assert main(["init", str(tmp_path / name), "--from", "handler"]) == 2

    assert words in capsys.readouterr().err


def test_what_a_template_needs_is_named_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(starter.NEEDS, "sklearn", ("numpy", "no_such_package"))

    assert main(["init", str(tmp_path / "irises"), "--from", "sklearn"]) == 1

    error = capsys.readouterr().err
    assert "no_such_package" in error
    assert error.endswith('pip install "shoal[serve-light,sklearn]"\n')
    assert list(tmp_path.iterdir()) == []


def test_a_script_that_fails_is_said_with_what_to_do(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    templates = tmp_path / "templates"
    (templates / "torch").mkdir(parents=True)
    (templates / "torch" / "train.py").write_text("raise ValueError('no data')\n")
    monkeypatch.setattr(starter, "TEMPLATES", templates)
    folder = tmp_path / "circle"

    assert main(["init", str(folder), "--from", "torch"]) == 1

    printed = capfd.readouterr().err
    assert "ValueError: no data" in printed
    assert printed.endswith(f"python {folder}/train.py\n")
