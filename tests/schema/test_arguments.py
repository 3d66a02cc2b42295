"""What options of the commands take, and the sentence for what they do not."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from itertools import permutations

import pytest

from shoal_schema.process.arguments import CommandParser, at_least, choice, integer, number, numbers, positive, share
from shoal_schema.resource.traffic import BatchingPolicy


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (integer(), "-3", -3),
        (integer(1), "1", 1),
        (integer(0, 65535), "65535", 65535),
        (number(0, 60), "60", 60.0),
        (share(), "0", 0.0),
        (share(), "1", 1.0),
        (numbers(2), "1,0.5", (1.0, 0.5)),
        (positive(), "0.5", 0.5),
        (at_least(0), "0", 0.0),
        (at_least(2), "2", 2.0),
        (integer(1), "1" + "0" * 30, 10**30),
        (integer(0, 65535), "0", 0),
        (choice(BatchingPolicy), "Fixed", BatchingPolicy.FIXED),
        (choice(BatchingPolicy), "fixed", BatchingPolicy.FIXED),
        (choice(BatchingPolicy), "NONE", BatchingPolicy.NONE),
    ],
)
def test_what_fits_is_accepted(kind: Callable[[str], object], text: str, value: object) -> None:
    assert kind(text) == value


@pytest.mark.parametrize(
    ("kind", "text", "allowed"),
    [
        (integer(), "x", "a whole number"),
        (integer(1), "0", "a whole number of at least 1"),
        (integer(0, 65535), "65536", "0 to 65535"),
        (number(0, 60, " s"), "0", "above 0 and at most 60 s"),
        (number(0, 60), "60.1", "above 0 and at most 60"),
        (share(), "nan", "a share of 0 to 1"),
        (share(), "1.01", "a share of 0 to 1"),
        (positive(), "0", "a positive number"),
        (positive(), "inf", "a positive number"),
        (positive(), "1,2", "a positive number"),
        (at_least(0), "-1", "a number of at least 0"),
        (at_least(0), "nan", "a number of at least 0"),
        (at_least(2), "inf", "a number of at least 2"),
        (numbers(2), "1", "2 positive numbers, comma-separated"),
        (numbers(2), "1,-1", "2 positive numbers, comma-separated"),
        (numbers(2), "nan,1", "2 positive numbers, comma-separated"),
        (numbers(2), "1,2,3", "2 positive numbers, comma-separated"),
        (at_least(2), "1.9", "a number of at least 2"),
        (choice(BatchingPolicy), "fix", "one of Adaptive, Fixed, None"),
    ],
)
def test_the_error_states_what_would_work(kind: Callable[[str], object], text: str, allowed: str) -> None:
    with pytest.raises(ArgumentTypeError) as raised:
        kind(text)
    assert str(raised.value) == f"must be {allowed}, not {text}"


def parser() -> CommandParser:
    """Return one as `shoal predict` has it: an argument that an option may stand in for."""
    made = CommandParser("ask")
    made.add_argument("url")
    item = made.add_mutually_exclusive_group(required=True)
    item.add_argument("file", nargs="?")
    item.add_argument("--text")
    made.add_argument("--json", action="store_true")
    limit = made.add_argument("--timeout", type=float, default=30.0)
    made.only(limit, lambda given: given.file != "-", "standard input has no end")
    return made


@pytest.mark.parametrize("given", list(permutations([("URL",), ("FILE",), ("--json",), ("--timeout", "5")])))
def test_options_and_arguments_come_in_any_order(given: tuple[tuple[str, ...], ...]) -> None:
    first, second = [each[0] for each in given if each[0] in {"URL", "FILE"}]

    options = parser().parse_args([word for each in given for word in each])

    assert (options.url, options.file, options.json, options.timeout) == (first, second, True, 5.0)


def test_a_substitute_for_an_argument_is_accepted_and_both_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser().parse_args(["URL", "--text", "a", "--json"]).file is None
    assert parser().parse_args(["URL", "--json", "--", "-x"]).file == "-x"
    for given in (["URL", "FILE", "--text", "a"], ["URL", "--text", "a", "FILE"]):
        with pytest.raises(SystemExit):
            parser().parse_args(given)
        assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        (["--bogus"], "unrecognized arguments: --bogus"),
        (["URL", "--bogus"], "unrecognized arguments: --bogus"),
        (["URL", "--bogus", "FILE"], "unrecognized arguments: --bogus"),
        (["URL", "FILE", "more"], "unrecognized arguments: more"),
        (["URL", "FILE", "--jsno"], "unrecognized arguments: --jsno; did you mean --json?"),
        (["URL", "--text", "a", "--timeuot", "5"], "unrecognized arguments: --timeuot; did you mean --timeout?"),
        (["URL", "--timeouts=5"], "unrecognized arguments: --timeouts=5; did you mean --timeout?"),
        (["URL", "--json"], "one of the arguments file --text is required"),
        ([], "the following arguments are required: url"),
    ],
)
def test_what_is_unknown_is_reported_before_what_is_missing(
    given: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(given)

    assert capsys.readouterr().err.splitlines()[-1] == f"ask: error: {wrong}"


def test_the_value_of_an_unknown_option_is_not_mistaken_for_something_else(capsys: pytest.CaptureFixture[str]) -> None:
    # Not "argument file: not allowed with argument --text".
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["URL", "--text", "a", "--txt", "b"])
    assert "unrecognized arguments: --txt; did you mean --text?" in capsys.readouterr().err


def test_beginnings_of_names_and_values_that_resemble_names_are_accepted() -> None:
    assert parser().parse_args(["URL", "--te", "--more than --this", "--time", "5"]).text == "--more than --this"
    assert parser().parse_args(["URL", "--", "--no-option"]).file == "--no-option"


def test_an_unknown_option_of_a_command_is_reported_by_that_command(capsys: pytest.CaptureFixture[str]) -> None:
    program = CommandParser("program")
    program.add_argument("--version", action="store_true")
    commands = program.add_subparsers(dest="command", required=True)
    commands.add_parser("ask").add_argument("--json", action="store_true")
    assert program.parse_args(["--version", "ask", "--json"]).json
    for given, wrong in (
        (["ask", "--jsn"], "program ask: error: unrecognized arguments: --jsn; did you mean --json?"),
        (["--verison", "ask"], "program: error: unrecognized arguments: --verison; did you mean --version?"),
    ):
        with pytest.raises(SystemExit, match="2"):
            program.parse_args(given)
        assert capsys.readouterr().err.splitlines()[-1] == wrong


def test_an_option_that_does_nothing_beside_the_others_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert parser().parse_args(["URL", "FILE", "--timeout", "5"]).timeout == 5
    assert parser().parse_args(["URL", "-"]).timeout == 30
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(["URL", "-", "--timeout", "5"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert "--timeout: has no effect" in last
