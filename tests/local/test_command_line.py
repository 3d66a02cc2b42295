"""The arguments of `shoal local`."""

from pathlib import Path

import pytest

from shoal_local.command_line import command
from shoal_schema.process.arguments import run_arguments


def test_an_unknown_option_is_told_with_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_arguments(command, "shoal local", ["up", "--bogus"]) == 2

    error = capsys.readouterr().err
    assert error.startswith("Usage: shoal local up [OPTIONS]")
    assert "--bogus" in error.splitlines()[-1]


def test_an_unknown_option_is_told_where_no_command_stands_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_arguments(command, "shoal local", ["--bogus"]) == 2

    assert "--bogus" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("wrong", [["--model", "nope=/no/such"], ["--capacity", "gpu"]])
def test_errors_are_a_line_that_begins_as_those_of_other_commands(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_arguments(command, "shoal local", ["up", "--dir", str(tmp_path), *wrong]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"shoal: {wrong[0]} ")
    assert error.count("\n") == 1


def test_a_model_file_is_told_to_be_moved_into_a_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "flowers.skops"
    file.touch()

    assert run_arguments(command, "shoal local", ["up", "--dir", str(tmp_path), "--model", f"flowers={file}"]) == 2

    assert "mkdir -p models/flowers" in capsys.readouterr().err
