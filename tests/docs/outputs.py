"""Compares what a command printed with what its page shows."""

import itertools
import re
from collections.abc import Iterator

_NUMBER = re.compile(r"(?<![\w.])\d+(?:,\d{3})*(?:\.\d+)?(?:e[+-]?\d+)?(?!\w)")
_A_TIME = re.compile(r" m?s\b")
_SMALL = 0.01  # of a number with a point: another processor, another torch


def difference(shown: str, printed: str, *, figures: bool = False) -> str | None:
    """Return the first line on which the two differ; empty if they match.

    Widths of columns do not count, nor seconds and milliseconds; a number with a point may be one percent off, any
    number may be any other with `figures`. A line ``...`` stands for any lines.
    """
    found = _lines(printed)
    first, *others = _split(_lines(shown))
    if differs := _unlike(first, found, figures=figures):
        return differs
    rest = found[len(first) :]
    if not others:
        return f"printed more: {rest[0]}" if rest else None
    *between, last = others
    for part in between:
        starts = range(len(rest) + 1)
        start = next((at for at in starts if _unlike(part, rest[at:], figures=figures) is None), None)
        if start is None:
            return _unlike(part, rest, figures=figures)
        rest = rest[start + len(part) :]
    return _unlike(last, rest[max(0, len(rest) - len(last)) :], figures=figures)


def before_figures(shown: str) -> str:
    """Return the lines above the first row of figures, and that any may follow."""
    lines = shown.split("\n")
    return "\n".join([*itertools.takewhile(lambda line: not line.lstrip()[:1].isdigit(), lines), "..."])


def contains(shown: str, printed: str) -> bool:
    """Whether the lines stand somewhere in what was printed."""
    return difference(f"...\n{shown}\n...", printed) is None


def _lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.strip("\n").split("\n")] if text.strip() else []


def _split(lines: list[str]) -> Iterator[list[str]]:
    part: list[str] = []
    for line in lines:
        if line == "...":
            yield part
            part = []
        else:
            part.append(line)
    yield part


def _unlike(wanted: list[str], found: list[str], *, figures: bool) -> str | None:
    for at, line in enumerate(wanted):
        if at >= len(found):
            return f"shown but not printed: {line}"
        if not _alike(line, found[at], figures=figures):
            return f"shown:   {line}\nprinted: {found[at]}"
    return None


def _alike(wanted: str, found: str, *, figures: bool) -> bool:
    if _NUMBER.sub("0", wanted) != _NUMBER.sub("0", found):
        return False
    numbers = zip(_NUMBER.finditer(wanted), _NUMBER.finditer(found), strict=True)
    return figures or all(_close(one, other) or _A_TIME.match(wanted, one.end()) for one, other in numbers)


def _close(one: re.Match[str], other: re.Match[str]) -> bool:
    a, b = (float(match[0].replace(",", "")) for match in (one, other))
    exact = "." not in one[0] and "." not in other[0]
    return a == b if exact else abs(a - b) <= _SMALL * max(abs(a), abs(b))
