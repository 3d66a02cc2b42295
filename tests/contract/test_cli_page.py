"""The pages of the command, docs/reference/cli*.md, against its commands."""

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from shoal.command_line import COMMANDS
from shoal_local.command_line import command as local
from shoal_proxy.commands import record_command, simulate

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
PAGES = "\n".join((REFERENCE / name).read_text() for name in ("cli.md", "cli-measuring.md"))
SECTIONS = {
    title.split()[1]: f"{title}\n{text}"
    for title, text in re.findall(r"^## `(shoal [^`]+)`\n(.*?)(?=^## |\Z)", PAGES, re.M | re.S)
}


def options(command: click.Command) -> Iterator[str]:
    """Yield the long options that not every command has."""
    for param in command.params:
        yield from (name for name in param.opts if name.startswith("--"))


EVERY = {**COMMANDS.commands, "simulate": simulate.command, "record": record_command.command, "local": local}
SHARED = {"info": "predict", "bench": "predict"}
"""Commands whose options another's section documents."""


def documented(command: str) -> set[str]:
    sections = [SECTIONS[command], SECTIONS.get(SHARED.get(command, ""), "")]
    return set(re.findall(r"--[a-z][a-z-]*", " ".join(sections)))


@pytest.mark.parametrize("command", sorted(EVERY.keys() - {"local"}))
def test_every_command_has_a_section_with_all_its_options(command: str) -> None:
    assert set(options(EVERY[command])) <= documented(command)


@pytest.mark.parametrize("command", local.commands)
def test_every_command_of_the_cluster_stands_in_its_section_with_all_its_options(command: str) -> None:
    assert f"`shoal local {command}`" in SECTIONS["local"]
    rows = [line for line in SECTIONS["local"].splitlines() if line.startswith("| `--")]
    of_this = " ".join(line.partition(" | ")[0] for line in rows if f"`{command}`" in line.split(" | ")[1])
    assert set(options(local.commands[command])) == set(re.findall(r"--[a-z][a-z-]*", of_this))


@pytest.mark.parametrize("command", COMMANDS.commands)
def test_the_list_of_commands_has_each(command: str) -> None:
    assert f"[`shoal {command}`]" in PAGES
