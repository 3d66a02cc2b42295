"""Follows a page as its reader would, block after block, and compares what happens with what it says."""

import json
import shlex
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.docs.fragments import check_yaml
from tests.docs.outputs import before_figures, contains, difference
from tests.docs.pages import Block, PageError, read_page
from tests.docs.shell import Shell
from tests.docs.surroundings import ROOT, copy_clone

_FOLDERS = (".", "docs", "docs/*", "operator", "benchmarks", "examples/*")
PAGES = sorted(
    str(path.relative_to(ROOT))
    for folder in _FOLDERS
    for path in ROOT.glob(f"{folder}/*.md")
    if path.name != "CHANGELOG.md"
)
EXAMPLES = [page for page in PAGES if page.startswith("examples/")]
LONG = [*EXAMPLES, *(page for page in PAGES if page.startswith("docs/how-to/serve-"))]
"""They train and serve models: up to a minute each."""


@dataclass(frozen=True)
class Command:
    """A command after ``$`` and the lines that stand below it."""

    line: int
    text: str
    shown: str


def runs(block: Block, *, with_cluster: bool) -> bool:
    """Whether something is done with this block now."""
    return "skip" not in block.notes and (with_cluster or "e2e" not in block.notes)


def needs_a_shell(block: Block) -> bool:
    """Whether it is run, rather than read."""
    return block.language in {"sh", "console", "python"} or "file" in block.notes


def follow_page(page: str, *, with_cluster: bool = False) -> None:
    """Read a page of this repository and follow it in a shell of its own."""
    blocks = read_page(ROOT / page, page)
    # A page that says how the commands come to be there is taken at its word.
    activated = not any("bin/activate" in block.text for block in blocks)
    with tempfile.TemporaryDirectory(prefix="page-") as scratch, Shell(Path(scratch), activated=activated) as shell:
        copy_clone(shell.clone)
        follow(blocks, shell, with_cluster=with_cluster)


def follow(blocks: Sequence[Block], shell: Shell, *, with_cluster: bool = False) -> None:
    """Run or check the blocks of a page, in order.

    Raises:
        PageError: the first that does not do what the page says, with page, line and command.
    """
    for block, after in pairwise([*blocks, None]):
        assert block is not None
        if runs(block, with_cluster=with_cluster):
            _follow(block, after if after and after.answers else None, shell)


def check(block: Block) -> None:
    """Check a block without running it."""
    try:
        if block.language == "json":
            json.loads(block.text)
        elif block.language == "toml":
            tomllib.loads(block.text)
        elif block.language == "yaml":
            check_yaml(block.text, block.notes.get("as"))
        elif block.language == "python":
            compile(block.text, block.page, "exec")
    except (ValueError, SyntaxError) as error:
        raise PageError(f"{block.place}: this {block.language} is wrong: {error}") from error


def _follow(block: Block, answer: Block | None, shell: Shell) -> None:
    check(block)
    if name := block.notes.get("file"):
        shell.save(name, block.text)
    elif block.language == "sh":
        _sh(block, answer, shell)
    elif block.language == "console":
        _console(block, shell)
    elif block.language == "python":
        shell.run_python(block.page, block.line, block.text)


def _sh(block: Block, answer: Block | None, shell: Shell) -> None:
    if "server" in block.notes:
        shell.serve(block.page, block.line, block.text, shown="", ready=_ready(block))
        return
    ended = shell.run(block.page, block.line, block.text)
    if answer and (differs := _differs(block, answer.text, ended.stdout)):
        raise PageError(f"{answer.place}: {_last(block.text)} prints something else\n{differs}")
    for line, shown in answers_in_comments(block):
        if not contains(shown, ended.stdout):
            raise PageError(f"{block.page}:{line}: not printed: {shown}\nbut: {ended.stdout}")


def _console(block: Block, shell: Shell) -> None:
    first, *others = commands_of(block)
    if "server" in block.notes:
        shell.serve(block.page, first.line, first.text, shown=first.shown, ready=_ready(block))
    else:
        others.insert(0, first)
    for command in others:
        # What is refused says so on standard error, which a terminal shows as well.
        ended = shell.run(block.page, command.line, command.text, may_fail=bool(command.shown))
        printed = ended.stdout + (ended.stderr if ended.status else "")
        if command.shown and (differs := _differs(block, command.shown, printed)):
            raise PageError(f"{block.page}:{command.line}: {command.text} prints something else\n{differs}")


def _differs(block: Block, shown: str, printed: str) -> str | None:
    if "sample" in block.notes:
        return difference(before_figures(shown), printed, figures=True)
    return difference(shown, printed, figures="figures" in block.notes)


def _ready(block: Block) -> str:
    return block.notes["server"] or "listening on"


def _last(script: str) -> str:
    return script.strip().rpartition("\n")[2]


def answers_in_comments(block: Block) -> Iterator[tuple[int, str]]:
    """Yield the comments that are JSON, with their lines: the output of what stands before them."""
    for number, line in enumerate(block.text.split("\n"), start=block.line):
        if line.startswith(("# {", "# [")):
            yield number, line.removeprefix("# ")


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console block; one goes on over lines while a quote is open or a backslash ends them."""
    commands: list[Command] = []
    for number, line in enumerate(block.text.rstrip("\n").split("\n"), start=block.line):
        if line.startswith("$ "):
            commands.append(Command(number, line.removeprefix("$ "), ""))
            continue
        if not commands:
            raise PageError(f"{block.page}:{number}: a console block begins with a command: $ ...")
        last = commands[-1]
        if last.shown or _is_whole(last.text):
            commands[-1] = Command(last.line, last.text, f"{last.shown}{line}\n")
        else:
            commands[-1] = Command(last.line, f"{last.text}\n{line}", "")
    return commands


def _is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return not command.endswith("\\")
