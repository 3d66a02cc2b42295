"""The pages of the command, docs/reference/cli*.md, against its parsers."""

import argparse
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.command_line import make_parser
from shoal_local.command_line import make_parser as make_local_parser
from shoal_proxy.commands import record_command, simulate

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGES = "\n".join((REFERENCE / name).read_text() for name in ("cli.md", "cli-measuring.md"))
SECTIONS = {
    title.split()[1]: f"{title}\n{text}"
    for title, text in re.findall(r"^## `(shoal [^`]+)`\n(.*?)(?=^## |\Z)", PAGES, re.M | re.S)
}


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser's subcommands by name."""
    [found] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    return dict(found.choices)


def options(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the long options that not every command has."""
    for action in parser._actions:
        yield from (name for name in action.option_strings if name.startswith("--") and name != "--help")


LOCAL = make_local_parser()
PARSERS = {
    **commands(make_parser()),
    "simulate": simulate.parser(),
    "record": record_command.record_parser(),
}
SHARED = {"info": "predict", "bench": "predict"}
"""Commands whose options another's section documents."""


def documented(command: str) -> set[str]:
    sections = [SECTIONS[command], SECTIONS.get(SHARED.get(command, ""), "")]
    return set(re.findall(r"--[a-z][a-z-]*", " ".join(sections)))


@pytest.mark.parametrize("command", PARSERS)
def test_every_command_has_a_section_with_all_its_options(command: str) -> None:
    assert set(options(PARSERS[command])) <= documented(command)


@pytest.mark.parametrize("command", commands(LOCAL))
def test_every_command_of_the_cluster_stands_in_its_section_with_all_its_options(command: str) -> None:
    assert f"`shoal local {command}`" in SECTIONS["local"]
    rows = [line for line in SECTIONS["local"].splitlines() if line.startswith("| `--")]
    of_this = " ".join(line.partition(" | ")[0] for line in rows if f"`{command}`" in line.split(" | ")[1])
    assert set(options(commands(LOCAL)[command])) == set(re.findall(r"--[a-z][a-z-]*", of_this))


EVERY_PARSER = {**PARSERS, **{f"local {name}": made for name, made in commands(LOCAL).items()}}


@pytest.mark.parametrize("command", EVERY_PARSER)
def test_help_reports_the_default_of_every_option_that_has_one(command: str) -> None:
    made = EVERY_PARSER[command]
    for action in made._actions:
        if not action.option_strings or action.default in (None, False, [], argparse.SUPPRESS):
            continue
        documented = made._get_formatter()._expand_help(action)
        default = str(action.default).removesuffix(".0")
        assert re.search(rf"(?<![\w.]){re.escape(default)}(?:\.0)?(?![\w.(])", documented), (
            action.option_strings,
            documented,
        )
        assert "((" not in documented
