"""Steps of pipelines that pickles name: importable where they are loaded."""

from typing import Any


def months(dates: Any) -> Any:
    """Return the month of each date of a frame."""
    return dates.apply(lambda column: column.dt.month)
