"""Requests: rows, columns in some order, and at times one thing that must be refused."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tests.oracle.cases import Case, Form, Truth
from tests.oracle.entries import NUMBERS
from tests.oracle.frames import Rng, Row, dressed

MOST_ROWS = 5
TWISTED = 0.3


class Twist(StrEnum):
    """What a request has that a well-formed one has not."""

    NONE = "plain"
    ODD = "odd value"
    MISSING = "missing column"
    ABSENT = "absent column"
    """One that may be left out."""
    RENAMED = "renamed column"
    EXTRA = "extra column"
    TEXT = "text for a number"
    FLAG = "flag for a number"
    NUMBER = "number for a flag"
    ONE = "flag for 1 or 0"
    """Which is the same in a column with a name."""


@dataclass(slots=True)
class Request:
    """Rows to send.

    Args:
        rows: by column.
        names: of the columns, in the order in which they are sent.
        table: the same as a frame.
        truths: of the rows.
        twist: what is odd about it.
        place: the column that is.
    """

    rows: list[Row]
    names: list[str]
    table: Any
    truths: Sequence[Truth]
    twist: Twist = Twist.NONE
    place: str = ""
    whole: bool = field(default=False)
    """Whether whole numbers are written with a point."""


def made(case: Case, twists: Sequence[Twist], rng: Rng) -> Request:
    """Return a request for a case, of the twists that its door knows."""
    count = int(rng.integers(1, MOST_ROWS + 1))
    places = rng.integers(0, len(case.rows), count)
    request = Request(
        [dict(case.rows[place]) for place in places],
        list(case.names),
        case.table.iloc[places].reset_index(drop=True),
        [case.truths[place] for place in places],
        whole=bool(rng.random() < 0.1),
    )
    chosen = twists[int(rng.integers(len(twists)))] if twists and rng.random() < TWISTED else Twist.NONE
    _twist(request, chosen, case, rng)
    if request.twist is Twist.ABSENT:
        request.truths = [case.absent[request.place][place] for place in places]
    return request


def shuffled(request: Request, rng: Rng) -> None:
    """Put the columns into another order."""
    request.names = [request.names[place] for place in rng.permutation(len(request.names))]
    request.table = dressed(request.table[request.names], rng)


def _twist(request: Request, twist: Twist, case: Case, rng: Rng) -> None:
    names = request.names
    name = names[int(rng.integers(len(names)))]
    if name in case.absent and twist in (Twist.MISSING, Twist.RENAMED):
        twist = Twist.ABSENT
    if twist is Twist.ODD and case.odd:
        odd = case.odd[int(rng.integers(len(case.odd)))]
        request.rows, request.truths = [dict(odd.row)], [odd.truth]
        request.table = odd.table.reset_index(drop=True)
    elif twist in (Twist.MISSING, Twist.ABSENT) and len(names) > 1:
        _renamed(request, name, None)
    elif twist is Twist.RENAMED:
        _renamed(request, name, "other")
    elif twist is Twist.EXTRA:
        name = "extra"
        _extended(request, name)
    elif (other := _mistyped(twist, case, name, request.rows[-1][name])) is not None:
        request.rows[-1][name] = other
    else:
        return
    request.twist, request.place = twist, name


def _extended(request: Request, name: str) -> None:
    request.names.append(name)
    for number, row in enumerate(request.rows):
        row[name] = float(number)
    request.table = request.table.assign(**{name: [float(number) for number in range(len(request.rows))]})


def _mistyped(twist: Twist, case: Case, name: str, value: Any) -> Any:
    """Return a value of another type than a column's; None where there is none to mistake it for."""
    if twist is Twist.NUMBER:
        return 1 if type(value) is bool else None
    if case.kind(name) not in NUMBERS:
        return None
    if twist is Twist.FLAG:
        return None if case.form is Form.SINGLE else True  # whose name may be given
    if twist is Twist.ONE:
        return bool(value) if value in (0, 1) else None
    return "1.5" if twist is Twist.TEXT else None


def _renamed(request: Request, name: str, new: str | None) -> None:
    place = request.names.index(name)
    request.names[place : place + 1] = [] if new is None else [new]
    for row in request.rows:
        value = row.pop(name)
        if new is not None:
            row[new] = value
    request.table = request.table.drop(columns=name) if new is None else request.table.rename(columns={name: new})
