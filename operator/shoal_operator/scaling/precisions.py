"""The precisions that the pods' runtimes chose by measurement."""

from collections.abc import Mapping

from shoal_operator.scaling.reading import Reading


def record_precisions(known: Mapping[str, str] | None, readings: Mapping[str, Reading]) -> dict[str, str]:
    """Return, by pod uid, the precision that its runtime chose; pods without a choice are left out.

    Args:
        known: value that the last call returned; None at first.
        readings: readings of the ready pods, by uid. A pod that cannot be read keeps its last precision.
    """
    found = {
        uid: (known or {}).get(uid, "") if reading.load is None else reading.load.precision
        for uid, reading in readings.items()
    }
    return {uid: precision for uid, precision in found.items() if precision}
