"""What options of the commands take, and the exit status and the sentence for what they do not."""

from itertools import permutations
from types import SimpleNamespace
from typing import Any

import click
import pytest

from shoal_schema.process.arguments import (
    NOT_NEGATIVE,
    POSITIVE,
    SHARE,
    Command,
    Number,
    Words,
    at_most_one,
    exactly_one,
    only,
    run_arguments,
    together,
)
from shoal_schema.resource.traffic import BatchingPolicy

POLICY = Words(BatchingPolicy)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (Number(0, 60), "60", 60.0),
        (SHARE, "0", 0.0),
        (SHARE, "1", 1.0),
        (POSITIVE, "0.5", 0.5),
        (NOT_NEGATIVE, "0", 0.0),
        (POLICY, "Fixed", BatchingPolicy.FIXED),
        (POLICY, "fixed", BatchingPolicy.FIXED),
        (POLICY, "NONE", BatchingPolicy.NONE),
    ],
)
def test_what_fits_is_accepted(kind: click.ParamType[Any], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "allowed"),
    [
        (Number(0, 60, min_open=True), "0", "0<x<=60"),
        (Number(0, 60), "60.1", "0<=x<=60"),
        (SHARE, "nan", "not a finite number"),
        (SHARE, "1.01", "0<=x<=1"),
        (POSITIVE, "0", "x>0"),
        (POSITIVE, "inf", "not a finite number"),
        (POSITIVE, "1,2", "1,2"),
        (NOT_NEGATIVE, "-1", "x>=0"),
        (POLICY, "fix", "'Adaptive', 'Fixed', 'None'"),
    ],
)
def test_the_error_states_what_would_work(kind: click.ParamType[Any], text: str, allowed: str) -> None:
    with pytest.raises(click.BadParameter) as raised:
        kind(text)
    assert allowed in raised.value.message


LIMIT = only("timeout", lambda given: given.file != "-", "standard input has no end")
GIVEN = SimpleNamespace()


@click.command(cls=Command, rules=[exactly_one("file", "text"), at_most_one("json", "quiet"), LIMIT])
@together(click.argument("url"), click.argument("file", required=False), click.option("--text"))
@click.option("--json", is_flag=True)
@click.option("--quiet", is_flag=True)
@click.option("--timeout", type=float, default=30.0)
def ask(**options: Any) -> int:
    """Have an argument that an option may stand in for, as `shoal predict`."""
    GIVEN.__dict__.update(options)
    return 7


@pytest.mark.parametrize("given", list(permutations([("URL",), ("FILE",), ("--json",), ("--timeout", "5")])))
def test_options_and_arguments_come_in_any_order(given: tuple[tuple[str, ...], ...]) -> None:
    first, second = [each[0] for each in given if each[0] in {"URL", "FILE"}]

    assert run_arguments(ask, "ask", [word for each in given for word in each]) == 7
    assert (GIVEN.url, GIVEN.file, GIVEN.json, GIVEN.timeout) == (first, second, True, 5.0)


@pytest.mark.parametrize(
    "given",
    [
        ["URL", "--text", "a"],
        ["URL", "--", "-x"],
        ["URL", "-", "--quiet"],
        ["URL", "--text", "--more than --this"],
    ],
)
def test_the_commands_status_is_returned(given: list[str]) -> None:
    assert run_arguments(ask, "ask", given) == 7


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (["--bogus"], "No such option '--bogus'."),
        (["URL", "FILE", "more"], "Got unexpected extra argument (more)"),
        (["URL", "FILE", "--jsno"], "Did you mean '--json'?"),
        # Not a value that is not allowed with --text.
        (["URL", "--text", "a", "--txt", "b"], "Did you mean '--text'?"),
        (["URL", "--json"], "one of the arguments FILE, --text is required"),
        ([], "Missing argument 'URL'."),
        (["URL", "FILE", "--text", "a"], "--text: not allowed with argument FILE"),
        (["URL", "FILE", "--json", "--quiet"], "--quiet: not allowed with argument --json"),
        (["URL", "-", "--timeout", "5"], "--timeout: has no effect: standard input has no end"),
        # Also where the value is the default.
        (["URL", "-", "--timeout", "30"], "--timeout: has no effect: standard input has no end"),
    ],
)
def test_wrong_arguments_have_exit_status_2(given: list[str], wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_arguments(ask, "ask", given) == 2

    error = capsys.readouterr().err
    assert error.startswith("Usage: ask [OPTIONS] URL [FILE]\n")
    assert wrong in error.splitlines()[-1]


def test_help_has_exit_status_0_and_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_arguments(ask, "ask", ["-h"]) == 0
    assert "[default: 30.0]" in capsys.readouterr().out


def test_ctrl_c_and_closed_pipes_are_left_to_the_caller() -> None:
    for error in (KeyboardInterrupt(), BrokenPipeError()):

        @click.command()
        def command(error: BaseException = error) -> int:
            raise error

        with pytest.raises(type(error)):
            run_arguments(command, "command", [])
