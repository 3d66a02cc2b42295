"""Which of several installed operators keeps a service.

Operators of one install agree by their Lease. Two installs that watch one namespace know nothing of each other's, and
would undo each other's writes for ever. So the child ``Service`` names the keeper, and any other leaves all alone. Now
and then it lays a claim, in another annotation there (a Service has no generation, so nothing follows from it): a
keeper that lives takes the claim away at once; a claim that stands for a minute is a keeper that is gone, and its
service is taken over.
"""

from dataclasses import dataclass, field, replace
from enum import StrEnum

from shoal_operator.manifests.labels import OPERATOR_ANNOTATION
from shoal_operator.planning.observation import Key, dig
from shoal_schema.declaring import Json
from shoal_schema.resource import GROUP

CLAIM_ANNOTATION = f"{GROUP}/claimed-by"
SETTLE_S = 60.0
"""A claim that stands for so long is not answered any more; longer than a standby needs to take over."""
MIN_PAUSE_S = 60.0
MAX_PAUSE_S = 300.0
CLAIM_REPLY_S = 12.0
"""Claims are answered five times a minute at most, whoever writes them, and long before one has stood for SETTLE_S."""
CLAIM_MEMORY_S = 2 * MAX_PAUSE_S
"""Who has laid no claim for so long is not there any more."""


class OwnershipStep(StrEnum):
    """What to do with a service."""

    KEEP = "keep"
    """It is ours: look at it as usual."""
    REJECT = "reject"
    """It is ours: take the claim away, and look at it as usual."""
    WAIT = "wait"
    """It is ours: look at it as usual, and soon again, when the claim may be answered."""
    CLAIM = "claim"
    """It is another's: lay a claim, and write nothing else."""
    LEAVE = "leave"
    """It is another's: write nothing."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """What is remembered of one service, in monotonic seconds.

    Args:
        keeper: whose it is, when it is not ours.
        claimed_s: since when our claim has been standing.
        refused: claims of ours that were taken away, in a row.
        pause_until_s: no claim before then.
        claimant: who last laid a claim to what is ours, and when.
        rejected_s: when a claim to what is ours was last taken away.
    """

    keeper: str = ""
    claimed_s: float | None = None
    refused: int = 0
    pause_until_s: float = float("-inf")
    claimant: tuple[str, float] | None = None
    rejected_s: float = float("-inf")


@dataclass(slots=True)
class Ownerships:
    """The services that this operator knows.

    Args:
        me: what this install is called, unlike any other in the cluster.
    """

    me: str
    _known: dict[Key, Ownership] = field(default_factory=dict)

    def decide(self, key: Key, named: Json, now_s: float) -> OwnershipStep:
        """Return what to do.

        Args:
            key: the service.
            named: the child that names the keeper, as it is; empty when there is no such child.
            now_s: monotonic time (s).
        """
        annotations: Json = dig(named, "metadata", "annotations", default={})
        keeper, claim = annotations.get(OPERATOR_ANNOTATION, ""), annotations.get(CLAIM_ANNOTATION, "")
        known = self._known.get(key, Ownership())
        step, self._known[key] = decide(self.me, keeper, claim, known, now_s)
        return step

    def keeper(self, key: Key) -> str:
        """Return which other install keeps a service, or nothing."""
        return self._known.get(key, Ownership()).keeper

    def claimant(self, key: Key, now_s: float) -> str:
        """Return which other install lately laid a claim to a service of ours, or nothing."""
        claimant = self._known.get(key, Ownership()).claimant
        return claimant[0] if claimant and now_s - claimant[1] < CLAIM_MEMORY_S else ""

    def forget(self, key: Key) -> None:
        """Forget a service that is gone."""
        self._known.pop(key, None)


def decide(me: str, keeper: str, claim: str, known: Ownership, now_s: float) -> tuple[OwnershipStep, Ownership]:
    """Return what to do and what to remember.

    Args:
        me: this install.
        keeper: who is named; empty when nobody is.
        claim: who claims it; empty when nobody does.
        known: what the last call returned.
        now_s: monotonic time (s).
    """
    if keeper in ("", me):
        ours = Ownership(claimant=known.claimant, rejected_s=known.rejected_s)
        if not claim:
            return OwnershipStep.KEEP, ours
        if now_s - known.rejected_s < CLAIM_REPLY_S:
            return OwnershipStep.WAIT, ours
        claimant = (claim, now_s) if claim != me else known.claimant
        return OwnershipStep.REJECT, Ownership(claimant=claimant, rejected_s=now_s)
    known = replace(known, keeper=keeper, claimant=None)
    if claim == me:
        since_s = now_s if known.claimed_s is None else known.claimed_s
        # The claim was not removed in time: reconcile, whose write makes this install the owner.
        step = OwnershipStep.KEEP if now_s - since_s >= SETTLE_S else OwnershipStep.LEAVE
        return step, replace(known, claimed_s=since_s)
    if known.claimed_s is not None:
        pause_s = min(MIN_PAUSE_S * 2.0**known.refused, MAX_PAUSE_S)
        refused = min(known.refused + 1, 10)
        return OwnershipStep.LEAVE, replace(known, claimed_s=None, refused=refused, pause_until_s=now_s + pause_s)
    if claim or now_s < known.pause_until_s:
        return OwnershipStep.LEAVE, known
    return OwnershipStep.CLAIM, replace(known, claimed_s=now_s)
