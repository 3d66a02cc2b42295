"""The arguments of `shoal local`."""

from pathlib import Path

import pytest

from shoal_local.command_line import run


def test_an_unknown_option_is_told_with_the_usage_of_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["up", "--bogus"])

    error = capsys.readouterr().err
    assert error.startswith("usage: shoal local up [-h]")
    assert error.endswith("shoal local up: error: unrecognized arguments: --bogus\n")


def test_an_unknown_option_is_told_where_no_command_stands_yet(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(["--bogus"])

    assert capsys.readouterr().err.endswith("shoal local: error: unrecognized arguments: --bogus\n")


@pytest.mark.parametrize("wrong", [["--model", "nope=/no/such"], ["--capacity", "gpu"]])
def test_errors_are_a_line_that_begins_as_those_of_other_commands(
    wrong: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["up", "--dir", str(tmp_path), *wrong]) == 2

    error = capsys.readouterr().err
    assert error.startswith(f"shoal: {wrong[0]} ")
    assert error.count("\n") == 1
