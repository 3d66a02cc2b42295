"""Types of command-line options and a strict parser; errors read ``--port: must be 0 to 65535, not x``."""

import math
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)
_NEAR = 0.75
"""Similarity, 0 to 1, from which an unknown option is taken for a misspelt one."""
_OPTION = "O"
"""Letter of an option in argparse's pattern of arguments; A is any other argument."""


@dataclass(frozen=True, slots=True)
class _Use:
    """Condition under which an option has an effect.

    ``where`` returns whether the option has an effect; ``needs`` is the remedy in the error.
    """

    option: Action
    where: Callable[[Namespace], bool]
    needs: str

    def idle(self, options: Namespace) -> bool:
        """Return whether the option was given although it has no effect."""
        return getattr(options, self.option.dest) != self.option.default and not self.where(options)


class CommandParser(ArgumentParser):
    """A parser of options and arguments in any order that rejects unknown and ineffective options.

    argparse leaves unknown options to the parser of all commands and reports missing arguments first; by then it may
    have parsed an unknown option's value as an argument.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._uses: list[_Use] = []

    def only(self, option: Action, where: Callable[[Namespace], bool], needs: str) -> None:
        """Reject ``option`` where it has no effect.

        Args:
            option: the option.
            where: returns whether the option has an effect with the other options.
            needs: the remedy, at the end of the error message.
        """
        self._uses.append(_Use(option, where, needs))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse arguments; report unknown options with this command's usage, before missing arguments."""
        unknown = []
        for word in args or ():
            # The words after `--` are arguments, and those after a command belong to its parser.
            if word == "--" or (self._subparsers and not word.startswith("-")):
                break
            # As in argparse, a word with a space is a value, and a prefix of an option stands for it.
            option = word.partition("=")[0]
            named = word.startswith("--") and " " not in option
            if named and not any(name.startswith(option) for name in self._option_string_actions):
                unknown.append(word)
        self._reject(unknown)
        # Parse without required arguments first, so that unknown ones are reported before missing ones.
        rules: list[Any] = [*self._actions, *self._mutually_exclusive_groups]
        required = [each for each in rules if each.required]
        for each in required:
            each.required = False
        try:
            _, rest = super().parse_known_args(args)
        finally:
            for each in required:
                each.required = True
        self._reject(rest)
        # The second pass enforces required arguments.
        options, rest = super().parse_known_args(args, namespace)
        for use in self._uses:
            if use.idle(options):
                self.error(f"argument {'/'.join(use.option.option_strings)}: has no effect: {use.needs}")
        return options, rest

    def _reject(self, words: Sequence[str]) -> None:
        if not words:
            return
        # Short options have no close matches worth suggesting.
        names = [name for name in self._option_string_actions if name.startswith("--")]
        first = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
        near = get_close_matches(first, names, n=1, cutoff=_NEAR)
        self.error(f"unrecognized arguments: {' '.join(words)}" + (f"; did you mean {near[0]}?" if near else ""))

    def _match_arguments_partial(self, actions: Sequence[Action], arg_strings_pattern: str) -> list[int]:
        # argparse of Python 3.11 matches an optional argument with nothing before an option, and then rejects the
        # argument after it ("URL --json FILE", bpo-15112).
        counts = super()._match_arguments_partial(actions, arg_strings_pattern)
        while counts and not counts[-1] and _OPTION in arg_strings_pattern[sum(counts) :]:
            counts.pop()
        return counts


def integer(least: int | None = None, most: int | None = None) -> Callable[[str], int]:
    """Return the argparse type of an integer from ``least`` to ``most``."""
    allowed = "a whole number" if least is None else f"a whole number of at least {least}"
    low, high = -math.inf if least is None else least, math.inf if most is None else most
    return _checked(int, lambda value: low <= value <= high, allowed if most is None else f"{least} to {most}")


def number(above: float, most: float, unit: str = "") -> Callable[[str], float]:
    """Return the argparse type of a number greater than ``above`` and at most ``most``."""
    return _checked(float, lambda value: above < value <= most, f"above {above} and at most {most}{unit}")


def share() -> Callable[[str], float]:
    """Return the argparse type of a share, 0 to 1."""
    return _checked(float, lambda value: 0 <= value <= 1, "a share of 0 to 1")


def positive() -> Callable[[str], float]:
    """Return the argparse type of a finite number above 0."""
    return _checked(float, _positive, "a positive number")


def at_least(least: float) -> Callable[[str], float]:
    """Return the argparse type of a finite number with a lower bound."""
    return _checked(float, lambda value: least <= value < math.inf, f"a number of at least {least:g}")


def numbers(count: int) -> Callable[[str], tuple[float, ...]]:
    """Return the argparse type of ``count`` finite numbers above 0, separated by commas."""
    return _checked(
        lambda text: tuple([float(part) for part in text.split(",")]),
        lambda values: len(values) == count and all(map(_positive, values)),
        f"{count} positive numbers, comma-separated",
    )


def choice(kind: type[Choice]) -> Callable[[str], Choice]:
    """Return the argparse type of a word of an enumeration, in upper or lower case."""
    words = {word.casefold(): word for word in kind}
    return _checked(lambda text: kind(words.get(text.casefold(), text)), lambda _: True, f"one of {', '.join(kind)}")


def _positive(value: float) -> bool:
    return 0 < value < math.inf


def _checked(parse: Callable[[str], Value], fits: Callable[[Value], bool], allowed: str) -> Callable[[str], Value]:
    # argparse prints the message of an ArgumentTypeError after the option's name.
    def read(text: str) -> Value:
        try:
            if fits(value := parse(text)):
                return value
        except ValueError:
            pass
        raise ArgumentTypeError(f"must be {allowed}, not {text}")

    return read
