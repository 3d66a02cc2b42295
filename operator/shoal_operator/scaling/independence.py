"""Results of the pods' row checks: whether each row's result is independent of its batch."""

from collections.abc import Mapping

from shoal_operator.scaling.reading import Reading


def record_row_checks(known: Mapping[str, bool] | None, readings: Mapping[str, Reading]) -> dict[str, bool]:
    """Return, by pod uid, whether rows are independent of their batch.

    Args:
        known: value that the last call returned; None at first.
        readings: readings of the ready pods, by uid. A pod that cannot be read keeps its last result.
    """
    results: dict[str, bool] = {}
    for uid, reading in readings.items():
        if reading.load is None:
            if known and uid in known:
                results[uid] = known[uid]
            continue
        rows = reading.load.rows
        # Independent rows count only once rows have been checked.
        if rows and not (rows.independent and (rows.unchecked or not rows.checked)):
            results[uid] = rows.independent
    return results
