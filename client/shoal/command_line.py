"""The command ``shoal``: its list of commands, completion in shells, and errors."""

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, Final

import click
from click import shell_completion

from shoal import arguments
from shoal.colours import Style, styled
from shoal.errors import InvalidInput, ShoalError, WrongAddress
from shoal.serving.errors import FieldError, LocalError
from shoal_schema.process.arguments import run_arguments
from shoal_schema.version import VERSION

WRONG_ARGUMENTS = 2
_COMPLETION = "_SHOAL_COMPLETE"
"""Variable in which a shell's completion script names its request."""

# click leaves the lines after \b as they are.
EXAMPLES = """\
\b
examples:
  shoal init circle --from torch            write a small model directory to start from
  shoal serve examples/cat                  serve a model from a manifest or a model directory
  shoal inspect model.pt2                   load a model and report its signature and problems
  shoal batch --model ./cat --input 'pictures/*.jpg' --output answers
  shoal info                                show the inputs and outputs of the served model
  shoal predict examples/cat/picture.jpg    send it one item
  shoal bench                               measure the capacity, and what limits it
  shoal top                                 show the load of services, live
  shoal dashboard                           show it as a page in a browser
  shoal local up                            run a Kubernetes cluster on this machine, with the operator
  shoal record --from http://127.0.0.1:8079 > trace.csv
  shoal simulate trace.csv --from http://127.0.0.1:8079 --objective-ms 30
"""
COMPLETION_EXAMPLES = """\
\b
examples:
  source <(shoal completion bash)           in ~/.bashrc
  source <(shoal completion zsh)            in ~/.zshrc, after compinit
  shoal completion fish | source            in ~/.config/fish/config.fish
"""


class _Elsewhere(click.Command):
    """A command of another component, imported only to run or complete it.

    Args:
        name: name of the command.
        text: help text in the list of commands.
        module: module of the component; its variable ``command`` is the command.
        distribution: what to install if the module is missing.
    """

    def __init__(self, name: str, text: str, module: str, distribution: str) -> None:
        super().__init__(name, help=text)
        self._module = module
        self._distribution = distribution

    def load(self) -> click.Command:
        try:
            command: click.Command = import_module(self._module).command
        except ModuleNotFoundError as error:
            raise LocalError(f"{error.name} is not installed. Run pip install {self._distribution}") from None
        return command


class _Commands(click.Group):
    """The command ``shoal``, whose help lists its commands under headings."""

    def __init__(self, headings: Mapping[str, list[click.Command]], **others: Any) -> None:
        super().__init__("shoal", commands=[each for commands in headings.values() for each in commands], **others)
        self._headings = headings

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands under their headings.

        Overrides click's method.
        """
        for heading, commands in self._headings.items():
            with formatter.section(heading):
                rows = [(str(each.name), each.get_short_help_str(formatter.width)) for each in commands]
                formatter.write_dl(rows, col_max=12)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command by its name.

        Overrides click's method: a command of another component is imported.
        """
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, _Elsewhere) else command, rest


@click.command(epilog=COMPLETION_EXAMPLES)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")), help="the shell")
def completion(shell: str) -> int:
    """Print the completion script of a shell."""
    made = shell_completion.get_completion_class(shell)
    assert made is not None
    print(made(COMMANDS, {}, "shoal", _COMPLETION).source())
    return 0


_simulate = _Elsewhere(
    "simulate", "Simulate loads and objectives without a device.", "shoal_proxy.commands.simulate", "shoal[proxy]"
)
_record = _Elsewhere(
    "record", "Record the arrivals at a server.", "shoal_proxy.commands.record_command", "shoal[proxy]"
)
# Generated from publisher.toml.
_LOCAL_CLUSTER: Final = "./local in a clone of Shoal"
_local = _Elsewhere("local", "Run a Kubernetes cluster on this machine.", "shoal_local.command_line", _LOCAL_CLUSTER)
COMMANDS = click.version_option(VERSION, message="shoal %(version)s")(
    _Commands(
        {
            "Serve": [arguments.init, arguments.inspect, arguments.serve, arguments.predict],
            "Observe": [arguments.info, arguments.top, arguments.dashboard, arguments.bench, _record],
            "Offline": [arguments.batch, _simulate],
            "Cluster": [arguments.rollout, _local],
            "Shell": [completion],
        },
        help="Serve models, query servers, and inspect models.",
        epilog=EXAMPLES,
    )
)


def run(given: list[str]) -> int:
    """Run the command in the arguments ``given``, and return its exit status."""
    try:
        if request := os.environ.get(_COMPLETION):
            # A command that is not installed has no completions.
            with suppress(LocalError):
                shell_completion.shell_complete(COMMANDS, {}, "shoal", _COMPLETION, request)
            return 0
        return run_arguments(COMMANDS, "shoal", given)
    except (ShoalError, FieldError, LocalError) as error:
        print(f"{styled('shoal:', Style.BOLD, Style.RED, stream=sys.stderr)} {error}", file=sys.stderr)
        # An error in the arguments themselves, rather than of the server or the machine.
        invalid = isinstance(error, InvalidInput) and error.status is None
        return WRONG_ARGUMENTS if invalid or isinstance(error, FieldError | WrongAddress) else 1
