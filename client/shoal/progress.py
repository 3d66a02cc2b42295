"""Progress of a large batch: reported to a callable, or shown with tqdm if it is installed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Report = Callable[[int, int], None]
Progress = bool | Report


@contextmanager
def reporting(progress: Progress) -> Iterator[Report]:
    """Yield the function to call after each portion with the rows done and the number of all rows."""
    # bool is not callable.
    if callable(progress):
        yield progress
        return
    if not progress:
        yield lambda done, rows: None
        return
    try:
        from tqdm.auto import tqdm  # noqa: PLC0415 (optional, and slow to import)
    except ImportError:
        yield lambda done, rows: print(f"\r{done} of {rows} rows", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        return
    with tqdm(unit="row") as bar:

        def show(done: int, rows: int) -> None:
            bar.total = rows
            bar.update(done - bar.n)

        yield show
