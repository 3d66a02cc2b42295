"""Command lines with click: exit statuses, types and rules of options."""

import math
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import reduce
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import click
from click.core import ParameterSource

Callback = TypeVar("Callback", bound=Callable[..., Any])
Word = TypeVar("Word", bound=StrEnum)
Rule = Callable[[click.Context], None]
"""A check of a command's options against one another; raises UsageError."""

# Not `readable`: a command explains better than click why it cannot read a file.
PATH = click.Path(readable=False)
FILE = click.Path(dir_okay=False, readable=False, path_type=Path)
DIRECTORY = click.Path(file_okay=False, readable=False, path_type=Path)
PORT = click.IntRange(0, 65535)
LOG_LEVEL = click.Choice(("debug", "info", "warning", "error"), case_sensitive=False)


def run_arguments(command: click.Command, program: str, arguments: Sequence[str]) -> int:
    """Run a command with its arguments, and return the exit status.

    Unlike ``command.main``, it leaves Ctrl-C and closed pipes to the caller: `exit_status.run_command`.
    """
    settings: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100, "show_default": True}
    try:
        with command.make_context(program, list(arguments), **settings) as context:
            status: int = command.invoke(context)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return status


class Command(click.Command):
    """A command with rules between its options.

    The rules are checked in their order, after all options have been parsed.
    """

    def __init__(self, *args: Any, rules: Sequence[Rule] = (), **others: Any) -> None:
        super().__init__(*args, **others)
        self._rules = rules

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments and check the rules.

        Overrides click's method. Rules are not checked during shell completion.
        """
        rest = super().parse_args(ctx, args)
        for rule in () if ctx.resilient_parsing else self._rules:
            rule(ctx)
        return rest


def together(*decorators: Callable[[Callback], Callback]) -> Callable[[Callback], Callback]:
    """Return a decorator that applies several decorators of options.

    ``--help`` lists the options in the order of ``decorators``.
    """
    return lambda callback: reduce(lambda decorated, decorate: decorate(decorated), reversed(decorators), callback)


def only(name: str, where: Callable[[SimpleNamespace], object], needs: str) -> Rule:
    """Reject an option where it has no effect.

    Args:
        name: name of the option's parameter.
        where: returns whether the option has an effect with the other options.
        needs: the remedy, at the end of the error message.
    """

    def check(context: click.Context) -> None:
        if _is_given(context, name) and not where(SimpleNamespace(**context.params)):
            raise click.UsageError(f"{_label(context, name)}: has no effect: {needs}", context)

    return check


def at_most_one(*names: str) -> Rule:
    """Reject a command line with two of these parameters."""

    def check(context: click.Context) -> None:
        first, *others = [_label(context, name) for name in names if _is_given(context, name)] or [""]
        if others:
            raise click.UsageError(f"{others[0]}: not allowed with argument {first}", context)

    return check


def exactly_one(*names: str) -> Rule:
    """Require one of these parameters, and reject two of them."""

    def check(context: click.Context) -> None:
        at_most_one(*names)(context)
        if not any(_is_given(context, name) for name in names):
            raise click.UsageError(
                f"one of the arguments {', '.join(_label(context, name) for name in names)} is required", context
            )

    return check


def _is_given(context: click.Context, name: str) -> bool:
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _label(context: click.Context, name: str) -> str:
    [found] = [each for each in context.command.params if each.name == name]
    return found.opts[0] if isinstance(found, click.Option) else found.human_readable_name.strip("[].")


class Words(click.Choice[Word]):
    """A word of an enumeration, in upper or lower case.

    `click.Choice` accepts the names of an enumeration's members, not their values.
    """

    def normalize_choice(self, choice: object, ctx: click.Context | None) -> str:
        """Return the enumeration's spelling of a word.

        Overrides click's method.
        """
        return next((str(word) for word in self.choices if word.casefold() == str(choice).casefold()), str(choice))


class Number(click.FloatRange):
    """A finite number in a range; `click.FloatRange` also accepts ``nan``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return an option's text as a number.

        Overrides click's method.

        Raises:
            click.BadParameter: the text is no number, or the number is not finite or out of range.
        """
        if math.isfinite(number := super().convert(value, param, ctx)):
            return number
        raise click.BadParameter(f"{value} is not a finite number.", ctx, param)


POSITIVE = Number(0, min_open=True)
NOT_NEGATIVE = Number(0)
SHARE = Number(0, 1)
