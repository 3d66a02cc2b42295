"""The tables of docs/contracts.md, as data."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs/contracts.md").read_text()


def rows_after(marker: str) -> list[list[str]]:
    """Return the cells of the first table behind ``marker``, without its head."""
    lines = PAGE[PAGE.index(marker) :].splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("|"))
    table: list[list[str]] = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split("|")])
    return table[2:]


def names_in(cell: str) -> list[str]:
    """Return what a cell quotes as code."""
    return re.findall(r"`([^`]+)`", cell)
