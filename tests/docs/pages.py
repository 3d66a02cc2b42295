"""Reads a page: its fenced blocks, and the instructions for tests in comments above them.

A comment is one line, ``<!-- test: WORD ... -->``, directly above the fence (or above another such comment):

=================== ==========================================================================================
``server``          runs beside what follows, until the page ends or starts another; what follows waits for the
                    output that is shown, else for the words after ``server``, else for "listening on"
``e2e``             needs a cluster, or takes long: `make e2e` runs it, `make test` leaves it out
``figures``         any number may stand where the output shows one
``sample``          the output is of one run: any number may stand there, and what follows its first row of figures,
                    a line that begins with a digit, may be other lines
``as KIND``         is a fragment of YAML of that kind
``skip REASON``     is not run; the reason is printed
=================== ==========================================================================================

A block with a title, as in ```python title="train.py"```, is saved under that name in the clone.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

LANGUAGES = frozenset({"sh", "console", "python", "yaml", "json", "toml", "text"})
_OUTPUTS = frozenset({"json", "text"})
_ALONE = frozenset({"e2e", "figures", "sample", "server"})
_WITH_A_VALUE = frozenset({"as", "server", "skip"})
_FENCE = re.compile(r"( *)```(?:(\w+) title=\"([^\"]+)\"$|(.*))")
_NOTE = re.compile(r" *<!-- test: *(\S*) *(.*?) *-->$")
_LOOKS_LIKE_ONE = re.compile(r" *<!-- *test\b")
_COMMAND = re.compile(r"`((?:shoal serve|curl|python|torch-model-archiver) [^`]+)`")
_ITEM = re.compile(r" *([-*+]|\d+[.)]) ")


class PageError(Exception):
    """A page says what does not hold, or says it in a way that cannot be tested."""


@dataclass(frozen=True)
class Block:
    """A fenced block, without its fence."""

    page: str
    line: int  # of its first line, from 1
    language: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)
    answers: bool = False  # stands directly below a block of sh: what that prints

    @property
    def place(self) -> str:
        """Where it is, as compilers write it."""
        return f"{self.page}:{self.line}"


def read_page(path: Path, page: str) -> list[Block]:
    """Return the blocks of a page in order; `page` is its name in errors.

    An example's page has no room for blocks: there, commands stand in the text.
    """
    text = path.read_text(encoding="utf-8")
    return [*blocks_of(text, page), *(commands_within(text, page) if page.startswith("examples/") else ())]


def commands_within(text: str, page: str) -> Iterator[Block]:
    """Yield the commands that stand in the lines of a text and make, serve or ask a model."""
    for number, line in enumerate(text.split("\n"), start=1):
        for command in _COMMAND.findall(line):
            yield Block(page, number, "sh", f"{command}\n", {"server": ""} if command.startswith("shoal") else {})


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """Yield the blocks of a page's text.

    Raises:
        PageError: a block that no test would see: without a language, not closed, indented; or an unknown comment.
    """
    lines = text.split("\n")
    at, closed_at, notes = 0, -1, dict[str, str]()
    in_list = False
    while at < len(lines):
        line = lines[at]
        if opened := _FENCE.match(line):
            end = _end_of(lines, at, page)
            block = "\n".join(one.removeprefix(opened[1]) for one in lines[at + 1 : end]) + "\n"
            language = _language(opened[2] or opened[4], f"{page}:{at + 1}")
            if opened[3]:
                notes |= {"file": opened[3]}
            answers = closed_at == at - 1 and language in _OUTPUTS
            yield Block(page, at + 2, language, block, notes, answers)
            at, closed_at, notes = end + 1, end if language == "sh" else -1, {}
            continue
        if notes and not _LOOKS_LIKE_ONE.match(line):
            raise PageError(f"{page}:{at}: this comment belongs directly above a fence")
        if _LOOKS_LIKE_ONE.match(line):
            notes |= _note(line, f"{page}:{at + 1}")
        in_list = bool(_ITEM.match(line)) or (in_list and (not line or line.startswith("  ")))
        if line.startswith("    ") and not in_list and at and not lines[at - 1].strip():
            raise PageError(f"{page}:{at + 1}: an indented block has no language; fence it: {line.strip()}")
        at += 1
    if notes:
        raise PageError(f"{page}:{at}: this comment belongs directly above a fence")


def _end_of(lines: list[str], start: int, page: str) -> int:
    for at in range(start + 1, len(lines)):
        if lines[at].strip() == "```":
            return at
    raise PageError(f"{page}:{start + 1}: this block is not closed")


def _language(word: str, place: str) -> str:
    if word not in LANGUAGES:
        raise PageError(f"{place}: say what this block is, not {word!r}: one of {', '.join(sorted(LANGUAGES))}")
    return word


def _note(line: str, place: str) -> dict[str, str]:
    found = _NOTE.match(line)
    word, value = found.groups() if found else ("", "")
    if (word in _ALONE and not value) or (word in _WITH_A_VALUE and value):
        return {word: value}
    raise PageError(f"{place}: no test knows what this means: {line.strip()}")
