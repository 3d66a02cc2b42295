"""What options of the commands take, and the sentence for what they do not."""

from argparse import ArgumentTypeError
from collections.abc import Callable
from itertools import permutations

import pytest

from shoal_schema.arguments import CommandParser, choice, integer, number, numbers, share
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
        (numbers(1, least=0.0), "0", (0.0,)),
        (numbers(1, least=2.0), "2", (2.0,)),
        (integer(1), "1" + "0" * 30, 10**30),
        (integer(0, 65535), "0", 0),
        (choice(BatchingPolicy), "Fixed", BatchingPolicy.FIXED),
    ],
)
def test_what_fits_is_taken(kind: Callable[[str], object], text: str, value: object) -> None:
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
        (numbers(1), "0", "a positive number"),
        (numbers(1, least=0.0), "-1", "a number of at least 0"),
        (numbers(1), "inf", "a positive number"),
        (numbers(2), "1", "2 positive numbers, comma-separated"),
        (numbers(2), "1,-1", "2 positive numbers, comma-separated"),
        (numbers(2), "nan,1", "2 positive numbers, comma-separated"),
        (numbers(2), "1,2,3", "2 positive numbers, comma-separated"),
        (numbers(1, least=2.0), "1.9", "a positive number"),
        (choice(BatchingPolicy), "fixed", "one of Adaptive, Fixed, None"),
    ],
)
def test_what_does_not_is_told_what_would(kind: Callable[[str], object], text: str, allowed: str) -> None:
    with pytest.raises(ArgumentTypeError) as told:
        kind(text)
    assert str(told.value) == f"must be {allowed}, not {text}"


def parser() -> CommandParser:
    """Return one as `shoal predict` has it: an argument that an option may stand in for."""
    made = CommandParser("ask")
    made.add_argument("url")
    item = made.add_mutually_exclusive_group(required=True)
    item.add_argument("file", nargs="?")
    item.add_argument("--text")
    made.add_argument("--json", action="store_true")
    made.add_argument("--timeout", type=float, default=30.0)
    return made


@pytest.mark.parametrize("given", list(permutations([("URL",), ("FILE",), ("--json",), ("--timeout", "5")])))
def test_options_and_arguments_come_in_any_order(given: tuple[tuple[str, ...], ...]) -> None:
    first, second = [each[0] for each in given if each[0] in {"URL", "FILE"}]

    options = parser().parse_args([word for each in given for word in each])

    assert (options.url, options.file, options.json, options.timeout) == (first, second, True, 5.0)


def test_what_stands_in_for_an_argument_is_taken_and_both_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
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
        (["URL", "--json"], "one of the arguments file --text is required"),
        ([], "the following arguments are required: url"),
    ],
)
def test_what_is_unknown_is_told_before_what_is_missing(
    given: list[str], wrong: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        parser().parse_args(given)

    assert capsys.readouterr().err.splitlines()[-1] == f"ask: error: {wrong}"
