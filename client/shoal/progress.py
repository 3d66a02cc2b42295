"""How far a large batch has come: told to a callable, or shown with tqdm where it is installed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]
Progress = bool | Report


@contextmanager
def reporting(progress: Progress) -> Iterator[Report]:
    """Give what is to be called with the rows answered and all rows, after each portion."""
    if callable(progress):
        yield progress
    elif progress:
        with _shown() as show:
            yield show
    else:
        yield lambda answered, rows: None


@contextmanager
def _shown() -> Iterator[Report]:
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415 (optional, and slow to import)
    except ImportError:
        yield _line
        print(file=sys.stderr)
        return
    with tqdm(unit="row") as bar:

        def show(answered: int, rows: int) -> None:
            bar.total = rows
            bar.update(answered - bar.n)

        yield show


def _line(answered: int, rows: int) -> None:
    print(f"\r{answered} of {rows} rows", end="", file=sys.stderr, flush=True)
