"""Types of options of the command line, whose errors are sentences: ``--port: must be 0 to 65535, not x``."""

import math
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from typing import Any, TypeVar

Value = TypeVar("Value")
Choice = TypeVar("Choice", bound=StrEnum)
_NEAR = 0.75
"""How like a name must be to one that there is, to be taken for a slip."""
_OPTION = "O"
"""How argparse writes an option in the pattern of the arguments; A is any other."""


@dataclass(frozen=True, slots=True)
class _Use:
    """An option that does something only beside others: ``where`` they are as it needs them, which ``needs`` says."""

    option: Action
    where: Callable[[Namespace], bool]
    needs: str

    def idle(self, options: Namespace) -> bool:
        """Return whether it was given and does nothing."""
        return getattr(options, self.option.dest) != self.option.default and not self.where(options)


class CommandParser(ArgumentParser):
    """A parser that takes options and arguments in any order, and refuses options that are unknown or do nothing.

    argparse leaves unknown ones to the parser of all commands, misses what is required before it tells of them, and may
    by then have taken the value of one for something else.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._uses: list[_Use] = []

    def only(self, option: Action, where: Callable[[Namespace], bool], needs: str) -> None:
        """Refuse ``option``, unless it has its default, where it does nothing; ``needs`` says what it takes."""
        self._uses.append(_Use(option, where, needs))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; refuse what is unknown with the usage of the command that it was given to, before what is missing."""
        self._refuse([word for word in self._own(args or ()) if self._unknown(word)])
        with self._nothing_required():
            _, rest = super().parse_known_args(args)
        self._refuse(rest)
        options, rest = super().parse_known_args(args, namespace)
        for use in self._uses:
            if use.idle(options):
                self.error(f"argument {'/'.join(use.option.option_strings)}: does nothing here: {use.needs}")
        return options, rest

    def _refuse(self, words: Sequence[str]) -> None:
        if not words:
            return
        names = [name for name in self._option_string_actions if name.startswith("--")]
        first = next((word.partition("=")[0] for word in words if word.startswith("--")), "")
        near = get_close_matches(first, names, n=1, cutoff=_NEAR)
        self.error(f"unrecognized arguments: {' '.join(words)}" + (f"; did you mean {near[0]}?" if near else ""))

    def _own(self, words: Sequence[str]) -> Iterator[str]:
        """Give the words up to ``--``, or up to a command, to whose parser the rest belongs."""
        for word in words:
            if word == "--" or (self._subparsers and not word.startswith("-")):
                return
            yield word

    def _unknown(self, word: str) -> bool:
        # What holds a space is a value, to argparse too; and it takes the beginning of a name for the name.
        option = word.partition("=")[0]
        named = word.startswith("--") and " " not in option
        return named and not any(name.startswith(option) for name in self._option_string_actions)

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


def positive() -> Callable[[str], float]:
    """Return the type of a finite number above 0."""
    return _checked(float, _positive, "a positive number")


def at_least(least: float) -> Callable[[str], float]:
    """Return the type of a finite number with a lower bound."""
    return _checked(float, lambda value: least <= value < math.inf, f"a number of at least {least:g}")


def numbers(count: int) -> Callable[[str], tuple[float, ...]]:
    """Return the type of so many finite numbers above 0, separated by commas."""
    return _checked(
        lambda text: tuple([float(part) for part in text.split(",")]),
        lambda values: len(values) == count and all(map(_positive, values)),
        f"{count} positive numbers, comma-separated",
    )


def choice(kind: type[Choice]) -> Callable[[str], Choice]:
    """Return the type of one word among several, in any case of letters."""
    words = {word.casefold(): word for word in kind}
    return _checked(lambda text: kind(words.get(text.casefold(), text)), lambda _: True, f"one of {', '.join(kind)}")


def _positive(value: float) -> bool:
    return 0 < value < math.inf


def _checked(parse: Callable[[str], Value], fits: Callable[[Value], bool], allowed: str) -> Callable[[str], Value]:
    def read(text: str) -> Value:
        try:
            if fits(value := parse(text)):
                return value
        except ValueError:
            pass
        raise ArgumentTypeError(f"must be {allowed}, not {text}")

    return read
