"""Extra serving time of a stopping replica while no other one is ready.

A pod that is evicted gets SIGTERM at once, and its replacement is ready only when the model is loaded. Routers send
requests to a stopping pod while no other pod is ready, so the last pod keeps serving. Only the operator knows whether a
replacement is starting: it grants this time (the stay), and ends it when another pod is ready.
"""

from dataclasses import dataclass
from typing import Final

WORD_S: Final = 3.0
"""How long a stopping replica waits for the operator: longer than one reconciliation takes."""
MAX_WORD_S: Final = 30.0
"""How long it waits while requests arrive: the operator may move to another node at the same time."""
_NEVER_S: Final = float("-inf")


@dataclass(slots=True)
class Stay:
    """Timer for how long a stopping replica keeps serving (monotonic s).

    Args:
        most_s: maximum length of a stay, the extra serving time that the operator grants; 0 without an operator.
    """

    most_s: float
    granted: bool = False
    """Whether the operator granted a stay and has not ended it."""
    _decided: bool = False
    _begun_s: float = _NEVER_S
    _until_s: float = _NEVER_S
    _last_s: float = _NEVER_S

    def grant(self, seconds: float, now_s: float) -> None:
        """Set the remaining time to keep serving to ``seconds``; 0 ends it.

        May be called before `begin`. A pod's grace period runs from the first call, so later calls do not extend
        ``most_s``.
        """
        # A new stay, since the limit of the last one has passed.
        if self._last_s < now_s:
            self._last_s = now_s + self.most_s
        self._decided = True
        self.granted = seconds > 0
        self._until_s = min(now_s + seconds, self._last_s)

    def begin(self, now_s: float) -> None:
        """Record the time of the signal to stop."""
        self._begun_s = now_s
        self.request_arrived(now_s)

    def request_arrived(self, now_s: float) -> None:
        """Record a request, which extends the wait for the operator's decision."""
        # Once the operator has decided, requests no longer extend the wait.
        if not self._decided:
            longest_s = self._begun_s + min(MAX_WORD_S, self.most_s)
            self._until_s = min(now_s + WORD_S, longest_s)

    def left_s(self, now_s: float) -> float:
        """Return the remaining time (s) to serve; 0 if the drain starts now."""
        return max(0.0, self._until_s - now_s)
