"""Types of options of the command line, whose errors are sentences: ``--port: must be 0 to 65535, not x``."""

import math
from argparse import Action, ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Any, TypeVar

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)
_OPTION = "O"
"""How argparse writes an option in the pattern of the arguments; A is any other."""


class CommandParser(ArgumentParser):
    """A parser that takes options and arguments in any order, and tells of an unknown option itself.

    argparse leaves that to the parser of all commands, and misses what is required before it does.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; refuse what is unknown with the usage of the command that it was given to, before what is missing."""
        with self._nothing_required():
            _, rest = super().parse_known_args(args)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return super().parse_known_args(args, namespace)

    @contextmanager
    def _nothing_required(self) -> Iterator[None]:
        rules: list[Any] = [*self._actions, *self._mutually_exclusive_groups]
        demanding = [each for each in rules if each.required]
        for each in demanding:
            each.required = False
        try:
            yield
        finally:
            for each in demanding:
                each.required = True

    def _match_arguments_partial(self, actions: Sequence[Action], arg_strings_pattern: str) -> list[int]:
        # argparse of Python 3.11 gives an optional argument nothing as soon as an option comes ("URL --json FILE",
        # bpo-15112), and has no place left for the FILE after it.
        counts = super()._match_arguments_partial(actions, arg_strings_pattern)
        while counts and not counts[-1] and _OPTION in arg_strings_pattern[sum(counts) :]:
            counts.pop()
        return counts


def integer(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """Return the type of a whole number within bounds, if there are any."""
    allowed = "a whole number" if least is None else f"a whole number of at least {least}"
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    return _checked(int, lambda value: low <= value <= high, allowed if most is None else f"{least} to {most}")


def number(above: float, most: float, unit: str = "") -> Callable[[str], float]:
    """Return the type of a number within bounds."""
    return _checked(float, lambda value: above < value <= most, f"above {above} and at most {most}{unit}")


def share() -> Callable[[str], float]:
    """Return the type of a share, 0 to 1."""
    return _checked(float, lambda value: 0 <= value <= 1, "a share of 0 to 1")


def numbers(count: int, *, least: float = 1e-9) -> Callable[[str], tuple[float, ...]]:
    """Return the type of so many finite numbers, separated by commas."""
    one = "a positive number" if least > 0 else f"a number of at least {least:g}"
    return _checked(
        lambda text: tuple([float(part) for part in text.split(",")]),
        lambda values: len(values) == count and all(least <= value < math.inf for value in values),
        one if count == 1 else f"{count} positive numbers, comma-separated",
    )


def choice(kind: type[Choice]) -> Callable[[str], Choice]:
    """Return the type of one word among several."""
    return _checked(kind, lambda _: True, f"one of {', '.join(kind)}")


def _checked(parse: Callable[[str], Value], fits: Callable[[Value], bool], allowed: str) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        try:
            if fits(value := parse(text)):
                return value
        except ValueError:
            pass
        raise ArgumentTypeError(f"must be {allowed}, not {text}")

    return read
