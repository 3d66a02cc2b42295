"""Types of options of the command line, whose errors are sentences: ``--port: must be 0 to 65535, not x``."""

import math
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from enum import StrEnum
from typing import Any, TypeVar

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)


class CommandParser(ArgumentParser):
    """A parser that tells of an unknown option itself; argparse leaves that to the parser of all commands."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and refuse the rest with the usage of the command that it was given to."""
        options, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return options, rest


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
