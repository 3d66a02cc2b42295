"""How others scale, each from its published formulas and with its defaults, but for the target, which is swept.

All of them read the rows that wait and run, their mean over the time that each looks at, at once and without error; in
clusters there are seconds of Prometheus or of a metrics server in between. They know no refusals. Servers that they
were made for let clients wait instead, so a refused row counts for them as one that waited for the whole objective.
"""

import math
from collections import deque
from collections.abc import Sequence

from benchmarks.scalers.readings import Reading, Service, Window


class Static:
    """So many replicas, always."""

    period_s = 60.0

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas

    def decide(self, reading: Reading, now_s: float) -> int:
        """Return them (`Law`)."""
        return self._replicas


class Knative:
    """Knative's autoscaler (KPA): knative/serving, pkg/autoscaler/scaling/autoscaler.go, and config-autoscaler.

    Stable window 60 s, panic window 6 s, panic at twice what is ready, left after 60 s below it; a tick of 2 s; at most
    1,000 times as many, at least half as many at once.
    """

    period_s = 2.0
    STABLE_S, PANIC_S = 60.0, 6.0
    PANIC_AT = 2.0
    UP, DOWN = 1000.0, 2.0

    def __init__(self, service: Service, target: float) -> None:
        self._target = target
        self._stable = Window(self.STABLE_S, service.objective_s)
        self._panic = Window(self.PANIC_S, service.objective_s)
        self._panic_since_s: float | None = None
        self._panic_most = 0

    def decide(self, reading: Reading, now_s: float) -> int:
        """Return how many pods (`Law`)."""
        self._stable.add(reading)
        self._panic.add(reading)
        ready = max(1, reading.ready)
        wanted, at_once = (self._pods(window, ready) for window in (self._stable, self._panic))
        if math.ceil(self._panic.mean_rows / self._target) / ready >= self.PANIC_AT:
            self._panic_since_s = now_s
        elif self._panic_since_s is not None and now_s - self._panic_since_s > self.STABLE_S:
            self._panic_since_s, self._panic_most = None, 0
        if self._panic_since_s is None:
            return wanted
        self._panic_most = max(self._panic_most, wanted, at_once)
        return self._panic_most

    def _pods(self, window: Window, ready: int) -> int:
        most, least = math.ceil(self.UP * ready), math.floor(ready / self.DOWN)
        return max(least, min(most, math.ceil(window.mean_rows / self._target)))


class HorizontalPodAutoscaler:
    """The HPA, ``autoscaling/v2``: kubernetes.io, Horizontal Pod Autoscaling, algorithm details and default behavior.

    Every 15 s, of the mean over the last 15 s; nothing within 10 % of the target; up by at most 100 % or 4 pods in
    15 s, down to the highest recommendation of the last 300 s.
    """

    period_s = 15.0
    TOLERANCE = 0.1
    STABILIZATION_S = 300.0
    UP_PODS, UP_RATIO = 4, 2.0

    def __init__(self, service: Service, target: float) -> None:
        self._target = target
        self._window = Window(self.period_s, service.objective_s)
        self._recommended: deque[tuple[float, int]] = deque()

    def decide(self, reading: Reading, now_s: float) -> int:
        """Return how many pods (`Law`)."""
        self._window.add(reading)
        recommended = self._recommend(self._rows(now_s), reading.replicas)
        self._recommended.append((now_s, recommended))
        while self._recommended[0][0] < now_s - self.STABILIZATION_S:
            self._recommended.popleft()
        if recommended > reading.replicas:
            return min(recommended, max(reading.replicas + self.UP_PODS, int(self.UP_RATIO * reading.replicas)))
        return min(reading.replicas, max(replicas for _, replicas in self._recommended))

    def _recommend(self, rows: float, replicas: int) -> int:
        ratio = rows / (self._target * replicas)
        return replicas if abs(ratio - 1) <= self.TOLERANCE else math.ceil(ratio * replicas)

    def _rows(self, now_s: float) -> float:
        return self._window.mean_rows


class Keda(HorizontalPodAutoscaler):
    """KEDA: the same HPA, fed with what KEDA polls each 30 s (``pollingInterval`` with ``useCachedMetrics``)."""

    POLLING_S = 30.0

    def __init__(self, service: Service, target: float) -> None:
        super().__init__(service, target)
        self._window = Window(self.POLLING_S, service.objective_s)
        self._polled: tuple[float, float] = (-math.inf, 0.0)

    def _rows(self, now_s: float) -> float:
        if now_s - self._polled[0] >= self.POLLING_S:
            self._polled = (now_s, self._window.mean_rows)
        return self._polled[1]


class RayServe:
    """Ray Serve: serve/autoscaling_policy.py, and the defaults of ``AutoscalingConfig``.

    The time-weighted mean of ongoing requests over 30 s, pushed each 10 s; a decision must hold for 30 s to add
    replicas and for 600 s to remove some.
    """

    period_s = 1.0
    LOOK_BACK_S, PUSH_S = 30.0, 10.0
    UPSCALE_S, DOWNSCALE_S = 30.0, 600.0

    def __init__(self, service: Service, target: float) -> None:
        self._target = target
        self._window = Window(self.LOOK_BACK_S, service.objective_s)
        self._pushed: tuple[float, float] = (-math.inf, 0.0)
        self._since: tuple[int, float] = (0, 0.0)
        """Which way decisions have gone, and since when."""

    def decide(self, reading: Reading, now_s: float) -> int:
        """Return how many replicas (`Law`)."""
        self._window.add(reading)
        if now_s - self._pushed[0] >= self.PUSH_S:
            self._pushed = (now_s, self._window.mean_rows)
        wanted = max(1, math.ceil(self._pushed[1] / self._target))
        way = (wanted > reading.replicas) - (wanted < reading.replicas)
        if way != self._since[0]:
            self._since = (way, now_s)
        delay_s = self.UPSCALE_S if way > 0 else self.DOWNSCALE_S
        if not way or now_s - self._since[1] < delay_s:
            return reading.replicas
        self._since = (0, now_s)
        return wanted


class Plan:
    """A law that knew all along: so many replicas in each second."""

    period_s = 1.0

    def __init__(self, replicas: Sequence[int]) -> None:
        self._replicas = replicas

    def decide(self, reading: Reading, now_s: float) -> int:
        """Return those of this second (`Law`)."""
        return self._replicas[min(int(now_s), len(self._replicas) - 1)]
