"""The operator's own law, as the operator runs it, on the readings of the simulated cluster."""

from benchmarks.scalers.readings import Reading, Service
from shoal_operator.autoscaler.law import Law, Load, State, decide


class Shoal:
    """``shoal_operator.autoscaler``, told the same as all others."""

    period_s = 2.0

    def __init__(self, service: Service, target: float) -> None:
        self._law = Law(service.minimum, service.maximum, max(1, round(target)))
        self._state = State()

    def decide(self, reading: Reading, now_s: float) -> int:
        """Return how many replicas (`Law`)."""
        load = Load(reading.queued_rows + reading.running_rows, complete=True)
        decision, self._state = decide(self._law, load, reading.replicas, self._state, now_s)
        return decision.replicas
